"""What the patch does in this environment: which modules of ColossalAI it changes, and why not where it does not."""

import importlib
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from colossalai_patch import overlay, settings
from colossalai_patch.silence import silence

ACTIVE, OFF, UNTESTED, FAILED = "active", "off", "untested release", "failed"


@dataclass(frozen=True)
class ModuleStatus:
    """How one module of ColossalAI stands: ``state`` is one of the constants above, ``reason`` says why."""

    module: str
    state: str
    reason: str


@dataclass(frozen=True)
class Status:
    """The state of every module that the overlay changes, and the versions of what it stands on."""

    modules: list[ModuleStatus]
    versions: dict[str, str]

    @property
    def all_active(self) -> bool:
        """Whether the patch is active in every module."""
        return all(module.state == ACTIVE for module in self.modules)

    def as_json(self) -> dict[str, Any]:
        """The attributes, and whether all is active."""
        return asdict(self) | {"all_active": self.all_active}


def find_status() -> Status:
    """Import every module that the overlay changes, which takes seconds, and report what became of it.

    What libraries write meanwhile, to stdout or stderr and by whatever means, is not shown.

    Raises:
        SettingError: as ``settings.check_all``.
    """
    settings.check_all()
    wanted = settings.patch_wanted()
    with silence():  # libraries tell of what is not installed; what the patch warns about is in the reasons
        modules = [_module_status(name, wanted) for name in overlay.overlaid_modules()]
    return Status(modules, dict(_versions()))


def _module_status(name: str, wanted: bool) -> ModuleStatus:
    if not wanted:
        return ModuleStatus(name, OFF, "COLOSSALAI_PATCH=off")
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a library may end the process
        return ModuleStatus(name, FAILED, f"importing it fails without the patch too: {type(error).__name__}: {error}")
    outcome = overlay.install().outcomes.get(name, "it was imported before colossalai_patch")
    if outcome != overlay.ACTIVE:
        return ModuleStatus(name, FAILED, outcome)
    if overlay.installed_release() not in overlay.TESTED_RELEASES:
        return ModuleStatus(name, UNTESTED, f"active, and tested on {', '.join(overlay.TESTED_RELEASES)} only")
    return ModuleStatus(name, ACTIVE, "")


def _versions() -> Iterator[tuple[str, str]]:
    yield "colossalai", overlay.installed_release()
    for distribution in ("colossalai-checkpoint-patch", "torch", "safetensors"):
        try:
            yield distribution, metadata.version(distribution)
        except metadata.PackageNotFoundError:
            yield distribution, "not installed"
    yield "python", platform.python_version()

"""Puts the files of the overlay in front of the modules of the installed ColossalAI that they change.

An overlay file stands at the path of the module that it changes. When that module is imported, the release's own
code runs first, in the module's namespace; then the overlay file runs in the same namespace and redefines what it
changes. Functions of the release that look a name up at call time find ours, every other name stays, and a file that
cannot apply is undone by putting the namespace back.

This module is imported at the start of every Python process, so it imports nothing but ``sys`` and ``os``; what an
import of ColossalAI needs is imported then.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType, SimpleNamespace
    from typing import Any

# The distribution of each release that the suite was run on; docs/compatibility.md says what ran.
TESTED_RELEASES = {
    "0.4.7": "colossalai",
    "0.4.8": "colossalai",
    "0.4.9": "colossalai",
    "0.5.0": "colossalai",
    "2025.7.12": "colossalai-nightly",
}

ACTIVE = "active"

_HERE = os.path.dirname(os.path.abspath(__file__))
_INSTALLED_FOLDER = os.path.join(_HERE, "colossalai")
_CHECKOUT_FOLDER = os.path.join(os.path.dirname(_HERE), "colossalai")
FOLDER = _INSTALLED_FOLDER if os.path.isdir(_INSTALLED_FOLDER) else _CHECKOUT_FOLDER


class OverlayError(Exception):
    """An overlay file does not fit the module of the installed release that it changes."""


class OverlayFinder:
    """An import hook that serves the modules of ColossalAI for which there is an overlay file, and no other.

    ``outcomes`` maps each such module, once it was imported, to ``ACTIVE`` or to the reason why it is stock.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.outcomes: dict[str, str] = {}
        self._wanted: bool | None = None
        self._warned_of_release = False

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Answer ``import``: the release's own spec, with a loader that applies the overlay file where there is one."""
        if name == "colossalai":
            return self._release_spec(name, path, target)
        if not name.startswith("colossalai."):
            return None
        overlay_file = os.path.join(self.folder, *name.split(".")[1:]) + ".py"
        if not os.path.isfile(overlay_file) or not self._is_wanted():
            return None
        spec = self._release_spec(name, path, target)
        if spec is not None:
            spec.loader = OverlayLoader(self, spec.loader, overlay_file)  # type: ignore[assignment]
        return spec

    def _release_spec(self, *where: "Any") -> "ModuleSpec | None":
        """What the other finders say, less a folder without ``__init__.py``: a checkout of this project is one."""
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(*where)
            if spec is not None and spec.has_location:
                return spec
        return None

    def _is_wanted(self) -> bool:
        """The setting as it was at the first import, so that no process is half patched."""
        if self._wanted is None:
            self._wanted = _patch_wanted()
        return self._wanted

    def warn_of_untested_release(self) -> None:
        """Say once that the suite was not run on the installed release."""
        if self._warned_of_release:
            return
        self._warned_of_release = True
        release = installed_release()
        if release not in TESTED_RELEASES:
            _warn(
                f"the patch was not tested on ColossalAI {release} (tested: {', '.join(TESTED_RELEASES)}); "
                "it is applied all the same. COLOSSALAI_PATCH=off switches it off."
            )


class OverlayLoader:
    """Runs the release's module, then the overlay file, in one namespace; a failing overlay file leaves no trace."""

    def __init__(self, finder: OverlayFinder, release_loader: "Any", overlay_file: str) -> None:
        self.finder = finder
        self.release_loader = release_loader
        self.overlay_file = overlay_file

    def __getattr__(self, name: str) -> "Any":
        return getattr(self.release_loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """As the release's own loader."""
        module: ModuleType | None = self.release_loader.create_module(spec)
        return module

    def exec_module(self, module: "ModuleType") -> None:
        """Run the release's module and then the overlay file; what that raises is a warning, and no error."""
        self.release_loader.exec_module(module)
        release = dict(vars(module))
        try:
            self._apply(vars(module))
            check_fit(release, vars(module))
        except Exception as error:
            vars(module).clear()
            vars(module).update(release)
            reason = f"{type(error).__name__}: {error}"
            self.finder.outcomes[module.__name__] = reason
            _warn(f"{module.__name__} stays stock, because {self.overlay_file} does not apply to it: {reason}")
            return
        self.finder.outcomes[module.__name__] = ACTIVE
        self.finder.warn_of_untested_release()

    def _apply(self, namespace: "dict[str, Any]") -> None:
        namespace["__file__"] = self.overlay_file
        with open(self.overlay_file, encoding="utf-8") as file:
            code = compile(file.read(), self.overlay_file, "exec")
        exec(code, namespace)


def _patch_wanted() -> bool:
    """What ``COLOSSALAI_PATCH`` says; any wrong setting is a warning here."""
    from colossalai_patch import settings

    wanted = False
    try:
        wanted = settings.patch_wanted()
        settings.check_all()
    except settings.SettingError as error:
        _warn(f"{error}. {'What needs a setting with a wrong value fails' if wanted else 'ColossalAI stays stock'}.")
    return wanted


def extend_release(namespace: "dict[str, Any]") -> "SimpleNamespace":
    """The names of the release's module, for an overlay file to subclass and call: call it with ``globals()``."""
    from types import SimpleNamespace

    return SimpleNamespace(**namespace)


def check_fit(release: "Mapping[str, Any]", patched: "Mapping[str, Any]") -> None:
    """Make sure that everything the overlay file redefined stands in the release with the same signature.

    Private names are the overlay's own business.

    Raises:
        OverlayError: naming the function or method, and both signatures where they differ.
    """
    for name, ours in patched.items():
        theirs = release.get(name)
        if ours is theirs or name.startswith("_") or getattr(ours, "__module__", None) != patched["__name__"]:
            continue
        _check_signature(name, theirs, ours)
        for method, function in vars(ours).items() if isinstance(ours, type) else ():
            if not method.startswith("_") and callable(function):
                _check_signature(f"{name}.{method}", getattr(theirs, method, None), function)


def _check_signature(name: str, theirs: "Any", ours: "Callable[..., Any]") -> None:
    import inspect

    def shape(function: "Callable[..., Any]") -> "list[tuple[str, Any, Any]]":
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    if theirs is None:
        raise OverlayError(f"this release has no {name}")
    if shape(theirs) != shape(ours):
        raise OverlayError(
            f"{name}{inspect.signature(theirs)} of this release is {name}{inspect.signature(ours)} in the patch"
        )


def installed_release() -> str:
    """The version of the ColossalAI that is imported, as its distribution states it, or ``"not installed"``."""
    from importlib import metadata, util

    spec = util.find_spec("colossalai")
    if spec is None or spec.origin is None:
        return "not installed"
    beside_the_package = [os.path.dirname(os.path.dirname(spec.origin))]
    for path in (beside_the_package, sys.path):
        for name in sorted(set(TESTED_RELEASES.values())):
            for distribution in metadata.distributions(name=name, path=path):
                return distribution.version
    return "unknown"


def overlaid_modules() -> "list[str]":
    """The modules of ColossalAI that the overlay changes, sorted."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(FOLDER) for name in names]
    paths = [os.path.relpath(file, os.path.dirname(FOLDER)) for file in files if file.endswith(".py")]
    return sorted(path[: -len(".py")].replace(os.sep, ".") for path in paths)


def install() -> OverlayFinder:
    """Register the import hook once, in front of all others, and return it."""
    for finder in sys.meta_path:
        if isinstance(finder, OverlayFinder):
            return finder
    finder = OverlayFinder(FOLDER)
    sys.meta_path.insert(0, finder)
    if "colossalai" in sys.modules:
        _warn("ColossalAI was imported before colossalai_patch, so what it has loaded stays stock. Import it after.")
    return finder


def _warn(message: str) -> None:
    """One warning; where warnings are errors it goes to stderr, since the patch never breaks an import."""
    import warnings

    try:
        warnings.warn(f"colossalai-patch: {message}", RuntimeWarning, stacklevel=2)
    except RuntimeWarning:
        print(f"colossalai-patch: {message}", file=sys.stderr)

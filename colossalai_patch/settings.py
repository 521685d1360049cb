"""The environment variables that steer the patch, each read when it is needed and never cached here."""

import os

_CHOICES: dict[str, dict[str, bool | None]] = {  # of each, and what they mean; the first one is the default
    "COLOSSALAI_PATCH": {"on": True, "off": False},
    "COLOSSALAI_PATCH_SAVE_FORMAT": {"bin": False, "safetensors": True},
    "COLOSSALAI_PATCH_TRUST_PICKLE": {"0": False, "1": True},
    "COLOSSALAI_PATCH_PROGRESS": {"1": True, "0": False},
    "COLOSSALAI_PATCH_RELEASE_OLD_STATE": {"auto": None, "1": True, "0": False},
}


class SettingError(ValueError):
    """An environment variable of this project holds a value that it cannot have, or has a name that there is not."""


def patch_wanted() -> bool:
    """Whether ``COLOSSALAI_PATCH`` lets the patch apply: ``on`` (the default) or ``off``.

    Raises:
        SettingError: for any other value.
    """
    return _chosen("COLOSSALAI_PATCH")


def save_in_safetensors() -> bool:
    """Whether ``COLOSSALAI_PATCH_SAVE_FORMAT`` asks for it: ``bin`` (the default) or ``safetensors``.

    Raises:
        SettingError: for any other value.
    """
    return _chosen("COLOSSALAI_PATCH_SAVE_FORMAT")


def trust_pickle() -> bool:
    """Whether ``COLOSSALAI_PATCH_TRUST_PICKLE`` lets checkpoint files run code: ``0`` (the default) or ``1``.

    Raises:
        SettingError: for any other value.
    """
    return _chosen("COLOSSALAI_PATCH_TRUST_PICKLE")


def progress_wanted() -> bool:
    """Whether ``COLOSSALAI_PATCH_PROGRESS`` lets long loads show a progress bar: ``1`` (the default) or ``0``.

    Raises:
        SettingError: for any other value.
    """
    return _chosen("COLOSSALAI_PATCH_PROGRESS")


def release_old_state() -> bool | None:
    """Whether ``COLOSSALAI_PATCH_RELEASE_OLD_STATE`` has a load give up the old state: ``1`` always, ``0`` never.

    None stands for ``auto`` (the default): where memory has no room for two.

    Raises:
        SettingError: for any other value.
    """
    return _choice("COLOSSALAI_PATCH_RELEASE_OLD_STATE")


def check_all() -> None:
    """Look at every variable, so that a mistake is known before it matters.

    Raises:
        SettingError: for the first one that has a value that it cannot have, or a name that there is not.
    """
    for name in _CHOICES:
        _choice(name)
    for name in sorted(os.environ):
        if name.startswith("COLOSSALAI_PATCH_") and name not in _CHOICES:
            raise SettingError(f"{name} is no setting and has no effect: there are {', '.join(_CHOICES)}")


def _chosen(name: str) -> bool:
    return bool(_choice(name))


def _choice(name: str) -> bool | None:
    choices = _CHOICES[name]
    default = next(iter(choices))
    value = os.environ.get(name, default)
    if value not in choices:
        known = " or ".join(repr(choice) + " (the default)" * (choice == default) for choice in choices)
        raise SettingError(f"{name}={value!r}: it can be {known}")
    return choices[value]

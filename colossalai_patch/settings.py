"""The environment variables that steer the patch, each read when it is needed and never cached here."""

import os


class SettingError(ValueError):
    """An environment variable of this project holds a value that it cannot have."""


def patch_wanted() -> bool:
    """Whether ``COLOSSALAI_PATCH`` lets the patch apply: ``on`` (the default) or ``off``.

    Raises:
        SettingError: for any other value.
    """
    return _choice("COLOSSALAI_PATCH", {"on": True, "off": False}, default="on")


def trust_pickle() -> bool:
    """Whether ``COLOSSALAI_PATCH_TRUST_PICKLE`` lets checkpoint files run code: ``0`` (the default) or ``1``.

    Raises:
        SettingError: for any other value.
    """
    return _choice("COLOSSALAI_PATCH_TRUST_PICKLE", {"1": True, "0": False}, default="0")


def save_in_safetensors() -> bool:
    """Whether ``COLOSSALAI_PATCH_SAVE_FORMAT`` asks for it: ``bin`` (the default) or ``safetensors``.

    Raises:
        SettingError: for any other value.
    """
    return _choice("COLOSSALAI_PATCH_SAVE_FORMAT", {"bin": False, "safetensors": True}, default="bin")


def progress_wanted() -> bool:
    """Whether ``COLOSSALAI_PATCH_PROGRESS`` lets long loads show a progress bar: ``1`` (the default) or ``0``.

    Raises:
        SettingError: for any other value.
    """
    return _choice("COLOSSALAI_PATCH_PROGRESS", {"1": True, "0": False}, default="1")


def release_old_state() -> bool:
    """Whether ``COLOSSALAI_PATCH_RELEASE_OLD_STATE`` has a load drop the old state first: ``0`` (the default) or ``1``.

    Raises:
        SettingError: for any other value.
    """
    return _choice("COLOSSALAI_PATCH_RELEASE_OLD_STATE", {"1": True, "0": False}, default="0")


def check_all() -> None:
    """Read every variable, so that a wrong value is known before it is needed.

    Raises:
        SettingError: for the first one that has a value that it cannot have.
    """
    for read in (patch_wanted, trust_pickle, save_in_safetensors, progress_wanted, release_old_state):
        read()


def _choice(name: str, choices: dict[str, bool], default: str) -> bool:
    value = os.environ.get(name, default)
    if value not in choices:
        known = " or ".join(repr(choice) + " (the default)" * (choice == default) for choice in choices)
        raise SettingError(f"{name}={value!r}: it can be {known}")
    return choices[value]

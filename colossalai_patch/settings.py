"""The environment variables that steer the patch, each read when it is needed and never cached here."""

import os


class SettingError(ValueError):
    """An environment variable of this project holds a value that it cannot have."""


def patch_wanted() -> bool:
    """Whether ``COLOSSALAI_PATCH`` lets the patch apply: ``on`` (the default) or ``off``.

    Raises:
        SettingError: for any other value.
    """
    value = os.environ.get("COLOSSALAI_PATCH", "on")
    if value not in ("on", "off"):
        raise SettingError(f"COLOSSALAI_PATCH={value!r}: it can be 'on' (the default) or 'off'")
    return value == "on"


def save_in_safetensors() -> bool:
    """Whether ``COLOSSALAI_PATCH_SAVE_FORMAT`` asks for it: ``bin`` (the default) or ``safetensors``.

    Raises:
        SettingError: for any other value.
    """
    value = os.environ.get("COLOSSALAI_PATCH_SAVE_FORMAT", "bin")
    if value not in ("bin", "safetensors"):
        raise SettingError(f"COLOSSALAI_PATCH_SAVE_FORMAT={value!r}: it can be 'bin' (the default) or 'safetensors'")
    return value == "safetensors"

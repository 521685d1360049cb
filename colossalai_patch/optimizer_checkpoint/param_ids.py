"""Param ids: what stands for a parameter in a checkpoint."""

from typing import Any

ParamId = int | str

DIGITS_OF_AN_ID = 18


class ParamIds(list[Any]):
    """The ids of a group. Native looks each id up in its group for every value, on a plain list in linear time."""

    def __init__(self, ids: list[Any]) -> None:
        super().__init__(ids)
        self._members = frozenset(ids)

    def __contains__(self, param_id: object) -> bool:
        return param_id in self._members

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return list(self)


def as_param_id(key: Any) -> Any:
    """Give the id that a key of an index or a shard stands for: a number, as stock reads it, if it is one."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) <= DIGITS_OF_AN_ID else key

"""An optimizer that is as it was when a load fails, or is known to have lost its state for it."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from colossalai_patch.optimizer_checkpoint.errors import StateReleasedError
from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups


@dataclass
class _Before:
    """What an optimizer is put back to.

    Attributes:
        attributes: its attributes.
        released_because: why its state was given up, if it was.
    """

    attributes: dict[str, Any]
    released_because: str | None = None


_before: dict[int, _Before] = {}  # by the id of the optimizer, so that nested calls hold the old state only once


@contextmanager
def unchanged_on_failure(optimizer: Optimizer) -> Iterator[None]:
    """Put an optimizer's groups and state back if the body raises. A load makes new ones and leaves these alone.

    Raises:
        StateReleasedError: if the body raised after the state had been released.
        BaseException: what else the body raised.
    """
    is_outermost = id(optimizer) not in _before
    before = _before.setdefault(id(optimizer), _Before(dict(vars(optimizer))))
    try:
        yield
    except BaseException as error:
        vars(optimizer).clear()
        vars(optimizer).update(before.attributes)
        because = before.released_because
        if because is None or isinstance(error, StateReleasedError) or not isinstance(error, Exception):
            raise
        raise StateReleasedError(
            f"{error} The optimizer now has the checkpoint's parameter groups and no state: its old state was released "
            f"before, {because}. Load a sound checkpoint before training on."
        ) from error
    finally:
        if is_outermost:
            del _before[id(optimizer)]


def release_state(optimizer: Optimizer, groups: ParamGroups, because: str) -> dict[str, Any]:
    """Give up an optimizer's state in the body of ``unchanged_on_failure``.

    Args:
        optimizer: the optimizer.
        groups: its parameter groups if the body raises from now on.
        because: why, for the error.

    Returns:
        The state under ``state``, which nothing here refers to any more.
    """
    before = _before[id(optimizer)]
    released = {"state": before.attributes.pop("state")}
    before.attributes |= {"state": defaultdict(dict), "param_groups": groups}
    before.released_because = because
    optimizer.state = defaultdict(dict)
    return released

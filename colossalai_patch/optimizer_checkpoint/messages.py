"""Messages between the ranks of a save, for background threads, which cannot use collectives.

They go through the key-value store that every process group is made with. Nobody waits in the store itself, where a
process has one place: what else asks the store, such as a new process group, would wait with it.
"""

import json
import logging
import time
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d
from torch.distributed.constants import default_pg_timeout

SECONDS_BETWEEN_LOOKS = 0.005
SECONDS_BEFORE_IT_IS_SAID = 30

_logger = logging.getLogger(__name__)


class Messages:
    """The messages of one save, each of which is told once."""

    def __init__(self, save_id: str) -> None:
        """Begin with the id of the save, by which its ranks find each other's messages."""
        default_store = distributed_c10d._get_default_store()  # private, torch 2.2 to 2.14
        self._store = PrefixStore(f"colossalai_patch/{save_id}", default_store)

    def tell(self, name: str, content: Any) -> None:
        """Leave a message that JSON can hold."""
        self._store.set(name, json.dumps(content))

    def told(self, names: list[str], what: str, limit: timedelta = default_pg_timeout) -> list[Any]:
        """Wait until there are messages of these names, and give what they hold.

        Args:
            names: the names of the messages.
            what: what is waited for, for the log and the error.
            limit: how long to wait.

        Raises:
            TimeoutError: naming those that did not come.
        """
        began, was_said = time.monotonic(), False
        missing = list(names)
        while missing := [name for name in missing if not self._store.check([name])]:
            seconds = time.monotonic() - began
            if seconds > limit.total_seconds():
                raise TimeoutError(f"{what} did not come within {seconds:.0f} s: {', '.join(missing)}")
            if seconds > SECONDS_BEFORE_IT_IS_SAID and not was_said:
                was_said = True
                _logger.warning("Waiting for %.0f s for %s: %s", seconds, what, ", ".join(missing))
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return [json.loads(self._store.get(name)) for name in names]

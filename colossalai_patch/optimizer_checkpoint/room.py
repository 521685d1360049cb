"""How much memory is free, on the host and on devices, and whether a state fits beside the old one."""

import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.optim import Optimizer

from colossalai_patch.optimizer_checkpoint.values import bytes_of_state

MEGABYTE = 10**6
_CGROUPS = Path("/sys/fs/cgroup")
_FILES_OF_A_CGROUP = {  # version 2 and 1: limit, usage, and what usage counts that the system can drop
    "": ("memory.max", "memory.current", ("active_file", "inactive_file")),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
}


def shortage(optimizer: Optimizer, size: int) -> str | None:
    """Say where, if anywhere, there is no room for a state of ``size`` bytes beside the old one, and how much there is.

    Each device gets the share of the state that it has of the parameters.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    bytes_on: Counter[torch.device] = Counter()
    for param in params:
        bytes_on[param.device] += param.nbytes
    for device, count in bytes_on.items():
        wanted, free = size * count // max(1, bytes_on.total()), free_bytes(device)
        if free is not None and free < wanted:
            return f"{wanted // MEGABYTE} MB beside the old state on {device}, where {free // MEGABYTE} MB are free"
    return None


def size_of(optimizer: Optimizer) -> int:
    """The bytes of an optimizer's state."""
    return sum(bytes_of_state(state) for state in optimizer.state.values())


def free_bytes(device: torch.device) -> int | None:
    """The memory that can be had on a device; None if nothing tells."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    if device.type == "cpu":
        return min((*_left_of_address_space(), *_available(), *_left_in_cgroups()), default=None)
    return None


def _left_of_address_space() -> Iterator[int]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _words(Path("/proc/self/statm"))
    if limit != resource.RLIM_INFINITY and pages:
        yield limit - int(pages[0]) * resource.getpagesize()


def _available() -> Iterator[int]:
    words = _words(Path("/proc/meminfo"))
    if "MemAvailable:" in words:
        yield int(words[words.index("MemAvailable:") + 1]) * 1024


def _left_in_cgroups() -> Iterator[int]:
    """Of each limit of the process's groups and of those that these are in; a container may see its own as the root."""
    for entry in _words(Path("/proc/self/cgroup")):
        _, controllers, path = entry.split(":", 2)
        kind = "memory" if "memory" in controllers.split(",") else controllers
        if kind not in _FILES_OF_A_CGROUP:
            continue
        folder = _CGROUPS / kind / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(_CGROUPS / kind):
                yield from _left_in(group, *_FILES_OF_A_CGROUP[kind])


def _left_in(group: Path, limit_file: str, usage_file: str, droppable: tuple[str, ...]) -> Iterator[int]:
    limit, usage, stat = (_words(group / name) for name in (limit_file, usage_file, "memory.stat"))
    if limit and limit[0].isdecimal() and usage:
        counts = dict(zip(stat[::2], stat[1::2], strict=False))
        yield int(limit[0]) - int(usage[0]) + sum(int(counts.get(name, 0)) for name in droppable)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split()
    except OSError:
        return []

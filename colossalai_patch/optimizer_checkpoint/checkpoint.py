"""A whole optimizer checkpoint, opened for reading."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from colossalai_patch.optimizer_checkpoint.checksum import check_checksum
from colossalai_patch.optimizer_checkpoint.files import check_complete, check_file
from colossalai_patch.optimizer_checkpoint.index import Index, read_index
from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups, read_param_groups
from colossalai_patch.optimizer_checkpoint.shard import Take, copy_state, map_shard
from colossalai_patch.optimizer_checkpoint.states import FEWEST_THREADS, StreamedStates

SHARDS_AHEAD_IN_LOW_CPU_MEM_MODE = 1
SHARDS_AHEAD = 3


@dataclass(frozen=True)
class OptimizerCheckpoint:
    """An opened checkpoint: its index and its parameter groups are read, its states are not.

    Attributes:
        index: which files belong to it.
        param_groups: one dict per parameter group, ``params`` being a list of param ids.
    """

    index: Index
    param_groups: ParamGroups

    def states(self, low_cpu_mem_mode: bool, num_threads: int, take: Take = copy_state) -> StreamedStates:
        """Give the states, to be read while they are consumed.

        Args:
            low_cpu_mem_mode: hold at most two shards in host memory beside what was consumed.
            num_threads: how many threads take large states; at least ``FEWEST_THREADS``.
            take: what to keep of each state; see ``read_shard``.
        """
        ahead = SHARDS_AHEAD_IN_LOW_CPU_MEM_MODE if low_cpu_mem_mode else SHARDS_AHEAD
        shards = [partial(map_shard, shard, take) for shard in self.index.shards()]
        return StreamedStates(shards, self.index.size_of_shards(), ahead, max(FEWEST_THREADS, num_threads))


def open_checkpoint(index_file: str | Path) -> OptimizerCheckpoint:
    """Open a checkpoint, given the path of its index; group file and shards are beside it.

    Everything that can be told without reading the states is looked at.

    Raises:
        CheckpointError: if the index, the group file or a shard is not sound.
        OSError: if one of them cannot be read.
    """
    index = read_index(index_file)
    for file in (index.group_file, *index.shard_files):
        check_file(file, index.path.parent)
        check_complete(file, index.sizes.get(file))
    if index.group_file in index.checksums:
        check_checksum(index.group_file, index.checksums[index.group_file])
    return OptimizerCheckpoint(index, read_param_groups(index.group_file))

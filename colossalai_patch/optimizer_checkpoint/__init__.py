"""One optimizer checkpoint on disk. Knows torch and safetensors, and nothing of ColossalAI."""

from colossalai_patch.optimizer_checkpoint.checkpoint import OptimizerCheckpoint, open_checkpoint
from colossalai_patch.optimizer_checkpoint.consistent import read_whole, unchanged_files
from colossalai_patch.optimizer_checkpoint.content import copied_value
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError, MissingFileError
from colossalai_patch.optimizer_checkpoint.files import check_name
from colossalai_patch.optimizer_checkpoint.index import (
    Index,
    find_index,
    is_optimizer_index,
    read_index,
    size_of_states,
)
from colossalai_patch.optimizer_checkpoint.load import (
    load_optimizer_checkpoint,
    load_state_dict,
    load_streamed,
)
from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups, read_param_groups, save_param_groups
from colossalai_patch.optimizer_checkpoint.param_ids import ParamId
from colossalai_patch.optimizer_checkpoint.pickled_values import unpickle_plain
from colossalai_patch.optimizer_checkpoint.shard import State, copy_state, read_shard, take_states
from colossalai_patch.optimizer_checkpoint.single_file import load_optimizer_file, open_optimizer_file
from colossalai_patch.optimizer_checkpoint.states import StreamedStates
from colossalai_patch.optimizer_checkpoint.torch_file import load_torch_file
from colossalai_patch.optimizer_checkpoint.unchanged import unchanged_on_failure

__all__ = [
    "CheckpointError",
    "Index",
    "MissingFileError",
    "OptimizerCheckpoint",
    "ParamGroups",
    "ParamId",
    "State",
    "StreamedStates",
    "check_name",
    "copied_value",
    "copy_state",
    "find_index",
    "is_optimizer_index",
    "load_optimizer_checkpoint",
    "load_optimizer_file",
    "load_state_dict",
    "load_streamed",
    "load_torch_file",
    "open_checkpoint",
    "open_optimizer_file",
    "read_index",
    "read_param_groups",
    "read_shard",
    "read_whole",
    "save_param_groups",
    "size_of_states",
    "take_states",
    "unchanged_files",
    "unchanged_on_failure",
    "unpickle_plain",
]

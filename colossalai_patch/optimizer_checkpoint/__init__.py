"""One optimizer checkpoint on disk. Knows torch and safetensors, and nothing of ColossalAI."""

from colossalai_patch.optimizer_checkpoint.checkpoint import OptimizerCheckpoint, open_checkpoint
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.index import Index, read_index
from colossalai_patch.optimizer_checkpoint.load import load_optimizer_checkpoint, load_streamed
from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups, read_param_groups, save_param_groups
from colossalai_patch.optimizer_checkpoint.shard import ParamId, State, copy_state, copy_value, read_shard, read_states
from colossalai_patch.optimizer_checkpoint.single_file import read_optimizer_file
from colossalai_patch.optimizer_checkpoint.states import States, StreamedStates

__all__ = [
    "CheckpointError",
    "Index",
    "OptimizerCheckpoint",
    "ParamGroups",
    "ParamId",
    "State",
    "States",
    "StreamedStates",
    "copy_state",
    "copy_value",
    "load_optimizer_checkpoint",
    "load_streamed",
    "open_checkpoint",
    "read_index",
    "read_optimizer_file",
    "read_param_groups",
    "read_shard",
    "read_states",
    "save_param_groups",
]

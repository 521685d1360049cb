"""One optimizer checkpoint on disk. Knows torch and safetensors, and nothing of ColossalAI."""

from colossalai_patch.optimizer_checkpoint.checkpoint import OptimizerCheckpoint, open_checkpoint
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.index import Index, read_index
from colossalai_patch.optimizer_checkpoint.load import load_optimizer_checkpoint, load_streamed
from colossalai_patch.optimizer_checkpoint.param_groups import read_param_groups, save_param_groups
from colossalai_patch.optimizer_checkpoint.shard import copy_state, read_shard
from colossalai_patch.optimizer_checkpoint.single_file import load_optimizer_file, read_optimizer_file
from colossalai_patch.optimizer_checkpoint.states import StreamedStates

__all__ = [
    "CheckpointError",
    "Index",
    "OptimizerCheckpoint",
    "StreamedStates",
    "copy_state",
    "load_optimizer_checkpoint",
    "load_optimizer_file",
    "load_streamed",
    "open_checkpoint",
    "read_index",
    "read_optimizer_file",
    "read_param_groups",
    "read_shard",
    "save_param_groups",
]

from dataclasses import dataclass

from colossalai.tensor.d_tensor.api import (
    get_shard_dim_1d,
    is_customized_distributed_tensor,
    is_distributed_tensor,
)

from colossalai_patch.holding import Holding, load_held_checkpoint, load_held_file
from colossalai_patch.optimizer_checkpoint.ranks import all_wait
from colossalai_patch.overlay import extend_release
from colossalai_patch.slicing import tensor_parallel, whole

release = extend_release(globals())


class GeminiCheckpointIO(release.GeminiCheckpointIO):
    def load_sharded_optimizer(self, optimizer, checkpoint_index_file, prefix, low_cpu_mem_mode=True, num_threads=1):
        holding = _holding(optimizer)
        _cast_to_float(optimizer)
        load_held_checkpoint(optimizer.optim, holding, checkpoint_index_file, low_cpu_mem_mode, num_threads)

    def load_unsharded_optimizer(self, optimizer, checkpoint, low_cpu_mem_mode=True, num_threads=1):
        _cast_to_float(optimizer)
        load_held_file(optimizer.optim, _holding(optimizer), checkpoint)

    def _model_ranks(self, shard):
        return all_wait(writes=self.coordinator.is_master())


def _cast_to_float(optimizer):
    """Give the optimizer's parameters, which are empty outside a step, the dtype of its states: native casts to it."""
    for param in optimizer.id_to_fake_params.values():
        param.data = param.data.float()


@dataclass(frozen=True)
class _GeminiHolding(Holding):
    params: dict

    def take(self, param_id, state):
        if param_id not in self.parts:
            return None
        param = self.params[param_id]
        if is_customized_distributed_tensor(param):
            state = {name: param.shard_fn(value) if name != "step" else value for name, value in state.items()}
        taken = super().take(param_id, state)
        if "step" in taken:
            taken["step"] = int(taken["step"])  # Gemini counts steps with an int
        return taken


def _holding(optimizer):
    group_ids = [group["params"] for group in optimizer.param_groups_backup]
    parts = {param_id: _part(optimizer, param_id) for param_id in optimizer.id_to_fake_params}
    return _GeminiHolding(group_ids, parts, optimizer.id_to_real_params)


def _part(optimizer, param_id):
    param = optimizer.id_to_real_params[param_id]
    _, begin, length = optimizer.get_offsets(param_id)
    if is_customized_distributed_tensor(param):
        return whole(param.shape).elements(begin, begin + length)
    dim = get_shard_dim_1d(param) if is_distributed_tensor(param) else None
    complete_shape = optimizer.params_info["id2shape"][param_id]
    return tensor_parallel(complete_shape, param.shape, dim, optimizer.tp_rank).elements(begin, begin + length)

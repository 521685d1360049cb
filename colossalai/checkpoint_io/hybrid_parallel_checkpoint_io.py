from dataclasses import replace
from functools import partial
from itertools import chain

from colossalai.tensor.d_tensor.api import get_shard_dim_1d, is_distributed_tensor

from colossalai_patch.common_states import is_part, with_common_states
from colossalai_patch.holding import Holding, load_held_checkpoint, load_held_file
from colossalai_patch.optimizer_checkpoint import copied_value
from colossalai_patch.optimizer_checkpoint.ranks import Ranks, SavingRanks
from colossalai_patch.optimizer_checkpoint.save import save_adapter
from colossalai_patch.overlay import extend_release
from colossalai_patch.slicing import tensor_parallel

release = extend_release(globals())


class HybridParallelCheckpointIO(release.HybridParallelCheckpointIO):
    def load_sharded_optimizer(self, optimizer, checkpoint_index_file, prefix="", low_cpu_mem_mode=True, num_threads=1):
        holding = self._holding(optimizer)
        load_held_checkpoint(optimizer.optim, holding, checkpoint_index_file, low_cpu_mem_mode, num_threads)

    def load_unsharded_optimizer(self, optimizer, checkpoint, low_cpu_mem_mode=True, num_threads=1):
        load_held_file(optimizer.optim, self._holding(optimizer), checkpoint)

    def save_sharded_optimizer(
        self, optimizer, checkpoint, gather_dtensor=True, prefix=None, size_per_shard=1024, use_async=False
    ):
        with self._with_common_states(optimizer):
            super().save_sharded_optimizer(optimizer, checkpoint, gather_dtensor, prefix, size_per_shard, use_async)

    def save_unsharded_optimizer(self, optimizer, checkpoint, gather_dtensor, use_async=False):
        with self._with_common_states(optimizer):
            super().save_unsharded_optimizer(optimizer, checkpoint, gather_dtensor, use_async)

    @staticmethod
    def gather_from_sharded_optimizer_state(
        state,
        param,
        original_shape,
        dp_group,
        tp_group,
        use_zero,
        inplace,
        device=torch.device("cpu"),  # noqa: B008, F821
        pinned_state_dicts=None,
    ):
        """As the release's, but scalars, whatever their name, are kept as they are; it never changes ``state``."""
        shape = (-(-param.numel() // dist.get_world_size(dp_group)),) if use_zero else param.shape  # noqa: F821
        parts = {name: value for name, value in state.items() if is_part(name, value, shape)}
        gathered = release.HybridParallelCheckpointIO.gather_from_sharded_optimizer_state(
            parts, param, original_shape, dp_group, tp_group, use_zero, False, device, pinned_state_dicts
        )
        return {name: gathered[name] if name in gathered else copied_value(value) for name, value in state.items()}

    def save_lora_as_pretrained(self, model, checkpoint, use_safetensors, state_dict=None):
        ranks = self._ranks(self.coordinator.is_master(), self.pp_group, self.tp_group)
        save_adapter(checkpoint, ranks, partial(super().save_lora_as_pretrained, model), use_safetensors, state_dict)

    def _model_ranks(self, shard):
        if self.dp_rank != 0:
            return SavingRanks(writer=None)
        writes = self.tp_rank == 0 and (self.sp_rank == 0 if shard else self.pp_size == 1 or self.pp_rank == 0)
        return self._stages(shard, self._ranks(writes, self.pp_group, self.tp_group))

    def _optimizer_ranks(self, shard):
        if shard and not self.use_zero and self.dp_rank != 0:
            return SavingRanks(writer=None)
        groups = [self.pp_group, self.tp_group, *([self.global_dp_group] if self.use_zero else [])]
        writes = self.dp_rank == self.tp_rank == self.sp_rank == 0 if shard else self.coordinator.is_master()
        return self._stages(shard, self._ranks(writes, *groups))

    def _ranks(self, writes, *groups):
        waiting = Ranks(tuple(group for group in groups if dist.get_world_size(group) > 1))  # noqa: F821
        return SavingRanks(waiting, 0 if writes else None)

    def _stages(self, shard, ranks):
        """Each pipeline stage writes its own shards, the first one the index."""
        if not shard or ranks.writer is None:
            return ranks
        return replace(ranks, writer=self.pp_rank, writers=self.pp_size)

    def _with_common_states(self, optimizer):
        params = {param_id: param for param_id, param, _ in _params(optimizer)}
        groups = [self.global_dp_group, self.tp_group] if self.use_zero else [self.tp_group]
        return with_common_states(optimizer.optim, params, groups)

    def _holding(self, optimizer):
        info = optimizer.param_info
        parts = {
            param_id: self._part(working, info["param2shape"][id(working)])
            for param_id, _, working in _params(optimizer)
        }
        return Holding([group["params"] for group in info["param_groups"]], parts)

    def _part(self, param, complete_shape):
        part = self._tensor_parallel_part(param, complete_shape)
        return part.chunk(self.dp_rank, self.global_dp_size) if self.use_zero else part

    def _tensor_parallel_part(self, param, complete_shape):
        # A parameter fused of several, as GPT-2's q, k and v, is no distributed tensor: stock cuts it into even slices.
        if self.tp_size > 1 and is_distributed_tensor(param):
            dim = get_shard_dim_1d(param)
        else:
            dim = search_tp_partition_dim(param.shape, complete_shape, self.tp_size)  # noqa: F821
        return tensor_parallel(complete_shape, param.shape, dim, self.tp_rank)


def _params(optimizer):
    """Yield the id, the parameter and the model's parameter of all that the inner optimizer has on this rank."""
    working_params = optimizer.get_master_to_working_map()
    for param in chain.from_iterable(group["params"] for group in optimizer.optim.param_groups):
        working = param if working_params is None else working_params[id(param)]
        yield optimizer.param_info["param2id"][id(working)], param, working

from dataclasses import replace

import torch
import torch.distributed as dist
from colossalai.checkpoint_io.hybrid_parallel_checkpoint_io import HybridParallelCheckpointIO
from colossalai.tensor.moe_tensor.api import is_moe_tensor

from colossalai_patch.optimizer_checkpoint.ranks import all_wait
from colossalai_patch.overlay import extend_release

release = extend_release(globals())


class MoECheckpointIO(release.MoECheckpointIO):
    # Named here, so that this file does not apply to a release to which that of HybridParallelCheckpointIO does not.
    _with_common_states = HybridParallelCheckpointIO._with_common_states
    load_sharded_optimizer = HybridParallelCheckpointIO.load_sharded_optimizer

    def load_unsharded_optimizer(self, optimizer, checkpoint, strict=False, low_cpu_mem_mode=True, num_threads=1):
        HybridParallelCheckpointIO.load_unsharded_optimizer(self, optimizer, checkpoint, low_cpu_mem_mode, num_threads)

    def save_sharded_optimizer(
        self, optimizer, checkpoint, gather_dtensor=True, prefix=None, size_per_shard=1024, use_async=False
    ):
        with self._with_common_states(optimizer):
            super().save_sharded_optimizer(optimizer, checkpoint, gather_dtensor, prefix, size_per_shard, use_async)

    def save_unsharded_optimizer(self, optimizer, checkpoint, gather_dtensor, use_async=False):
        """What the sharded save writes, in one file; the release's calls methods that do not exist."""
        states = self._states_to_save(optimizer)
        states_of_ranks = [None] * dist.get_world_size() if self.coordinator.is_master() else None
        dist.gather_object(states, states_of_ranks)
        if self.coordinator.is_master():
            groups = [
                group | {"params": recorded["params"]}
                for group, recorded in zip(optimizer.param_groups, optimizer.param_info["param_groups"], strict=True)
            ]
            complete = {param_id: state for states in states_of_ranks for param_id, state in states.items()}
            save_state_dict({"state": complete, "param_groups": groups}, checkpoint, use_safetensors=False)  # noqa: F821

    @staticmethod
    def gather_from_sharded_optimizer_state(
        state,
        param,
        original_shape,
        global_dp_group,
        tp_group,
        use_zero,
        inplace,
        is_moe_param,
        moe_dp_group=None,
        device=torch.device("cpu"),  # noqa: B008
    ):
        """As that of ``HybridParallelCheckpointIO``, over the ranks that have parts of an expert if it is one."""
        dp_group = moe_dp_group if is_moe_param else global_dp_group
        if is_moe_param and use_zero and dist.get_world_size(dp_group) == dist.get_world_size(tp_group) == 1:
            # Stock's loader wants the state of an expert that one rank alone holds flat, as it is.
            return release.MoECheckpointIO.gather_from_sharded_optimizer_state(
                state, param, original_shape, global_dp_group, tp_group, use_zero, inplace, True, moe_dp_group, device
            )
        return HybridParallelCheckpointIO.gather_from_sharded_optimizer_state(
            state, param, original_shape, dp_group, tp_group, use_zero, inplace, device
        )

    def _model_ranks(self, shard):
        ranks = all_wait(writes=self.coordinator.is_master())
        if not shard or self.pp_size == self.ep_size == 1:
            return ranks
        return replace(ranks, writer=dist.get_rank(), writers=dist.get_world_size())

    def _optimizer_ranks(self, shard):
        return self._model_ranks(shard)

    def _states_to_save(self, optimizer):
        """The complete states that this rank saves: those of all its parameters, or of its experts, or none."""
        is_writer = self.tp_rank == self.moe_dp_rank == self.sp_rank == 0
        with self._with_common_states(optimizer):
            blocks = MoECheckpointIO._optimizer_sharder(
                optimizer,
                self.use_zero,
                self.global_dp_group,
                self.tp_group,
                self.moe_dp_group,
                only_moe_param=self.ep_rank != 0,
            )
            return {param_id: state for block, _ in blocks if is_writer for param_id, state in block.items()}

    def _part(self, param, complete_shape):
        if not (self.use_zero and is_moe_tensor(param)):
            return super()._part(param, complete_shape)
        return self._tensor_parallel_part(param, complete_shape).chunk(self.moe_dp_rank, self.moe_dp_size)

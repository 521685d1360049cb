from colossalai.checkpoint_io.hybrid_parallel_checkpoint_io import HybridParallelCheckpointIO
from colossalai.tensor.moe_tensor.api import is_moe_tensor

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

    def _part(self, param, complete_shape):
        if not (self.use_zero and is_moe_tensor(param)):
            return super()._part(param, complete_shape)
        return self._tensor_parallel_part(param, complete_shape).chunk(self.moe_dp_rank, self.moe_dp_size)

from itertools import chain

from colossalai.tensor.d_tensor.api import get_shard_dim_1d, is_distributed_tensor

from colossalai_patch.holding import Holding, load_held_checkpoint, load_held_file
from colossalai_patch.overlay import extend_release
from colossalai_patch.slicing import tensor_parallel

release = extend_release(globals())


class HybridParallelCheckpointIO(release.HybridParallelCheckpointIO):
    def load_sharded_optimizer(self, optimizer, checkpoint_index_file, prefix="", low_cpu_mem_mode=True, num_threads=1):
        holding = self._holding(optimizer)
        load_held_checkpoint(optimizer.optim, holding, checkpoint_index_file, low_cpu_mem_mode, num_threads)

    def load_unsharded_optimizer(self, optimizer, checkpoint, low_cpu_mem_mode=True, num_threads=1):
        load_held_file(optimizer.optim, self._holding(optimizer), checkpoint)

    def _holding(self, optimizer):
        info, working_params = optimizer.param_info, optimizer.get_master_to_working_map()
        parts = {}
        for param in chain.from_iterable(group["params"] for group in optimizer.optim.param_groups):
            working = param if working_params is None else working_params[id(param)]
            parts[info["param2id"][id(working)]] = self._part(working, info["param2shape"][id(working)])
        return Holding([group["params"] for group in info["param_groups"]], parts)

    def _part(self, param, complete_shape):
        part = self._tensor_parallel_part(param, complete_shape)
        return part.chunk(self.dp_rank, self.global_dp_size) if self.use_zero else part

    def _tensor_parallel_part(self, param, complete_shape):
        # A parameter that is fused of several, as GPT-2's q, k and v, is no distributed tensor; stock splits it evenly.
        if self.tp_size > 1 and is_distributed_tensor(param):
            dim = get_shard_dim_1d(param)
        else:
            dim = search_tp_partition_dim(param.shape, complete_shape, self.tp_size)  # noqa: F821
        return tensor_parallel(complete_shape, param.shape, dim, self.tp_rank)

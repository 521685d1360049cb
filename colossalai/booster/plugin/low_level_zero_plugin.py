from itertools import chain

from colossalai.zero.low_level._utils import get_nd_rank, get_nd_world_size

from colossalai_patch.holding import Holding, load_held_checkpoint, load_held_file
from colossalai_patch.overlay import extend_release
from colossalai_patch.slicing import whole

release = extend_release(globals())


class LowLevelZeroCheckpointIO(release.LowLevelZeroCheckpointIO):
    def load_sharded_optimizer(self, optimizer, index_file_path, prefix, low_cpu_mem_mode=True, num_threads=1):
        load_held_checkpoint(optimizer.optim, _holding(optimizer), index_file_path, low_cpu_mem_mode, num_threads)

    def load_unsharded_optimizer(self, optimizer, checkpoint, low_cpu_mem_mode=True, num_threads=1):
        load_held_file(optimizer.optim, _holding(optimizer), checkpoint)


def _holding(optimizer):
    groups = optimizer.optim.state_dict()["param_groups"]
    masters = chain.from_iterable(group["params"] for group in optimizer.optim.param_groups)
    working_params = (optimizer.master_to_working_param[id(master)] for master in masters)
    parts = {param_id: _part(optimizer, param) for param_id, param in enumerate(working_params)}
    return Holding([group["params"] for group in groups], parts)


def _part(optimizer, param):
    ranks = optimizer.param_to_pg[param]
    return whole(param.shape).chunk(int(get_nd_rank(ranks)), get_nd_world_size(ranks))

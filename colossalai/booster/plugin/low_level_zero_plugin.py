from itertools import chain

import torch
from colossalai.checkpoint_io.utils import StateDictSharder
from colossalai.zero.low_level._utils import all_gather_into_flat_tensor_nd, get_nd_rank, get_nd_world_size

from colossalai_patch.common_states import common_states, is_part
from colossalai_patch.holding import Holding, load_held_checkpoint, load_held_file
from colossalai_patch.optimizer_checkpoint import copied_value
from colossalai_patch.optimizer_checkpoint.ranks import all_wait
from colossalai_patch.overlay import extend_release
from colossalai_patch.slicing import whole

release = extend_release(globals())


class LowLevelZeroCheckpointIO(release.LowLevelZeroCheckpointIO):
    def load_sharded_optimizer(self, optimizer, index_file_path, prefix, low_cpu_mem_mode=True, num_threads=1):
        load_held_checkpoint(optimizer.optim, _holding(optimizer), index_file_path, low_cpu_mem_mode, num_threads)

    def load_unsharded_optimizer(self, optimizer, checkpoint, low_cpu_mem_mode=True, num_threads=1):
        load_held_file(optimizer.optim, _holding(optimizer), checkpoint)

    def _optimizer_ranks(self, shard):
        return all_wait(writes=self.coordinator.is_master())  # a model is no rank's but the first one's affair


# Made here and not in its own module, where the release names the class in super(): that would find this one.
class LowLevelZeroOptimizer(release.LowLevelZeroOptimizer):
    def state_dict(self, pinned_state_dicts=None, only_on_master=False):
        states = dict(self._complete_states(pinned_state_dicts, only_on_master))
        return {"state": states, "param_groups": self.optim.state_dict()["param_groups"]}

    def state_dict_shard(self, max_shard_size=1024, pinned_state_dicts=None, only_on_master=False):
        sharder = StateDictSharder(max_shard_size)
        for param_id, state in self._complete_states(pinned_state_dicts, only_on_master):
            shard, size = sharder.append_optim_state(param_id, state)
            if shard is not None:
                yield shard, size
        yield sharder.current_block, sharder.current_block_size

    def _complete_states(self, pinned_state_dicts, only_on_master):
        """Yield each param id that has state on any rank, with its complete state, or {} where it is not wanted."""
        masters = dict(enumerate(_masters(self)))
        groups = [group for key in self.pg_to_param_list for group in (key if isinstance(key, tuple) else (key,))]
        for param_id, state in common_states(self.optim, masters, groups).items():
            master = masters[param_id]
            working = self.master_to_working_param[id(master)]
            parts = {name: value for name, value in state.items() if is_part(name, value, master.shape)}
            complete = state | {name: self._gathered(part, working) for name, part in parts.items()}
            if only_on_master and get_nd_rank(self.param_to_pg[working]) != 0:
                yield param_id, {}
                continue
            buffers = None if pinned_state_dicts is None else pinned_state_dicts.setdefault(param_id, {})
            yield (
                param_id,
                {
                    name: _on_host(value, name, buffers) if name in parts else copied_value(value)
                    for name, value in complete.items()
                },
            )

    def _gathered(self, part, working):
        ranks, device = self.param_to_pg[working], working.device
        gathered = torch.empty(part.numel() * get_nd_world_size(ranks), device=device, dtype=part.dtype)
        all_gather_into_flat_tensor_nd(gathered, part.to(device).flatten(), ranks)
        return gathered[: working.numel()].reshape_as(working)


def _on_host(tensor, name, pinned):
    """Copy to the host, into the pinned memory of that name if there is any, which the next save uses again."""
    if pinned is None:
        return tensor.cpu()
    if name not in pinned:
        pinned[name] = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return pinned[name].copy_(tensor)


def _masters(optimizer):
    return list(chain.from_iterable(group["params"] for group in optimizer.optim.param_groups))


def _holding(optimizer):
    group_ids = [group["params"] for group in optimizer.optim.state_dict()["param_groups"]]
    working_params = (optimizer.master_to_working_param[id(master)] for master in _masters(optimizer))
    parts = {param_id: _part(optimizer, param) for param_id, param in enumerate(working_params)}
    return Holding(group_ids, parts)


def _part(optimizer, param):
    ranks = optimizer.param_to_pg[param]
    return whole(param.shape).chunk(int(get_nd_rank(ranks)), get_nd_world_size(ranks))

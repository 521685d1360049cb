from contextlib import nullcontext
from itertools import count

from torch.distributed.fsdp._common_utils import _get_param_to_fqns

from colossalai_patch.holding import check_groups
from colossalai_patch.optimizer_checkpoint import (
    CheckpointError,
    load_state_dict,
    open_checkpoint,
    open_optimizer_file,
)
from colossalai_patch.optimizer_checkpoint.ranks import all_wait
from colossalai_patch.overlay import extend_release

release = extend_release(globals())


class TorchFSDPCheckpointIO(release.TorchFSDPCheckpointIO):
    def load_sharded_optimizer(self, optimizer, index_file_path, size_per_shard, low_cpu_mem_mode=True, num_threads=1):
        checkpoint = open_checkpoint(index_file_path)
        states = checkpoint.states(low_cpu_mem_mode, num_threads)
        _load(optimizer, checkpoint.param_groups, states, index_file_path)

    def load_unsharded_optimizer(self, optimizer, checkpoint, low_cpu_mem_mode=True, num_threads=1):
        _load(optimizer, *open_optimizer_file(checkpoint), checkpoint)

    def _model_ranks(self, shard):
        return all_wait(writes=self.coordinator.is_master())

    def _all_of_one_save(self, found):
        """A model is loaded by all ranks together once each has read it: none can begin again alone after that."""
        return nullcontext()


def _load(optimizer, saved_groups, states, path):
    """Let torch cut complete states into the parts that this rank keeps, and native load those.

    None of it is a collective, so a rank that fails lets none wait.
    """
    model = optimizer.unwrap_model().unwrap()
    names_of = _get_param_to_fqns(model)
    groups = _names_by_id(optimizer, names_of)
    check_groups(saved_groups, groups)
    names = {param_id: name for group in groups for param_id, name in group.items()}
    named_states = {names[param_id]: state for param_id, state in states.items() if param_id in names}
    _check_units(names_of.values(), named_states, path)
    named_groups = [saved | {"params": list(group.values())} for saved, group in zip(saved_groups, groups, strict=True)]
    complete = {"state": named_states, "param_groups": named_groups}
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):  # noqa: F821
        part = FSDP.optim_state_dict_to_load(model=model, optim=optimizer.optim, optim_state_dict=complete)  # noqa: F821
    load_state_dict(optimizer.optim, part, path)


def _names_by_id(optimizer, names_of):
    """For each group the names of the model's own parameters, of which FSDP flattens many into one, by their ids."""
    ids = count()
    return [
        {next(ids): name for param in group["params"] for name in names_of[param]} for group in optimizer.param_groups
    ]


def _check_units(units, states, path):
    """Make sure that there is state for all parameters of a unit or for none: torch drops what it has of the others."""
    for names in units:
        missing = [name for name in names if name not in states]
        if 0 < len(missing) < len(names):
            raise CheckpointError(
                f"{path} has no state of {missing[0]} ({len(missing)} are missing), but of {len(names) - len(missing)} "
                "others that FSDP keeps in one tensor with it. Load it with another plugin, or wrap them apart."
            )

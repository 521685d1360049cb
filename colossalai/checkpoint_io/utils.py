from pathlib import Path

import torch

from colossalai_patch.optimizer_checkpoint import load_torch_file
from colossalai_patch.optimizer_checkpoint.save import save_of
from colossalai_patch.overlay import extend_release

release = extend_release(globals())


def load_state_dict(checkpoint_file_path):
    if str(checkpoint_file_path).endswith((".safetensors", ".*.bin")):
        return release.load_state_dict(checkpoint_file_path)
    return load_torch_file(Path(checkpoint_file_path))


def search_tp_partition_dim(current_shape, original_shape, tp_size):
    """As the release's, for padded parameters too, whose slices together are longer than the original."""
    sharded = (dim for dim, length in enumerate(original_shape) if length > current_shape[dim])
    dim = next(sharded, None)
    if dim is not None and original_shape[dim] > tp_size * current_shape[dim]:
        raise ValueError(
            f"{tp_size} slices of the shape {tuple(current_shape)} do not make up {tuple(original_shape)}."
        )
    return dim


def load_shard_state_dict(checkpoint_file, use_safetensors=False):
    if use_safetensors:
        return release.load_shard_state_dict(checkpoint_file, use_safetensors)
    return load_torch_file(Path(checkpoint_file))


def save_state_dict(state_dict, checkpoint_file_path, use_safetensors):
    save = save_of(checkpoint_file_path)
    if save is None:
        release.save_state_dict(state_dict, checkpoint_file_path, use_safetensors)
    elif use_safetensors or _takes_paths():
        save.write_by_path(
            checkpoint_file_path, lambda: release.save_state_dict(state_dict, checkpoint_file_path, use_safetensors)
        )
    else:
        save.write(checkpoint_file_path, lambda file: release.save_state_dict(state_dict, file, False))


def save_param_groups(state_dict, group_file_path):
    save = save_of(group_file_path)
    if save is None:
        release.save_param_groups(state_dict, group_file_path)
    elif _takes_paths():
        save.write_by_path(group_file_path, lambda: release.save_param_groups(state_dict, group_file_path))
    else:
        save.write(group_file_path, lambda file: release.save_param_groups(state_dict, file))


def _takes_paths():
    """Whether a script has put a function of its own in the place of ``torch.save``, which stock calls with paths."""
    return torch.save is not torch.serialization.save


def _pin_tensor(tensor, empty=True):
    if torch.cuda.is_available():
        return release._pin_tensor(tensor, empty)
    return torch.empty_like(tensor, device="cpu") if empty else tensor

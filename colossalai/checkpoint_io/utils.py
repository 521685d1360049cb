from pathlib import Path

from colossalai_patch.optimizer_checkpoint import load_torch_file
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

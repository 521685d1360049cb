from colossalai_patch.optimizer_checkpoint import background, unpickle_plain
from colossalai_patch.optimizer_checkpoint.safetensors_metadata import described
from colossalai_patch.optimizer_checkpoint.save import save_of
from colossalai_patch.overlay import extend_release

release = extend_release(globals())


def save(path, state_dict, metadata=None):
    """As the release's: a direct call copies nothing, and the caller waits before it changes the tensors."""
    copy = background.copied_if_needed if save_of(path) is None else background.copied
    return _write(path, state_dict, metadata, copy)


def save_nested(path, state_dict):
    return save(path, *_flatten_optim_state_dict(state_dict))


def move_and_save(path, state_dict, state_dict_pinned=None, metadata=None):
    buffers = state_dict_pinned or {}
    return _write(path, state_dict, metadata, lambda name, tensor: background.copied(name, tensor, buffers.get(name)))


def _write(path, state_dict, metadata, copy):
    tensors = background.by_alignment(state_dict)
    header, _, _ = release.prepare(tensors, metadata)
    return background.write_in_background(path, header.header_bytes, tensors, copy)


def _flatten_optim_state_dict(state_dict, seperator="."):
    tensors, metadata = release._flatten_optim_state_dict(state_dict, seperator)
    return tensors, (metadata or {}) | described(state_dict)


def _tensor_to_object(tensor, tensor_size):
    return unpickle_plain(tensor.cpu().numpy().tobytes()[:tensor_size])

from pathlib import Path

from colossalai_patch.optimizer_checkpoint import load_torch_file
from colossalai_patch.overlay import extend_release

release = extend_release(globals())


def load_state_dict(checkpoint_file_path):
    if str(checkpoint_file_path).endswith((".safetensors", ".*.bin")):
        return release.load_state_dict(checkpoint_file_path)
    return load_torch_file(Path(checkpoint_file_path))


def load_shard_state_dict(checkpoint_file, use_safetensors=False):
    if use_safetensors:
        return release.load_shard_state_dict(checkpoint_file, use_safetensors)
    return load_torch_file(Path(checkpoint_file))

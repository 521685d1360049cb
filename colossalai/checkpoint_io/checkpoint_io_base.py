from pathlib import Path

from colossalai_patch.optimizer_checkpoint import find_index, is_optimizer_index
from colossalai_patch.overlay import extend_release

release = extend_release(globals())


def has_index_file(checkpoint_path):
    """Find the index of a model checkpoint, beside which there may be those of optimizer checkpoints."""
    if not Path(checkpoint_path).is_dir():
        return release.has_index_file(checkpoint_path)
    found = [file for file in sorted(Path(checkpoint_path).glob("*.index*.json")) if not is_optimizer_index(file)]
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"{checkpoint_path} holds several indexes: {names}. Give the path of one of them.")
    return bool(found), next(iter(found), None)


class CheckpointIO(release.CheckpointIO):
    def load_optimizer(self, optimizer, checkpoint, prefix=None, low_cpu_mem_mode=True, num_threads=1):
        checkpoint = str(find_index(checkpoint, prefix) or checkpoint)
        super().load_optimizer(optimizer, checkpoint, prefix, low_cpu_mem_mode, num_threads)

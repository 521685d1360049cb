from colossalai.interface import OptimizerWrapper

from colossalai_patch.optimizer_checkpoint import load_optimizer_checkpoint, load_optimizer_file
from colossalai_patch.overlay import extend_release

release = extend_release(globals())


class GeneralCheckpointIO(release.GeneralCheckpointIO):
    def load_sharded_optimizer(self, optimizer, index_file_path, prefix, low_cpu_mem_mode=True, num_threads=1):
        load_optimizer_checkpoint(optimizer, index_file_path, low_cpu_mem_mode, num_threads)

    def load_unsharded_optimizer(self, optimizer, checkpoint, low_cpu_mem_mode=True, num_threads=1):
        inner = optimizer.unwrap() if isinstance(optimizer, OptimizerWrapper) else optimizer
        load_optimizer_file(inner, checkpoint)

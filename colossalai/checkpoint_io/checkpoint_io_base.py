import time
from pathlib import Path

import torch
from colossalai.interface import OptimizerWrapper
from colossalai.logging import get_dist_logger

from colossalai_patch import settings
from colossalai_patch.optimizer_checkpoint import (
    CheckpointError,
    find_index,
    is_optimizer_index,
    load_torch_file,
    read_whole,
    size_of_states,
    unchanged_files,
    unchanged_on_failure,
)
from colossalai_patch.optimizer_checkpoint.commit import (
    BIN_MODEL,
    OPTIMIZER,
    SAFETENSORS_MODEL,
    DirectoryTarget,
)
from colossalai_patch.optimizer_checkpoint.errors import SaveError
from colossalai_patch.optimizer_checkpoint.ranks import SavingRanks, this_rank
from colossalai_patch.optimizer_checkpoint.save import begin_save
from colossalai_patch.optimizer_checkpoint.targets import FileTarget
from colossalai_patch.overlay import extend_release

release = extend_release(globals())

_REFUSED_BY_STOCK = SavingRanks(writer=None)  # before any rank waits for another
_WAITED_FOR = {"model": ("model", "optimizer"), "optimizer": ("optimizer",)}


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
    def __init__(self):
        super().__init__()
        self._saves = {}

    def save_model(
        self,
        model,
        checkpoint,
        shard=False,
        gather_dtensor=True,
        prefix=None,
        size_per_shard=1024,
        use_safetensors=False,
        use_async=False,
    ):
        def write(path):
            release.CheckpointIO.save_model(
                self, model, path, shard, gather_dtensor, prefix, size_per_shard, use_safetensors, use_async
            )

        layout = SAFETENSORS_MODEL if use_safetensors or use_async else BIN_MODEL
        ranks = _REFUSED_BY_STOCK if model is None else self._model_ranks(shard)
        self._save(_target(checkpoint, shard, prefix, layout), write, ranks, "model", use_async)

    def save_optimizer(
        self,
        optimizer,
        checkpoint,
        shard=False,
        gather_dtensor=True,
        prefix=None,
        size_per_shard=1024,
        use_async=False,
    ):
        in_safetensors = use_async or (shard and settings.save_in_safetensors())

        def write(path):
            release.CheckpointIO.save_optimizer(
                self, optimizer, path, shard, gather_dtensor, prefix, size_per_shard, in_safetensors
            )

        ranks = _REFUSED_BY_STOCK if optimizer is None else self._optimizer_ranks(shard)
        self._save(_target(checkpoint, shard, prefix, OPTIMIZER), write, ranks, "optimizer", use_async)

    def save_lr_scheduler(self, lr_scheduler, checkpoint):
        save = begin_save(FileTarget(Path(checkpoint).resolve()))
        save.now(lambda path: save.write(path, lambda file: torch.save(lr_scheduler.state_dict(), file)))

    def load_lr_scheduler(self, lr_scheduler, checkpoint):
        lr_scheduler.load_state_dict(load_torch_file(Path(checkpoint)))

    def load_model(self, model, checkpoint, strict=True, low_cpu_mem_mode=True, num_threads=1):
        def load():
            found = has_index_file(checkpoint)[1] or checkpoint
            with self._all_of_one_save(found):
                return super(CheckpointIO, self).load_model(model, str(found), strict, low_cpu_mem_mode, num_threads)

        self._wait_for_saves("model", "optimizer")
        return read_whole(load, checkpoint)

    def load_optimizer(self, optimizer, checkpoint, prefix=None, low_cpu_mem_mode=True, num_threads=1):
        def load():
            found = str(find_index(checkpoint, prefix) or checkpoint)
            super(CheckpointIO, self).load_optimizer(optimizer, found, prefix, low_cpu_mem_mode, num_threads)
            return found

        self._wait_for_saves("model", "optimizer")
        began = time.perf_counter()
        inner = optimizer.unwrap() if isinstance(optimizer, OptimizerWrapper) else optimizer
        with unchanged_on_failure(inner):
            found = read_whole(load, checkpoint)
        _log_load(found, time.perf_counter() - began)

    def _all_of_one_save(self, found):
        return unchanged_files(found)

    def _model_ranks(self, shard):
        """Who takes part in saving a model, and how: the first of the ranks alone, or every process for itself."""
        return SavingRanks(writer=0 if not hasattr(self, "coordinator") or self.coordinator.is_master() else None)

    def _optimizer_ranks(self, shard):
        """Who takes part in saving an optimizer, and how."""
        return self._model_ranks(shard)

    def _sync_io(self):
        writers, self.async_writers = self.async_writers, []
        for writer in writers:
            writer.synchronize()

    def _save(self, target, write, ranks, kind, use_async):
        with ranks.waiting.all_or_none(SaveError):
            self._wait_for_saves(*_WAITED_FOR[kind])
        writers, self.async_writers, self.pinned_state_dicts = self.async_writers, [], _NoBuffers()
        try:
            save = begin_save(target, ranks)
            if not use_async:
                save.now(write)
            else:
                save.in_background(write)
                self._saves[kind] = save
                if save.writes:
                    writers.append(save)
        finally:
            self.async_writers, self.pinned_state_dicts = writers, {}

    def _wait_for_saves(self, *kinds):
        for save in [self._saves.pop(kind) for kind in kinds if kind in self._saves]:
            self.async_writers = [writer for writer in self.async_writers if writer is not save]
            save.synchronize()


class _NoBuffers(dict):
    """Has the plugins keep no buffers between saves, and copy nothing to them: the writers take the copy."""

    def __setitem__(self, key, buffers):
        super().__setitem__(key, buffers or None)


def _log_load(checkpoint, seconds):
    if this_rank() != 0:
        return
    try:
        gigabytes = size_of_states(checkpoint) / 1e9
    except (CheckpointError, OSError):
        return  # replaced since, so that nothing tells its size any more
    speed = gigabytes / seconds
    message = f"Loaded the optimizer from {checkpoint}: {gigabytes:.3g} GB in {seconds:.3g} s, {speed:.3g} GB/s"
    get_dist_logger().info(message)


def _target(checkpoint, shard, prefix, layout):
    if shard:
        return DirectoryTarget(Path(checkpoint).absolute(), layout, prefix or "")
    return FileTarget(Path(checkpoint).resolve())

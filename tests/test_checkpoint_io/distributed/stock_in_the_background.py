"""What stock needs to save in the background on a CPU: TensorNVMe, which is not published, and pinned memory."""

import ctypes

import torch
from colossalai.utils import safetensors


def supply_what_stock_needs():
    """Call once in a test process; nothing undoes it, and nothing of it is used where the patch is on."""
    safetensors.AsyncFileWriter = _Writer
    getattr(safetensors, "release", safetensors).AsyncFileWriter = _Writer
    empty_like = torch.empty_like
    torch.empty_like = lambda *args, pin_memory=False, **options: empty_like(*args, **options)
    torch.Tensor.pin_memory = lambda tensor: tensor


class _Writer:
    """Writes each piece at once; from the caller's memory, as the original."""

    def __init__(self, path, n_entries, backend, n_tasks):
        self.offset = 0
        self._file = open(path, "wb")  # noqa: PTH123, SIM115

    def write(self, data):
        self.offset += self._file.write(data)

    def write_raw(self, tensor, pointer, size, offset):
        self.write(memoryview((ctypes.c_char * size).from_address(pointer)))

    def register_h2d(self, count):
        pass

    def write_tensor(self, tensor, pinned=None):
        tensor = tensor.detach().cpu().contiguous()
        if pinned is not None:
            tensor = pinned.copy_(tensor)
        self.write_raw(tensor, tensor.data_ptr(), tensor.numel() * tensor.element_size(), self.offset)

    def sync_before_step(self):
        pass

    def synchronize(self):
        self._file.close()

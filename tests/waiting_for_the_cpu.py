"""A pytest plugin that lets stock ColossalAI wait for a CPU, as for a device; without it, it cannot load any state."""

from colossalai.accelerator.cpu_accelerator import CpuAccelerator

CpuAccelerator.synchronize = lambda self, device=None: None

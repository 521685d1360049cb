"""Run ColossalAI's plugins in CPU processes over gloo: what the tests supply, and the product must never see.

On a CPU, ColossalAI 0.5.0 stops wherever it asks the accelerator for a stream or a seed, or names cuda outright.
`supply_cpu_accelerator()` answers. Call it once in each test process, before a plugin is built; nothing undoes it:

    supply_cpu_accelerator()
    colossalai.launch_from_torch(verbose=False)

The place that needs a stand-in stands beside it. Nothing here touches a checkpoint.
"""

from contextlib import nullcontext

import torch
from colossalai.accelerator import set_accelerator
from colossalai.accelerator.cpu_accelerator import CpuAccelerator
from colossalai.pipeline import p2p
from colossalai.zero.gemini import gemini_optimizer
from colossalai.zero.gemini.chunk import Chunk

__all__ = ["GeminiAdamW", "supply_cpu_accelerator"]


class _Stream:
    """Work on a CPU is done when the call returns: there is nothing to wait for."""

    def wait_stream(self, stream):
        pass

    def synchronize(self):
        pass


class _Accelerator(CpuAccelerator):
    """A CPU by the name of cuda, because ColossalAI compares the name where it insists on a device.

    It does so in `LowLevelZeroOptimizer._sanity_checks` and in Gemini's `Chunk.device_type`; the only other use is the
    name of a cache folder. The devices stay `torch.device("cpu")` and the backend stays gloo.
    """

    def __init__(self):
        super().__init__()
        self._name = "cuda"

    def device_count(self):  # DynamicGradScaler, for fp16
        return 1

    def synchronize(self, device=None):  # LowLevelZeroOptimizer.backward, load_states_into_optimizer
        pass

    def Stream(self, device=None, priority=0, **kwargs):  # BucketStore of ZeRO, GeminiDDP
        return _Stream()

    def current_stream(self, device=None):  # LowLevelZeroOptimizer._run_reduction
        return _Stream()

    def stream(self, stream_):  # LowLevelZeroOptimizer._run_reduction, GeminiZeROHook
        return nullcontext()

    def get_rng_state(self, device=None):  # Randomizer, in each layer under tensor parallelism
        return torch.get_rng_state()

    def set_rng_state(self, new_state, device=None):
        torch.set_rng_state(new_state)

    def manual_seed(self, seed):
        torch.manual_seed(seed)


class GeminiAdamW(torch.optim.Optimizer):
    """The least of an optimizer that Gemini can drive; the ones it lists need a compiled kernel.

    Gemini calls `step(div_scale=...)` and takes `step` in the state for an int, which rules torch's AdamW out. The
    states are named and typed like those of ColossalAI's `HybridAdam`.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None, div_scale=-1):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                grad = param.grad.float() / max(div_scale, 1)
                state = self.state[param]
                if not state:
                    zeros = torch.zeros_like(param, dtype=torch.float32)
                    state.update(step=0, exp_avg=zeros, exp_avg_sq=zeros.clone())
                state["step"] += 1
                mean = state["exp_avg"].lerp_(grad, 1 - beta1) / (1 - beta1 ** state["step"])
                variance = state["exp_avg_sq"].lerp_(grad * grad, 1 - beta2) / (1 - beta2 ** state["step"])
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.sub_(group["lr"] * mean / (variance.sqrt() + group["eps"]))


def _keep_gemini_chunks_on_the_device():
    """Gemini takes a device of type cpu for the place to offload to, and then misses the shard on the device."""
    close_chunk = Chunk.close_chunk

    def close_and_keep(chunk):
        close_chunk(chunk)
        if chunk.cuda_shard is None:
            chunk.cuda_shard, chunk.cpu_shard = chunk.cpu_shard, None

    Chunk.close_chunk = close_and_keep
    Chunk.shard_move = lambda chunk, device, force_copy=False, non_blocking=False: None


def supply_cpu_accelerator():
    """Supply, in this process, everything that the plugins ask of a device."""
    set_accelerator(_Accelerator())
    gemini_optimizer._AVAIL_OPTIM_LIST.add(GeminiAdamW)
    _keep_gemini_chunks_on_the_device()
    p2p._check_for_nccl_hccl_backend = lambda group: False  # pipelines: calls torch.distributed.is_hccl_available
    torch.Tensor.cuda = lambda tensor, *args, **kwargs: tensor  # MoECheckpointIO, gathering GPT-2's fused q, k, v
    torch.Tensor.record_stream = lambda tensor, stream: None  # LowLevelZeroOptimizer._run_reduction
    torch.cuda.current_device = lambda: torch.device("cpu")  # TorchFSDPPlugin.configure
    torch.cuda.set_device = lambda device: None  # GPT2PipelineForwards, under tensor parallelism too

"""Tiny models, boosted by every plugin in every topology that runs on CPU processes."""

import copy
import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import transformers
from colossalai.booster import Booster
from colossalai.booster.plugin import (
    GeminiPlugin,
    HybridParallelPlugin,
    LowLevelZeroPlugin,
    MoeHybridParallelPlugin,
    TorchDDPPlugin,
    TorchFSDPPlugin,
)
from cpu_accelerator import GeminiAdamW
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

SIZES = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 66,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
GPT2_SIZES = {
    "vocab_size": 256,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "resid_pdrop": 0,
    "embd_pdrop": 0,
    "attn_pdrop": 0,
    "attn_implementation": "eager",
}


def llama(**changes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **changes}))


def mixtral(**changes):
    sizes = {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, **changes}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))


def gpt2(**changes):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**GPT2_SIZES, **changes}))


def zero(stage, **options):
    return LowLevelZeroPlugin(stage=stage, precision="bf16", initial_scale=32, **options)


def hybrid(plugin=HybridParallelPlugin, tp=1, pp=1, precision="fp32", **options):
    microbatches = {"num_microbatches": 2} if pp > 1 else {}
    return plugin(tp_size=tp, pp_size=pp, precision=precision, initial_scale=1, **microbatches, **options)


def moe(ep=2, zero_stage=1, **options):
    return hybrid(MoeHybridParallelPlugin, precision="bf16", ep_size=ep, zero_stage=zero_stage, **options)


def gemini(**options):
    """Chunks so small that parameters straddle ranks; an asynchronous reduction would pin memory."""
    sizes = {"min_chunk_size_m": 0.01, "search_range_m": 1, "hidden_dim": 32}
    return GeminiPlugin(precision="bf16", enable_async_reduce=False, **sizes, **options)


def fsdp():
    """A unit for each decoder layer, and one for the rest, which holds the first three parameters by their ids."""
    wrap = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
    return TorchFSDPPlugin(auto_wrap_policy=wrap)


TOPOLOGIES = {
    "ddp": (llama, TorchDDPPlugin),
    "zero1": (llama, lambda: zero(1)),
    "zero2": (llama, lambda: zero(2)),
    "zero1-offload": (llama, lambda: zero(1, cpu_offload=True)),
    "zero2-offload": (llama, lambda: zero(2, cpu_offload=True)),
    "zero1-extra-dp2": (llama, lambda: zero(1, extra_dp_size=2)),
    "hybrid-dp2": (llama, lambda: hybrid()),
    "hybrid-dp2-zero1": (llama, lambda: hybrid(precision="bf16", zero_stage=1)),
    "hybrid-tp2": (llama, lambda: hybrid(tp=2)),
    "hybrid-tp2-bf16": (llama, lambda: hybrid(tp=2, precision="bf16")),
    "hybrid-tp2-gpt2": (gpt2, lambda: hybrid(tp=2)),
    "hybrid-pp2": (llama, lambda: hybrid(pp=2)),
    "hybrid-pp2-gpt2": (gpt2, lambda: hybrid(pp=2)),
    "hybrid-tp2-pp2": (llama, lambda: hybrid(tp=2, pp=2)),
    "hybrid-tp2-dp2-zero1": (llama, lambda: hybrid(tp=2, precision="bf16", zero_stage=1)),
    "hybrid-pp2-dp2-zero1": (llama, lambda: hybrid(pp=2, precision="bf16", zero_stage=1)),
    "moe-ep2-zero1": (mixtral, moe),
    "moe-ep2-dp4-zero1": (mixtral, moe),
    "moe-ep2-tp2-zero1": (mixtral, lambda: moe(tp=2)),
    "moe-ep2-pp2-zero1": (mixtral, lambda: moe(pp=2)),
    "moe-tp2": (mixtral, lambda: moe(ep=1, zero_stage=0, tp=2)),
    "gemini": (llama, gemini),
    "gemini-gpt2": (gpt2, gemini),
    "gemini-without-master": (llama, lambda: gemini(master_weights=False)),
    "fsdp": (llama, fsdp),
}


@dataclass
class Run:
    """A boosted model; the booster owns the process groups, so it lives as long."""

    booster: Booster
    model: Any
    optimizer: Any

    @property
    def inner(self):
        return self.optimizer.optim

    def parameters(self):
        return [parameter for group in self.inner.param_groups for parameter in group["params"]]

    def snapshot(self):
        return copy.deepcopy(self.inner.state_dict())

    def save(self, folder):
        """Save the optimizer in several shards; stock returns on each rank when that rank has done its part."""
        self.booster.save_optimizer(self.optimizer, str(folder), shard=True, size_per_shard=0.02)
        dist.barrier()

    def save_model(self, folder):
        """Save the model; each rank its own part under FSDP, which cannot gather a model on CPU."""
        if isinstance(self.booster.plugin, TorchFSDPPlugin):
            torch.save([param.detach() for param in self.parameters()], f"{folder}-of-rank-{dist.get_rank()}")
        else:
            self.booster.save_model(self.model, str(folder), shard=True)
        dist.barrier()

    @torch.no_grad()
    def load_model(self, folder):
        if isinstance(self.booster.plugin, TorchFSDPPlugin):
            saved = torch.load(f"{folder}-of-rank-{dist.get_rank()}", weights_only=True)
            for param, values in zip(self.parameters(), saved, strict=True):
                param.copy_(values)
        else:
            self.booster.load_model(self.model, str(folder), strict=False)  # Gemini knows no tied weights

    def load(self, checkpoint):
        self.booster.load_optimizer(self.optimizer, str(checkpoint))

    def train(self, steps, seed):
        """Ranks that share their part of the data draw the same batches."""
        plugin = self.booster.plugin
        data_group = plugin.zero_group if isinstance(plugin, GeminiPlugin) else getattr(plugin, "dp_group", None)
        generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank(data_group))
        for _ in range(steps):
            tokens = torch.randint(0, self.model.unwrap().config.vocab_size, (4, 8), generator=generator)
            self._step({"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens})

    def _step(self, batch):
        if getattr(self.booster.plugin, "pp_size", 1) > 1:
            loss = lambda outputs, _: outputs.loss  # noqa: E731
            self.booster.execute_pipeline(iter([batch]), self.model, loss, self.optimizer)
        else:
            self.booster.backward(self.model(**batch).loss, self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()


def boosted(topology, make_optimizer=torch.optim.AdamW, **model_changes):
    """A run of two parameter groups, or one where the plugin bears no more, always with the same weights."""
    make_model, make_plugin = TOPOLOGIES[topology]
    torch.manual_seed(7)
    model, plugin = make_model(**model_changes), make_plugin()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    if isinstance(plugin, GeminiPlugin):
        optimizer = GeminiAdamW(groups)
    elif isinstance(plugin, TorchFSDPPlugin):  # makes the optimizer again from its defaults, which AdamW refuses
        optimizer = torch.optim.Adam(model.parameters())
    else:
        optimizer = make_optimizer(groups)
    booster = Booster(plugin=plugin)
    model, optimizer, *_ = booster.boost(model, optimizer)
    return Run(booster, model, optimizer)

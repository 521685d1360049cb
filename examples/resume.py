"""Train a Hugging Face model with HybridParallelPlugin, and go on after a crash as if there had been none.

Started again, it resumes. Run it without a crash and with one, and compare: after the crash the losses are the same, to
the last digit.

Example, on two devices:
    torchrun --nproc_per_node 2 examples/resume.py uninterrupted
    torchrun --nproc_per_node 2 examples/resume.py interrupted --crash-before 5
    torchrun --nproc_per_node 2 examples/resume.py interrupted
"""

import argparse
from pathlib import Path

import colossalai
import torch
import torch.distributed as dist
from colossalai.accelerator import get_accelerator
from colossalai.booster import Booster
from colossalai.booster.plugin import HybridParallelPlugin
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = 8
STEPS_BETWEEN_SAVES = 3
BATCH, TOKENS = 4, 16
CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=TOKENS,
)


class Checkpoints:
    """A folder of checkpoints, named by the number of steps before them; ``newest`` names one that is complete."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.newest = self.folder / "newest"

    def save(self, booster, model, optimizer, steps):
        """Save on all ranks, as every plugin needs it; a save returns when all ranks have committed it."""
        checkpoint = self.folder / str(steps)
        booster.save_model(model, checkpoint / "model", shard=True)
        booster.save_optimizer(optimizer, checkpoint / "optimizer", shard=True)
        if dist.get_rank() == 0:
            begun = self.folder / "newest.begun"
            begun.write_text(str(steps))
            begun.replace(self.newest)

    def resume(self, booster, model, optimizer):
        """Load the newest checkpoint if there is one, and say how many steps were taken before it."""
        if not self.newest.exists():
            return 0
        steps = int(self.newest.read_text())
        booster.load_model(model, self.folder / str(steps) / "model")
        booster.load_optimizer(optimizer, self.folder / str(steps) / "optimizer")
        return steps


def batch_of(step, data_rank):
    """Counting from random numbers, the same after a crash; ranks that share a part of the data get the same ones."""
    generator = torch.Generator().manual_seed(1000 * step + data_rank)
    begin = torch.randint(CONFIG.vocab_size, (BATCH, 1), generator=generator)
    tokens = ((begin + torch.arange(TOKENS)) % CONFIG.vocab_size).to(get_accelerator().get_current_device())
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def train(booster, model, optimizer, checkpoints, crash_before):
    data_rank = dist.get_rank(booster.plugin.dp_group)
    for step in range(checkpoints.resume(booster, model, optimizer), STEPS):
        if step == crash_before:
            raise SystemExit(f"crashed before step {step}")
        loss = model(**batch_of(step, data_rank)).loss
        booster.backward(loss, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item()!r}", flush=True)
        if (step + 1) % STEPS_BETWEEN_SAVES == 0:
            checkpoints.save(booster, model, optimizer, step + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", help="the folder of the checkpoints")
    parser.add_argument("--tp-size", type=int, default=2, help="ranks that share each layer; the rest share data")
    parser.add_argument("--crash-before", type=int, metavar="STEP", help="end without a save before this step")
    arguments = parser.parse_args()

    colossalai.launch_from_torch(verbose=False)
    # In bf16 the losses after a crash are close, not equal: ColossalAI saves the weights rounded, no master weights.
    plugin = HybridParallelPlugin(tp_size=arguments.tp_size, pp_size=1, precision="fp32")
    booster = Booster(plugin=plugin)
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG)  # or LlamaForCausalLM.from_pretrained(...)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, *_ = booster.boost(model, optimizer)
    train(booster, model, optimizer, Checkpoints(arguments.checkpoints), arguments.crash_before)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

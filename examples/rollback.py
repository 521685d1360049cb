"""Roll a training run back to its checkpoint three ways: stock ColossalAI, patched, and native.

A classifier of scikit-learn's digits is trained through ColossalAI's Booster. Phase 1 trains the head alone, so the
checkpoint at its end holds no momentum for the backbone. Phase 2 trains the whole network, first with a learning rate
that is too high: when the loss has doubled, the run goes back to the checkpoint and starts phase 2 again with a lower
one. Parameters and batches are then as they were at the checkpoint, and with stock ColossalAI the backbone's momentum
is that of the attempt that was given up. Such momentum need not hurt, but the run is no longer the checkpoint's.

Stock, patched and native differ in nothing but the call that loads the optimizer. Each is a process of its own, on the
CPU; before the classifier, each rolls back a model of one parameter, whose right value can be checked by hand.

Stock ColossalAI 0.5.0 cannot load a sharded optimizer with state on a machine without an accelerator: it waits for a
device, and on a CPU that raises. So the stock process, and no other, gets a CPU accelerator whose ``synchronize`` does
nothing. Nothing else of ColossalAI is changed, and what the load leaves in the optimizer does not depend on the device.

Prints one table and draws the loss curves, into benchmarks/results/rollback.png unless another file is given. The exit
code is 0 when patched equals native exactly and stock does not, and 1 otherwise.

Example:
    python examples/rollback.py curves.png
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

PICTURE = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "rollback.png"

HEAD = {"steps": 300, "rate": 0.1, "seed": 1}
ATTEMPT = {"steps": 50, "rate": 0.3, "seed": 2}
RETRY = {"steps": 40, "rate": 0.05, "seed": 2}
BATCH_SIZE = 64
COMPARED_STEP = 5


class Checkpoint:
    """One checkpoint of a model and an optimizer, written both by Booster and by torch."""

    def __init__(self, booster, folder):
        self.booster = booster
        self.model = str(folder / "model")
        self.optimizer = str(folder / "optimizer")
        self.native_optimizer = folder / "optimizer.pt"

    def save(self, model, optimizer):
        self.booster.save_model(model, self.model, shard=True)
        self.booster.save_optimizer(optimizer, self.optimizer, shard=True)
        torch.save(optimizer.state_dict(), self.native_optimizer)

    def load(self, model, optimizer, load_optimizer):
        self.booster.load_model(model, self.model)
        load_optimizer(self, optimizer)


def load_stock(checkpoint, optimizer):
    from colossalai.accelerator.cpu_accelerator import CpuAccelerator

    CpuAccelerator.synchronize = lambda self, device=None: None  # the release's raises: a CPU is not waited for
    checkpoint.booster.load_optimizer(optimizer, checkpoint.optimizer)


def load_patched(checkpoint, optimizer):
    checkpoint.booster.load_optimizer(optimizer, checkpoint.optimizer)


def load_native(checkpoint, optimizer):
    optimizer.load_state_dict(torch.load(checkpoint.native_optimizer, weights_only=True))


LOADERS = {"stock": load_stock, "patched": load_patched, "native": load_native}
PATCH = {"stock": "off", "patched": "on", "native": "off"}


def start_booster():
    # Not at the top: the process that only compares the runs would wait seconds for it.
    from colossalai.booster import Booster
    from colossalai.booster.plugin import TorchDDPPlugin
    from colossalai.initialize import launch

    launch(rank=0, world_size=1, host="127.0.0.1", port=0, verbose=False)
    return Booster(plugin=TorchDDPPlugin())


def roll_back_one_parameter(booster, folder, load_optimizer):
    """Its value after one step of 0.1 from 1.0 with gradient 1, rolled back to before its first step: 0.9 is right."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    model, optimizer, *_ = booster.boost(layer, torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9))
    checkpoint = Checkpoint(booster, folder)

    def step():
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()

    checkpoint.save(model, optimizer)
    step()
    checkpoint.load(model, optimizer, load_optimizer)
    step()
    return layer.weight.detach()


class Digits:
    """The images and labels of scikit-learn's digits, and the same batches for every process."""

    def __init__(self):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images / 16, dtype=torch.float32)
        self.labels = torch.tensor(labels)

    def batches(self, steps, seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            chosen = torch.randint(len(self.labels), (BATCH_SIZE,), generator=generator)
            yield self.images[chosen], self.labels[chosen]

    @torch.no_grad()
    def loss(self, model):
        return cross_entropy(model(self.images), self.labels).item()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, images):
        return self.head(self.backbone(images))


def train(model, optimizer, digits, steps, rate, seed):
    """Train, and yield after each step the loss over all digits that the step began with."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    for images, labels in digits.batches(steps, seed):
        loss = digits.loss(model)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        yield loss


def until_doubled(losses):
    """The losses up to the first one that is more than twice what they began with."""
    seen = []
    for loss in losses:
        seen.append(loss)
        if loss > 2 * seen[0]:
            break
    return seen


def roll_back_classifier(booster, folder, load_optimizer):
    torch.manual_seed(0)
    digits, classifier, checkpoint = Digits(), Classifier(), Checkpoint(booster, folder)
    sgd = torch.optim.SGD(classifier.parameters(), lr=HEAD["rate"], momentum=0.9)

    classifier.backbone.requires_grad_(False)
    model, optimizer, *_ = booster.boost(classifier, sgd)
    head_losses = list(train(model, optimizer, digits, **HEAD))
    checkpoint.save(model, optimizer)

    classifier.backbone.requires_grad_(True)
    # Boosted again, since DistributedDataParallel looks only once at which parameters are trained.
    model, optimizer, *_ = booster.boost(classifier, sgd)
    attempt_losses = until_doubled(train(model, optimizer, digits, **ATTEMPT))

    checkpoint.load(model, optimizer, load_optimizer)
    state = {key: value["momentum_buffer"].clone() for key, value in optimizer.state_dict()["state"].items()}
    losses = list(train(model, optimizer, digits, **RETRY))
    return {
        "before": {"head": head_losses, "attempt": attempt_losses},
        "state": state,
        "losses": losses,
        "parameters": classifier.state_dict(),
    }


def record(way, folder):
    """What the process of one way does: both runs, with all that is compared afterwards in one file."""
    torch.set_num_threads(1)
    booster = start_booster()
    one_parameter = roll_back_one_parameter(booster, folder / "one_parameter", LOADERS[way])
    run = roll_back_classifier(booster, folder / "classifier", LOADERS[way])
    torch.save(run | {"one parameter": one_parameter}, folder / "run.pt")
    torch.distributed.destroy_process_group()


def start_process(way):
    """Record the run of one way in a process of its own, and return it."""
    # Without a GPU, so that the numbers are the same on every machine.
    environment = os.environ | {"COLOSSALAI_PATCH": PATCH[way], "CUDA_VISIBLE_DEVICES": ""}
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", __file__, way, folder]
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        if process.returncode != 0:
            raise SystemExit(f"The {way} run failed:\n{process.stdout}{process.stderr}")
        return torch.load(Path(folder, "run.pt"), weights_only=True)


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right


def find_failures(runs):
    stock, patched, native = runs["stock"], runs["patched"], runs["native"]
    if not same(patched, native):
        yield "patched differs from native"
    if not same(stock["before"], native["before"]):
        yield "stock differs from native before the rollback"
    for part in ("one parameter", "state", "parameters"):
        if same(stock[part], native[part]):
            yield f"stock equals native in: {part}"


def distance(native, part, run):
    """The largest difference in one part of two runs; SGD treats momentum that is absent as zeros, and so does this."""
    left, right, absent = run[part], native[part], torch.zeros(())
    return max((left.get(name, absent) - right.get(name, absent)).abs().max().item() for name in left | right)


def make_table(runs):
    native = runs["native"]
    caption = f"State is compared after the load, parameters {RETRY['steps']} steps later."
    table = Table("", *runs, title="One checkpoint, loaded three ways", caption=caption)
    for column in table.columns[1:]:
        column.justify = "right"

    def add_row(quantity, form, measure):
        table.add_row(quantity, *(format(measure(run), form) for run in runs.values()))

    add_row("one parameter, one step after 1.0", ".2f", lambda run: run["one parameter"].item())
    add_row("parameters with stale state", "d", lambda run: len(run["state"].keys() - native["state"].keys()))
    for part in ("state", "parameters"):
        add_row(f"{part}: largest difference from native", ".3g", partial(distance, native, part))
    add_row(f"training loss after {COMPARED_STEP} steps", ".3f", lambda run: run["losses"][COMPARED_STEP])
    add_row(f"training loss, mean of {RETRY['steps']} steps", ".3f", lambda run: sum(run["losses"]) / RETRY["steps"])
    return table


def draw(runs, picture):
    head, attempt = runs["native"]["before"].values()
    losses = {way: run["losses"] for way, run in runs.items()}
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(range(-10, 1), [*head[-10:], attempt[0]], color="grey", linewidth=2, label="phase 1: head only")
    axes.plot(attempt, ":", color="grey", linewidth=2, label="phase 2, learning rate too high: given up")
    axes.plot(len(attempt) - 1, attempt[-1], "x", color="grey", markersize=9, markeredgewidth=2)
    axes.plot(losses["native"], color="skyblue", linewidth=7, label="phase 2 after the rollback: native")
    axes.plot(losses["patched"], "--", color="navy", label="phase 2 after the rollback: patched")
    axes.plot(losses["stock"], color="crimson", linewidth=2, label="phase 2 after the rollback: stock")
    axes.plot(0, attempt[0], "o", color="black", markersize=8, zorder=3)
    axes.annotate("checkpoint", (0, attempt[0]), (-10, -20), textcoords="offset points", ha="right")
    axes.set(xlabel="steps from the checkpoint", ylabel="training loss, all digits", ylim=(0, None))
    axes.set_title("Stock ColossalAI keeps the momentum of the attempt that was given up")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=160)


def main(picture=PICTURE):
    console = Console()
    with console.status("Training three times, each in a process of its own"), ThreadPoolExecutor() as pool:
        runs = dict(zip(LOADERS, pool.map(start_process, LOADERS), strict=True))
    console.print(make_table(runs))
    draw(runs, picture)
    console.print(f"The loss curves are in {picture}", soft_wrap=True)
    sys.exit("\n".join(find_failures(runs)) or 0)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        record(sys.argv[1], Path(sys.argv[2]))
    else:
        main(*map(Path, sys.argv[1:]))

"""What training scripts do with checkpoints, and what is in the files, told by a reader that knows no plugin."""

import copy
import functools

import torch
import torch.distributed as dist
from checkpoints import in_order
from colossalai.checkpoint_io import GeneralCheckpointIO
from comparison import assert_same
from topologies import boosted, llama

MEGABYTES_OF_A_SHARD = 0.02
KINDS = ("the model in shards", "the model in one file", "the optimizer in shards", "the optimizer in one file")


def trained(topology="ddp", steps=2):
    run = boosted(topology)
    run.train(steps, seed=1)
    return run


def save(run, kind, folder, **options):
    """Save one kind of thing below ``folder``, which may not exist where stock makes it, and return its path."""
    path, shard = path_of(kind, folder, **options), kind.endswith("shards")
    folder.mkdir(parents=True, exist_ok=True)
    ask_to_save(run, kind, path, shard, **options)
    return path


def path_of(kind, folder, use_async=False):
    suffix = "" if kind.endswith("shards") else (".safetensors" if use_async else ".bin")
    return folder / (kind.split()[1] + suffix)


def ask_to_save(run, kind, path, shard, **options):
    if kind.split()[1] == "model":
        run.booster.save_model(run.model, str(path), shard=shard, size_per_shard=MEGABYTES_OF_A_SHARD, **options)
    else:
        sizes = {"size_per_shard": MEGABYTES_OF_A_SHARD}
        run.booster.save_optimizer(run.optimizer, str(path), shard=shard, **sizes, **options)


def load(run, kind, path):
    if kind.split()[1] == "model":
        run.booster.load_model(run.model, str(path))
    else:
        run.booster.load_optimizer(run.optimizer, str(path))


def content(run, kind):
    """What a checkpoint of ``kind`` has to hold; with ZeRO, of the optimizer, a collective."""
    source = run.model.unwrap() if kind.split()[1] == "model" else run.optimizer
    return in_order(copy.deepcopy(dict(source.state_dict())))


def held(run):
    """What this rank has in its model and its optimizer."""
    return in_order(copy.deepcopy(dict(run.model.unwrap().state_dict()))), in_order(run.snapshot())


def content_of_files(kind, path, dtype=torch.float32):
    """What a process on its own reads from a checkpoint of ``topologies.llama``."""
    model = llama().to(dtype if kind.split()[1] == "model" else torch.float32)
    if kind.split()[1] == "model":
        GeneralCheckpointIO().load_model(model, str(path))
        return in_order(dict(model.state_dict()))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors}])
    GeneralCheckpointIO().load_optimizer(optimizer, str(path))
    return in_order(optimizer.state_dict())


def assert_holds(path, kind, expected):
    assert_same(content_of_files(kind, path, _dtype(expected)), expected, str(path))


def _dtype(expected):
    return next((value.dtype for value in expected.values() if isinstance(value, torch.Tensor)), torch.float32)


def on_rank(rank):
    return dist.get_rank() == rank


def one_after_the_other(function, *arguments):
    for rank in range(dist.get_world_size()):
        if on_rank(rank):
            function(*arguments)
        dist.barrier()


def files_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def named(*functions, ranks=2):
    """The checks by the names of their functions."""
    return {function.__name__: (ranks, function) for function in functions}


def for_each(function, cases, ranks=2):
    """The checks of one function, by its name and its arguments."""
    arguments = [(case,) if isinstance(case, str) else case for case in cases]
    return {
        f"{function.__name__}: {', '.join(values)}": (ranks, functools.partial(function, *values))
        for values in arguments
    }

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
MODEL, MODEL_FILE, OPTIMIZER, OPTIMIZER_FILE = KINDS
SHARDED = (MODEL, OPTIMIZER)
FILES = (MODEL_FILE, OPTIMIZER_FILE)


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
    source = _unwrapped(run.model) if kind.split()[1] == "model" else run.optimizer
    return in_order(copy.deepcopy(dict(source.state_dict())))


def held(run):
    """What this rank has in its model and its optimizer."""
    return in_order(copy.deepcopy(dict(run.model.unwrap().state_dict()))), in_order(run.snapshot())


def _unwrapped(model):
    return model.unwrap() if hasattr(model, "unwrap") else model


def assert_loads_of(run, kind, path, expected):
    load(run, kind, path)
    assert_same(content(run, kind), expected)


def save_in_the_background(run, folder, kinds=SHARDED):
    return {kind: save(run, kind, folder, use_async=True) for kind in kinds}


def contents(run, kinds=SHARDED):
    return {kind: content(run, kind) for kind in kinds}


def assert_restores_all(run, paths, expected):
    """Loading everything gives what was there at the time of the save."""
    for kind, path in paths.items():
        load(run, kind, path)
    for kind in paths:
        assert_same(content(run, kind), expected[kind])


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


def methods_of(kind):
    """The methods of a CheckpointIO that a save and a load of this kind go through."""
    what, form = kind.split()[1], "sharded" if kind.endswith("shards") else "unsharded"
    return [f"{verb}_{name}" for verb in ("save", "load") for name in (what, f"{form}_{what}")]


def overriding(checkpoint_io_class, method):
    """A class as scripts derive them: it notes the call in ``calls``, and leaves the work to the class above it."""

    def noting(self, *arguments, **options):
        Own.calls.append(method)
        return getattr(super(Own, self), method)(*arguments, **options)

    Own = type("Own", (checkpoint_io_class,), {method: noting, "calls": []})
    return Own


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

"""Every optimizer of ``pytorch_optimizer`` that steps natively is loaded as natively, from every format."""

import contextlib
import copy
import inspect
import sys

import pytest
import torch
from checkpoints import MEGABYTES_OF_A_SHARD
from colossalai.checkpoint_io import GeneralCheckpointIO
from comparison import assert_same

pytorch_optimizer = pytest.importorskip("pytorch_optimizer")

WAYS = {"sharded": (True, False), "one file": (False, False), "safetensors": (True, True)}
WITH_A_DEQUE = {"adashift"}  # of which torch's weights_only refuses the items, also where the class is allowed
OPTIMIZERS = [name for name in pytorch_optimizer.get_supported_optimizers() if name not in WITH_A_DEQUE]


def stepped(name, seed):
    """An optimizer after two steps, or a skip where it cannot step by itself."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    make = pytorch_optimizer.load_optimizer(name)
    of_model = "model" in inspect.signature(make.__init__).parameters
    try:
        optimizer = make(model if of_model else model.parameters())
        for _ in range(2):
            model(torch.randn(3, 4)).square().sum().backward(create_graph=True)
            optimizer.step()
            optimizer.zero_grad()
        copied = make(model if of_model else model.parameters())
        copied.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    except Exception as error:
        pytest.skip(f"it fails natively: {error!r:.80}")
    return optimizer


def classes_of_the_package():
    """What a script allows that uses these optimizers."""
    modules = [module for name, module in sys.modules.items() if name.startswith("pytorch_optimizer.")]
    named = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return sorted((item for item in named if item.__module__.startswith("pytorch_optimizer.")), key=str)


def allowing(classes):
    with_names = getattr(torch.serialization, "safe_globals", None)
    return contextlib.nullcontext() if with_names is None else with_names(classes)


def saved(optimizer, folder, way):
    shard, use_async = WAYS[way]
    path = str(folder / ("optimizer" if shard else "optimizer.bin"))
    checkpoint_io = GeneralCheckpointIO()
    checkpoint_io.save_optimizer(optimizer, path, shard=shard, size_per_shard=MEGABYTES_OF_A_SHARD, use_async=use_async)
    checkpoint_io._sync_io()
    return path


def comparable(value):
    """Plain data: the attributes of what is of a class of the package, and no address of what native made of a text."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(comparable, value)]
    if isinstance(value, str):
        return value.split(" at 0x")[0]
    if type(value).__module__.startswith("pytorch_optimizer.") and hasattr(value, "__dict__"):
        return {"class": type(value), **comparable({k: v for k, v in vars(value).items() if not k.startswith("__")})}
    return value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_loaded_as_natively(tmp_path, name, way):
    source, restored, native = stepped(name, 0), stepped(name, 1), stepped(name, 1)
    native.load_state_dict(copy.deepcopy(source.state_dict()))
    with allowing(classes_of_the_package()):
        GeneralCheckpointIO().load_optimizer(restored, saved(source, tmp_path, way))
    assert_same(comparable(restored.state_dict()), comparable(native.state_dict()))

"""How to make and step every optimizer, in every variant that changes what it stores.

The classes are found by walking the modules and the variants by reading the signatures, so a new optimizer in a new
release is covered without an edit here.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import bitsandbytes
import colossalai.nn.optimizer
import torch
from checkpoints import in_order
from comparison import assert_same, assert_same_parameters
from training import set_gradients, split_into_groups

OPTIONS = {
    "amsgrad": {"amsgrad": True},
    "centered": {"centered": True},
    "differentiable": {"differentiable": True},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "maximize": {"maximize": True},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "lr": {"lr": torch.tensor(0.1)},
}


NOT_ON_CPU = {
    "CPUAdam": "its kernel is compiled for machines with a device",
    "DistGaloreAwamW": "it passes bitsandbytes arguments that newer ones do not have",
    "DistributedAdaFactor": "it steps only after setup_distributed",
    "DistributedCAME": "it steps only after setup_distributed",
    "DistributedLamb": "it steps only after setup_distributed",
    "FusedAdam": "its kernel needs a device",
    "FusedLAMB": "its kernel needs a device",
    "FusedSGD": "its kernel needs a device",
    "GaLoreAdamW8bit": "it passes bitsandbytes arguments that newer ones do not have",
    "HybridAdam": "its kernel is compiled for machines with a device",
}


def small_shape(position):
    return 2 + position, 3


def quantised_shape(position):
    """Large enough for bitsandbytes to quantise the state."""
    return 32 + position, 128


def step_dense(optimizer, parameters, generator):
    set_gradients(parameters, generator)
    optimizer.step()


def step_sparse(optimizer, parameters, generator):
    set_gradients(parameters, generator)
    for parameter in parameters:
        parameter.grad = parameter.grad.to_sparse()
    optimizer.step()


def step_with_closure(optimizer, parameters, generator):
    set_gradients(parameters, generator)
    targets = [parameter.grad.clone() for parameter in parameters]

    @torch.no_grad()
    def closure():
        for parameter, target in zip(parameters, targets, strict=True):
            parameter.grad = parameter - target
        return sum(parameter.grad.square().sum() / 2 for parameter in parameters)

    optimizer.step(closure)


@dataclass(frozen=True)
class Recipe:
    """One optimizer in one variant.

    Attributes:
        make: takes parameters or groups and gives the optimizer.
        one_group: whether the optimizer takes no more than one group.
        step: sets the gradients of the given parameters, all with one generator, and steps.
        shape: the shape of the parameter at a position.
    """

    make: Callable
    one_group: bool = False
    step: Callable = step_dense
    shape: Callable = small_shape


def classes_of(module):
    found = {name: value for name, value in vars(module).items() if inspect.isclass(value)}
    return {name: value for name, value in found.items() if issubclass(value, torch.optim.Optimizer)}


def torch_recipes():
    special = {
        "LBFGS": {"one_group": True, "step": step_with_closure},
        "SparseAdam": {"step": step_sparse},
    }
    for name, optimizer_class in classes_of(torch.optim).items():
        if optimizer_class is torch.optim.Optimizer:
            continue
        more = special.get(name, {})
        yield name, Recipe(optimizer_class, **more)
        for option in sorted(OPTIONS.keys() & inspect.signature(optimizer_class).parameters.keys()):
            yield f"{name}-{option}", Recipe(functools.partial(optimizer_class, **OPTIONS[option]), **more)


def colossalai_recipes():
    arguments = {
        "Adafactor": {"relative_step": False, "beta1": 0.9},
        "CAME": {"lr": 0.1},
        "GaLoreAdafactor": {"relative_step": False},
        "Lars": {"momentum": 0.9},
    }
    for name, optimizer_class in classes_of(colossalai.nn.optimizer).items():
        if name not in NOT_ON_CPU:
            yield f"colossalai-{name}", Recipe(functools.partial(optimizer_class, **arguments.get(name, {})))


def bitsandbytes_recipes():
    for name, optimizer_class in classes_of(bitsandbytes.optim).items():
        if not name.endswith("8bit") or name.startswith("Paged"):
            continue
        required = {"momentum": 0.9} if "momentum" in inspect.signature(optimizer_class).parameters else {}
        make = functools.partial(optimizer_class, lr=0.1, **required)
        yield f"bitsandbytes-{name}", Recipe(make, shape=quantised_shape)


RECIPES = {**dict(torch_recipes()), **dict(colossalai_recipes()), **dict(bitsandbytes_recipes())}


class Run:
    """An optimizer over parameters of its own, and the steps taken with it."""

    def __init__(self, name, dtype, group_count):
        self.recipe = RECIPES[name]
        requires_grad = "differentiable" not in name  # a leaf that needs a gradient cannot be changed differentiably
        generator = torch.Generator().manual_seed(0)
        self.parameters = [
            torch.nn.Parameter(torch.randn(self.recipe.shape(position), generator=generator).to(dtype), requires_grad)
            for position in range(3)
        ]
        self.optimizer = self.recipe.make(self._groups(group_count))

    def _groups(self, count):
        if self.recipe.one_group:
            return self.parameters
        groups = split_into_groups(self.parameters, count)
        return [group | {"weight_decay": 0.01 * position} for position, group in enumerate(groups)]

    def step(self, count, seed, without_gradient=()):
        """Step with gradients that only ``seed`` decides; the parameters at the given positions get none."""
        generator = torch.Generator().manual_seed(seed)
        trained = [parameter for position, parameter in enumerate(self.parameters) if position not in without_gradient]
        for _ in range(count):
            self.recipe.step(self.optimizer, trained, generator)
        return self


def assert_same_run(actual, expected):
    assert type(actual.optimizer.state) is type(expected.optimizer.state)
    assert_same(in_order(actual.optimizer.state_dict()), in_order(expected.optimizer.state_dict()), "state_dict()")
    assert_same_parameters(actual.parameters, expected.parameters)

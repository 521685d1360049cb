"""Small training runs that can be repeated exactly."""

import torch


def make_parameters(count=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.nn.Parameter(torch.randn(2 + position, 3, generator=generator, dtype=torch.float64).to(dtype))
        for position in range(count)
    ]


def split_into_groups(parameters, group_count):
    """Groups that differ in their learning rate, the first one taking what does not divide."""
    rest = len(parameters) - group_count + 1
    groups = [parameters[:rest], *([parameter] for parameter in parameters[rest:])]
    return [{"params": group, "lr": 0.1 / (position + 1)} for position, group in enumerate(groups)]


def parameters_of(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def set_gradients(parameters, generator):
    for parameter in parameters:
        gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.grad = gradient.to(parameter.dtype)


def train(optimizer, steps, seed=1):
    """Step with the same gradients for every optimizer over parameters of the same shapes."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        set_gradients(parameters_of(optimizer), generator)
        optimizer.step()

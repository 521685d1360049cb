"""A small training run without a plugin, in one process."""

import torch
from colossalai.booster import Booster
from comparison import assert_same
from scripts import content, load
from topologies import Run


def alone(seed=0, booster=None):
    """A small model with a trained optimizer, boosted without a plugin."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.ReLU(), torch.nn.Linear(50, 60))
    booster = booster or Booster()
    model, optimizer, *_ = booster.boost(model, torch.optim.AdamW(model.parameters()))
    run = Run(booster, model, optimizer)
    step(run)
    return run


def step(run):
    run.model(torch.randn(4, 40)).square().mean().backward()
    run.optimizer.step()
    run.optimizer.zero_grad()


def assert_restores(run, kind, path):
    """A fresh process's optimizer or model becomes what the run has."""
    other = alone(seed=9)
    load(other, kind, path)
    assert_same(content(other, kind), content(run, kind))

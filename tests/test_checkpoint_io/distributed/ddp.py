"""On every rank, a load through Booster into a trained optimizer equals native, and so do three more steps."""

import sys

import colossalai
import torch
from colossalai.booster import Booster
from colossalai.booster.plugin import TorchDDPPlugin
from comparison import assert_same_optimizer, assert_same_parameters


def boosted(booster):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer, *_ = booster.boost(model, optimizer)
    return model, optimizer


def train(booster, model, optimizer, seed, trained_layers="02"):
    """One step on data of this rank's own; layers that are left out get no gradient, so no state."""
    torch.manual_seed(seed + torch.distributed.get_rank())
    booster.backward(model(torch.randn(16, 4)).square().mean(), optimizer)
    for name, parameter in model.unwrap().named_parameters():
        if name[0] not in trained_layers:
            parameter.grad = None
    optimizer.step()
    optimizer.zero_grad()


def main(checkpoint):
    colossalai.launch_from_torch(seed=0)
    booster = Booster(plugin=TorchDDPPlugin())
    model, optimizer = boosted(booster)
    train(booster, model, optimizer, seed=10, trained_layers="2")
    booster.save_optimizer(optimizer, checkpoint, shard=True)
    saved = optimizer.state_dict()
    torch.distributed.barrier()

    (model, restored), (native_model, native) = boosted(booster), boosted(booster)
    for some_model, some_optimizer in ((model, restored), (native_model, native)):
        train(booster, some_model, some_optimizer, seed=20)
    booster.load_optimizer(restored, checkpoint)
    native.unwrap().load_state_dict(saved)
    assert_same_optimizer(restored.unwrap(), native.unwrap())
    for step in range(3):
        train(booster, model, restored, seed=30 + step)
        train(booster, native_model, native, seed=30 + step)
        assert_same_optimizer(restored.unwrap(), native.unwrap())
        assert_same_parameters(model.unwrap().parameters(), native_model.unwrap().parameters())
    sys.stdout.write(f"rank {torch.distributed.get_rank()} equals native\n")


if __name__ == "__main__":
    main(sys.argv[1])

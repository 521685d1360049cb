"""The memory that the states of a shard come to."""

import pytest
import torch
from comparison import assert_same
from written_checkpoints import write_sharded

from colossalai_patch.optimizer_checkpoint import load_optimizer_checkpoint
from colossalai_patch.optimizer_checkpoint.content import NUMBERS_THAT_TORCH_COPIES_ALONE
from colossalai_patch.optimizer_checkpoint.shard import Shard, read_shard


@pytest.fixture
def pinned(monkeypatch):
    """Stand in for a device: parameters say that they are there, and what is pinned is ordinary memory, noted here."""

    def noted(tensor, pin_memory=False):
        if pin_memory:
            pinned.append(tensor.nbytes)
        return empty_like(tensor)

    pinned, empty_like = [], torch.empty_like
    monkeypatch.setattr(torch, "empty_like", noted)
    monkeypatch.setattr(torch.nn.Parameter, "is_cuda", True, raising=False)
    return pinned


NUMBERS = NUMBERS_THAT_TORCH_COPIES_ALONE


def make_optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(numbers)) for numbers in (NUMBERS, 3)], momentum=0.9)


def write_checkpoint(folder):
    optimizer = make_optimizer()
    for number, param in enumerate(optimizer.param_groups[0]["params"]):
        optimizer.state[param] = {"momentum_buffer": torch.full_like(param, float(number), requires_grad=False)}
    write_sharded(optimizer.state_dict(), folder)
    return optimizer.state_dict(), folder / "pytorch_optim.bin.index.json"


def test_large_states_for_a_device_come_through_pinned_memory_when_host_memory_is_plenty(tmp_path, pinned):
    saved, index_file = write_checkpoint(tmp_path)
    optimizer = make_optimizer()
    load_optimizer_checkpoint(optimizer, index_file, low_cpu_mem_mode=False)
    assert pinned == [NUMBERS * 4]
    assert_same(optimizer.state_dict(), saved)


def test_no_memory_is_pinned_when_host_memory_is_scarce(tmp_path, pinned):
    load_optimizer_checkpoint(make_optimizer(), write_checkpoint(tmp_path)[1], low_cpu_mem_mode=True)
    assert pinned == []


def test_no_memory_is_pinned_when_states_stay_on_the_host(tmp_path, pinned):
    optimizer = make_optimizer()
    optimizer.param_groups[0]["params"][1].is_cuda = False
    load_optimizer_checkpoint(optimizer, write_checkpoint(tmp_path)[1], low_cpu_mem_mode=False)
    assert pinned == []


@pytest.mark.parametrize("in_zip", [True, False])
def test_what_torch_reads_is_not_copied_again(tmp_path, monkeypatch, in_zip):
    def noted(*arguments, **options):
        loaded.append(load(*arguments, **options))
        return loaded[-1]

    loaded, load = [], torch.load
    monkeypatch.setattr(torch, "load", noted)
    path = tmp_path / "shard.bin"
    torch.save({0: {"exp_avg": torch.ones(2, dtype=torch.complex64)}}, path, _use_new_zipfile_serialization=in_zip)
    states = read_shard(Shard(path, frozenset([0])))
    assert states[0]["exp_avg"] is loaded[0][0]["exp_avg"]

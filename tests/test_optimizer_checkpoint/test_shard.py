"""The memory that the states of a shard come to."""

import re

import pytest
import torch
from comparison import assert_same
from written_checkpoints import write_sharded

from colossalai_patch.optimizer_checkpoint import CheckpointError, load_optimizer_checkpoint, open_optimizer_file
from colossalai_patch.optimizer_checkpoint.checksum import checksum
from colossalai_patch.optimizer_checkpoint.content import NUMBERS_THAT_TORCH_COPIES_ALONE
from colossalai_patch.optimizer_checkpoint.conversion import convert, sharded
from colossalai_patch.optimizer_checkpoint.shard import Shard, read_shard
from colossalai_patch.optimizer_checkpoint.source import open_source
from colossalai_patch.optimizer_checkpoint.torch_file import load_torch_file


class Device:
    """Stands in for a device: what is pinned is ordinary memory, noted here, unless nothing can be pinned."""

    def __init__(self):
        self.pinned, self.pins, self.empty_like = [], True, torch.empty_like

    def memory_like(self, tensor, pin_memory=False):
        if pin_memory and not self.pins:
            raise RuntimeError("CUDA error: OS call failed or operation not supported on this OS")
        self.pinned += [tensor.nbytes] if pin_memory else []
        return self.empty_like(tensor)


@pytest.fixture
def device(monkeypatch):
    """A device, on which all parameters say that they are."""
    device = Device()
    monkeypatch.setattr(torch, "empty_like", device.memory_like)
    monkeypatch.setattr(torch.nn.Parameter, "is_cuda", True, raising=False)
    return device


NUMBERS = NUMBERS_THAT_TORCH_COPIES_ALONE


def make_optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(numbers)) for numbers in (NUMBERS, 3)], momentum=0.9)


@pytest.fixture(params=["with checksums", "without checksums"])
def checkpoint(request, tmp_path):
    """An index file, and the state dict that was saved."""
    optimizer = make_optimizer()
    for number, param in enumerate(optimizer.param_groups[0]["params"]):
        optimizer.state[param] = {"momentum_buffer": torch.full_like(param, float(number), requires_grad=False)}
    folder = write_sharded(optimizer.state_dict(), tmp_path / "without")
    if request.param == "with checksums":
        source = open_source(folder)
        folder = tmp_path / "with"
        convert(source, sharded(folder, source, None, None, None))
    return folder / "pytorch_optim.bin.index.json", optimizer.state_dict()


def test_large_states_for_a_device_come_through_pinned_memory_when_host_memory_is_plenty(checkpoint, device):
    index_file, saved = checkpoint
    optimizer = make_optimizer()
    load_optimizer_checkpoint(optimizer, index_file, low_cpu_mem_mode=False)
    assert device.pinned == [NUMBERS * 4]
    assert_same(optimizer.state_dict(), saved)


def test_states_come_through_other_memory_when_none_can_be_pinned(checkpoint, device):
    device.pins = False
    index_file, saved = checkpoint
    optimizer = make_optimizer()
    load_optimizer_checkpoint(optimizer, index_file, low_cpu_mem_mode=False)
    assert_same(optimizer.state_dict(), saved)


def test_no_memory_is_pinned_when_host_memory_is_scarce(checkpoint, device):
    load_optimizer_checkpoint(make_optimizer(), checkpoint[0], low_cpu_mem_mode=True)
    assert device.pinned == []


def test_no_memory_is_pinned_when_states_stay_on_the_host(checkpoint, device):
    optimizer = make_optimizer()
    optimizer.param_groups[0]["params"][1].is_cuda = False
    load_optimizer_checkpoint(optimizer, checkpoint[0], low_cpu_mem_mode=False)
    assert device.pinned == []


def test_no_memory_is_pinned_when_all_states_wait_on_the_host_for_a_hook(checkpoint, device):
    optimizer = make_optimizer()
    optimizer.register_load_state_dict_pre_hook(lambda optimizer, state_dict: None)
    load_optimizer_checkpoint(optimizer, checkpoint[0], low_cpu_mem_mode=False)
    assert device.pinned == []


@pytest.fixture
def loaded(monkeypatch):
    """What ``torch.load`` gives."""

    def noted(*arguments, **options):
        loaded.append(load(*arguments, **options))
        return loaded[-1]

    loaded, load = [], torch.load
    monkeypatch.setattr(torch, "load", noted)
    return loaded


STATES = {0: {"exp_avg": torch.ones(2, dtype=torch.complex64)}}


@pytest.mark.parametrize("in_zip", [True, False])
@pytest.mark.parametrize("checked", [True, False])
def test_a_shard_that_torch_reads_is_not_copied_again(tmp_path, loaded, in_zip, checked):
    path = tmp_path / "shard.bin"
    torch.save(STATES, path, _use_new_zipfile_serialization=in_zip)
    states = read_shard(Shard(path, frozenset([0]), checksum(path) if checked else None))
    assert states[0]["exp_avg"] is loaded[0][0]["exp_avg"]


def test_a_whole_file_that_torch_reads_is_not_copied_again(tmp_path, loaded):
    path = tmp_path / "optimizer.bin"
    torch.save({"state": STATES, "param_groups": [{"params": [0]}]}, path)
    _, states = open_optimizer_file(path)
    assert dict(states.items())[0]["exp_avg"] is loaded[0]["state"][0]["exp_avg"]


@pytest.mark.parametrize("read", [lambda path: read_shard(Shard(path, frozenset([0]))), load_torch_file])
def test_a_file_that_is_replaced_while_torch_reads_it_is_refused(tmp_path, monkeypatch, read):
    def read_another(*arguments, **options):
        another.replace(path)
        return load(*arguments, **options)

    load, path, another = torch.load, tmp_path / "shard.bin", tmp_path / "another.bin"
    for file in (path, another):
        torch.save(STATES, file)
    monkeypatch.setattr(torch, "load", read_another)
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} was replaced while it was read"):
        read(path)

"""``save_lora_as_pretrained``, ``save_lr_scheduler`` and ``load_lr_scheduler``: whole files, and no code from them."""

import pickle
import tempfile
from pathlib import Path

import forked
import pytest
import torch
import torch.distributed as dist
from colossalai.booster.plugin.torch_ddp_plugin import TorchDDPCheckpointIO
from colossalai.checkpoint_io import GeneralCheckpointIO
from colossalai.interface import ModelWrapper
from comparison import assert_same
from faults import fail, fault_at, supply_faults
from peft import LoraConfig, PeftModel, get_peft_model

from colossalai_patch.optimizer_checkpoint import CheckpointError


class Adapted(ModelWrapper):
    def unwrap(self, unwrap_peft=True):
        return self.module


def base_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))


def adapted_model(value):
    model = get_peft_model(base_model(), LoraConfig(target_modules=["0"], r=2))
    for name, parameter in model.named_parameters():
        if "lora" in name:
            torch.nn.init.constant_(parameter, value)
    return model


def alone_under_ddp():
    rendezvous = tempfile.mkdtemp()
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}/store", rank=0, world_size=1)
    return TorchDDPCheckpointIO()


def save_adapters(folder, *values):
    checkpoint_io = alone_under_ddp()
    for value in values:
        checkpoint_io.save_lora_as_pretrained(Adapted(adapted_model(value)), str(folder), use_safetensors=True)


def strike_at_every_operation(folder):
    """For a fault at each file operation of a save of 2 over 1: what is loaded then, and whether the save raised."""
    supply_faults()
    checkpoint_io, old, new = alone_under_ddp(), Adapted(adapted_model(1.0)), Adapted(adapted_model(2.0))
    outcomes = []
    for operation in range(1000):
        checkpoint_io.save_lora_as_pretrained(old, str(folder), use_safetensors=True)
        raised = False
        with fault_at(operation, fail, folder) as fault:
            try:
                checkpoint_io.save_lora_as_pretrained(new, str(folder), use_safetensors=True)
            except OSError:
                raised = True
        outcomes.append((loaded_value(folder), raised))
        if not fault.struck:
            return outcomes
    raise AssertionError("a save does not end")


def loaded_value(folder):
    loaded = PeftModel.from_pretrained(base_model(), folder)
    (value,) = {number for name, p in loaded.named_parameters() if "lora" in name for number in p.unique().tolist()}
    return value


def test_an_adapter_is_saved_over_an_older_one(tmp_path):
    forked.result_of(save_adapters, tmp_path, 1.0, 2.0)
    assert loaded_value(tmp_path) == 2.0
    assert not list(tmp_path.glob(".*"))


def test_other_files_in_the_folder_of_an_adapter_stay(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    forked.result_of(save_adapters, tmp_path, 1.0)
    assert (tmp_path / "tokenizer.json").read_text() == "{}"


def test_a_fault_at_any_file_operation_is_told_or_leaves_the_new_adapter(tmp_path):
    outcomes = forked.result_of(strike_at_every_operation, tmp_path)
    assert outcomes[0] == (1.0, True)
    assert outcomes[-1] == (2.0, False)
    assert all(raised or value == 2.0 for value, raised in outcomes)


def make_scheduler():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.5)
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)


def test_a_scheduler_is_restored(tmp_path):
    saved, restored = make_scheduler(), make_scheduler()
    for _ in range(3):
        saved.optimizer.step()
        saved.step()
    GeneralCheckpointIO().save_lr_scheduler(saved, str(tmp_path / "scheduler"))
    GeneralCheckpointIO().load_lr_scheduler(restored, str(tmp_path / "scheduler"))
    assert_same(restored.state_dict(), saved.state_dict())
    assert [path.name for path in tmp_path.iterdir()] == ["scheduler"]


def test_a_scheduler_s_file_runs_no_code(tmp_path):
    class Runs:
        def __reduce__(self):
            return Path.touch, (tmp_path / "canary",)

    (tmp_path / "scheduler").write_bytes(pickle.dumps(Runs(), protocol=2))
    with pytest.raises(CheckpointError, match="scheduler"):
        GeneralCheckpointIO().load_lr_scheduler(make_scheduler(), str(tmp_path / "scheduler"))
    assert not (tmp_path / "canary").exists()

"""``convert`` writes the same checkpoint in another form, or changes nothing."""

import json
import struct
import subprocess
import sys

import pytest
import torch
from comparison import assert_same
from counted_progress import CountedProgress
from written_checkpoints import changed, make_state_dict, write_file, write_sharded

from colossalai_patch.optimizer_checkpoint import conversion
from colossalai_patch.optimizer_checkpoint.conversion import convert, one_file, sharded
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError, SaveError
from colossalai_patch.optimizer_checkpoint.shard import as_it_is
from colossalai_patch.optimizer_checkpoint.single_file import map_optimizer_file
from colossalai_patch.optimizer_checkpoint.source import open_source
from colossalai_patch.optimizer_checkpoint.summary import summarize

FORMS = ["bin", "safetensors", "one.bin", "one.safetensors"]


def convert_to(source, destination, form, shard_bytes=200):
    """Convert to a form of ``FORMS``, below the folder ``destination``, and return where that is."""
    path = destination / form
    target = one_file(path) if "." in form else sharded(path, source, form, shard_bytes, None)
    convert(source, target)
    return path


def state_dict_of(path):
    """What is in a checkpoint, with the states in the order of their ids and names, as safetensors has another."""
    source = open_source(path)
    states = {param_id: dict(sorted(state.items())) for param_id, state in sorted(source.states(as_it_is))}
    return {"state": states, "param_groups": source.param_groups}


@pytest.fixture
def source(tmp_path):
    def add_values_of_other_types(state_dict):
        state_dict["state"][0] |= {"count": 7, "factors": [torch.ones(2), (0.5, "text")], "flag": True}
        state_dict["state"][1]["transposed"] = torch.arange(6.0).reshape(2, 3).T
        state_dict["state"][1]["part"] = torch.arange(100.0)[10:12]

    state_dict = changed(make_state_dict(), add_values_of_other_types)
    return open_source(write_sharded(state_dict, tmp_path / "source"))


@pytest.mark.parametrize("then", FORMS)
@pytest.mark.parametrize("first", FORMS)
def test_every_form_comes_back_from_every_other(tmp_path, source, first, then):
    folder = tmp_path / "then"
    folder.mkdir()
    there = convert_to(source, tmp_path, first)
    back = convert_to(open_source(there), folder, then)
    assert_same(state_dict_of(back), state_dict_of(source.path))


def test_one_file_is_what_native_loads(tmp_path, source):
    path = convert_to(source, tmp_path, "one.bin")
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in [(4, 3), (7,), (), (2, 5), (6,)]]
    optimizer = torch.optim.AdamW([{"params": params[:2]}, {"params": params[2:]}])
    optimizer.load_state_dict(torch.load(path, weights_only=True))
    assert torch.equal(optimizer.state[params[0]]["exp_avg"], map_optimizer_file(path)["state"][0]["exp_avg"])


def test_a_native_file_becomes_shards(tmp_path):
    native = write_file(make_state_dict(), tmp_path / "native.pt")
    path = convert_to(open_source(native), tmp_path, "bin")
    assert_same(state_dict_of(path), state_dict_of(native))


def index_of(folder):
    (index_file,) = folder.glob("*.index*.json")
    return json.loads(index_file.read_text())


@pytest.mark.parametrize(("shard_bytes", "shards"), [(1, 4), (160, 2), (10**6, 1)])
def test_shards_hold_as_much_as_was_asked_for(tmp_path, shard_bytes, shards):
    source = open_source(write_sharded(make_state_dict(), tmp_path / "source"))
    path = convert_to(source, tmp_path, "bin", shard_bytes)
    assert len(set(index_of(path)["weight_map"].values())) == shards


def test_the_result_records_size_and_checksum_of_every_file(tmp_path, source):
    path = convert_to(source, tmp_path, "safetensors")
    recorded = index_of(path)["metadata"]["files"]
    assert {name: record["size"] for name, record in recorded.items()} == {
        file.name: file.stat().st_size for file in path.iterdir() if file.suffix != ".json"
    }


def test_the_release_that_saved_is_kept(tmp_path):
    index_file = write_sharded(make_state_dict(), tmp_path / "source") / "pytorch_optim.bin.index.json"
    index = json.loads(index_file.read_text())
    index["metadata"]["saved_by"] = "colossalai 0.5.0"
    index_file.write_text(json.dumps(index))
    path = convert_to(open_source(index_file), tmp_path, "safetensors")
    assert summarize(open_source(path)).saved_by == "colossalai 0.5.0"


def test_a_part_of_larger_memory_is_saved_alone(tmp_path):
    state_dict = {"state": {0: {"part": torch.zeros(10**6)[:2]}}, "param_groups": []}
    source = open_source(write_file(state_dict, tmp_path / "large.bin"))
    assert convert_to(source, tmp_path, "one.bin").stat().st_size < 10_000


def test_a_prefix_is_in_all_names(tmp_path, source):
    convert(source, sharded(tmp_path / "new", source, "safetensors", None, "mine"))
    assert (tmp_path / "new" / "optimizer.safetensors.index.mine.json").is_file()
    assert all(".mine" in path.name for path in (tmp_path / "new").iterdir())
    assert_same(state_dict_of(tmp_path / "new"), state_dict_of(source.path))


def test_a_checkpoint_converts_in_its_own_directory(tmp_path):
    folder = write_sharded(make_state_dict(), tmp_path / "source")
    before = state_dict_of(folder)
    source = open_source(folder)
    convert(source, sharded(folder, source, "safetensors", None, None))
    assert_same(state_dict_of(folder), before)
    assert {path.suffix for path in folder.glob("optimizer*")} == {".safetensors"}


@pytest.mark.parametrize("form", ["bin", "one.bin"])
def test_what_would_be_replaced_is_known(tmp_path, source, form):
    path = tmp_path / form
    target = one_file(path) if "." in form else sharded(path, source, form, None, None)
    assert target.target.replaced() == []
    convert(source, target)
    replaced = target.target.replaced()
    assert set(replaced) == (set(path.iterdir()) if path.is_dir() else {path})


@pytest.mark.parametrize("form", FORMS)
def test_damage_that_only_a_checksum_shows_is_not_written_anew(tmp_path, source, form):
    damaged = convert_to(source, tmp_path, "bin")
    shard = min(damaged.glob("pytorch_optim-*"), key=lambda file: file.name[-9:])
    content = shard.read_bytes()
    value = content.index(torch.load(shard, weights_only=True)[0]["exp_avg"].numpy().tobytes())
    shard.write_bytes(content[:value] + bytes([content[value] ^ 1]) + content[value + 1 :])
    (tmp_path / "target").mkdir()
    with pytest.raises(CheckpointError, match=f"{shard.name} is damaged"):
        convert_to(open_source(damaged), tmp_path / "target", form)
    assert list((tmp_path / "target").iterdir()) == []


MOMENTUM = make_state_dict()["state"][0]["exp_avg"].numpy().tobytes()
RATE = struct.pack(">d", 0.1)


@pytest.mark.parametrize(("name", "value"), [("pytorch_optim-00001.bin", MOMENTUM), ("pytorch_optim_group.bin", RATE)])
def test_damage_that_only_torch_s_checksum_shows_is_not_written_anew(tmp_path, name, value):
    damaged = write_sharded(make_state_dict(), tmp_path / "damaged") / name
    content = damaged.read_bytes()
    assert content.count(value) == 1
    damaged.write_bytes(content.replace(value, value[:-1] + bytes([value[-1] ^ 1])))
    with pytest.raises(CheckpointError, match=f"{name} is damaged: the CRC-32 of "):
        convert_to(open_source(damaged.parent), tmp_path, "bin")
    assert not (tmp_path / "bin").exists()


def write_something_else(path, content, advance):
    return conversion._write_torch(path, {}, advance)


def fail(path, content, advance):
    raise OSError("a fault for the test")


@pytest.mark.parametrize("write", [write_something_else, fail])
@pytest.mark.parametrize("form", ["bin", "one.bin"])
def test_a_conversion_that_goes_wrong_leaves_what_was_there(tmp_path, source, monkeypatch, form, write):
    path = convert_to(source, tmp_path, form)
    before = state_dict_of(path)
    wrong = conversion.Format(".bin", "pytorch_optim", "pytorch_optim.bin.index", write, write)
    monkeypatch.setattr(conversion, "BIN", wrong)
    monkeypatch.setitem(conversion.FORMATS, "bin", wrong)
    with pytest.raises((SaveError, OSError, ValueError)):
        convert_to(source, tmp_path, form)
    assert_same(state_dict_of(path), before)
    assert not list(tmp_path.rglob(".saving-*"))


@pytest.mark.parametrize("form", FORMS)
def test_progress_goes_through_what_is_written_and_then_compared(tmp_path, form):
    state_dict = {"state": {0: {"exp_avg": torch.zeros(10**6)}}, "param_groups": []}
    source = open_source(write_sharded(state_dict, tmp_path / "source"))
    path = tmp_path / form
    progress = CountedProgress()
    convert(source, one_file(path) if "." in form else sharded(path, source, form, None, None), progress)
    assert [stage for stage, _, _ in progress.stages] == ["writing", "comparing"]
    assert all(done == pytest.approx(total, rel=0.01) for _, total, done in progress.stages)


MEASURE = """
import resource, sys
from colossalai_patch.optimizer_checkpoint import conversion, comparison
from colossalai_patch.optimizer_checkpoint.source import open_source
source = open_source(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
conversion.convert(source, conversion.sharded(sys.argv[2], source, sys.argv[3], 2**23, None))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("file_format", ["bin", "safetensors"])
@pytest.mark.slow
def test_a_conversion_takes_the_memory_of_shards_and_not_of_the_checkpoint(tmp_path, file_format):
    states = {number: {"exp_avg": torch.full((2**20,), float(number))} for number in range(64)}
    folder = write_sharded({"state": states, "param_groups": [{"params": list(states)}]}, tmp_path / "source")
    command = [sys.executable, "-c", MEASURE, folder, tmp_path / "converted", file_format]
    kilobytes = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert kilobytes < 100 * 1024

"""A checkpoint that is not sound, or not to be trusted, ends in a clear error and an unchanged optimizer."""

import copy
import json
import os
import subprocess
import sys
import zipfile
from fractions import Fraction

import numpy
import pytest
import torch
from checkpoints import GROUP_FILE, INDEX_FILE, in_order, save_bin, save_safetensors
from colossalai.checkpoint_io import GeneralCheckpointIO
from comparison import assert_same
from crafted_pickles import BOMBS, CODE, write_with_pickle
from safetensors.torch import load_file, save_file
from training import make_parameters, split_into_groups, train

from colossalai_patch.optimizer_checkpoint import CheckpointError, MissingFileError


def make_adamw(steps=0):
    optimizer = torch.optim.AdamW(split_into_groups(make_parameters(), 2))
    train(optimizer, steps)
    return optimizer


@pytest.fixture
def checkpoint(tmp_path):
    """A sound checkpoint of three ``.bin`` shards, for a test to spoil."""
    (tmp_path / "checkpoint").mkdir()
    save_bin(make_adamw(steps=2), tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.fixture
def safetensors_checkpoint(tmp_path):
    """A sound checkpoint of three ``.safetensors`` shards, for a test to spoil."""
    (tmp_path / "safetensors").mkdir()
    save_safetensors(make_adamw(steps=2), tmp_path / "safetensors")
    return tmp_path / "safetensors"


def assert_refused(checkpoint, *words, error=CheckpointError, **arguments):
    optimizer = make_adamw(steps=1)
    before, state = copy.deepcopy(optimizer.state_dict()), optimizer.state
    with pytest.raises(error) as caught:
        GeneralCheckpointIO().load_optimizer(optimizer, checkpoint, **arguments)
    assert optimizer.state is state
    assert_same(optimizer.state_dict(), before)
    for word in words:
        assert str(word) in str(caught.value)


def assert_loads(checkpoint, steps=2, **arguments):
    optimizer = make_adamw(steps=1)
    GeneralCheckpointIO().load_optimizer(optimizer, checkpoint, **arguments)
    assert_same(optimizer.state_dict(), make_adamw(steps).state_dict())


def edit_index(checkpoint, edit, name=INDEX_FILE):
    index = json.loads((checkpoint / name).read_text())
    edit(index)
    (checkpoint / name).write_text(json.dumps(index))


def name_shard(name):
    def edit(index):
        index["weight_map"]["1"] = name

    return edit


def name_group_file(name):
    def edit(index):
        index["metadata"]["param_groups"] = name

    return edit


@pytest.mark.parametrize("edit", [name_shard, name_group_file])
@pytest.mark.parametrize("name", ["../elsewhere/x.bin", "/etc/hostname", "a/../../x.bin", "..", "", 7, None])
def test_an_index_that_names_a_file_elsewhere_is_refused(checkpoint, edit, name):
    elsewhere = checkpoint.parent / "elsewhere"
    elsewhere.mkdir()
    torch.save({1: {}}, elsewhere / "x.bin")
    edit_index(checkpoint, edit(name))
    assert_refused(checkpoint, "not inside that directory" if name is not None or edit is name_shard else "index")


SECOND = "pytorch_optim-00002.bin"


@pytest.mark.parametrize("name", [SECOND, GROUP_FILE])
def test_a_link_that_leaves_the_checkpoint_is_refused(checkpoint, name):
    (checkpoint / name).rename(checkpoint.parent / name)
    (checkpoint / name).symlink_to(checkpoint.parent / name)
    assert_refused(checkpoint, checkpoint / name, "outside of the checkpoint")


@pytest.mark.parametrize("name", [SECOND, GROUP_FILE])
def test_a_link_inside_the_checkpoint_is_followed(checkpoint, name):
    (checkpoint / name).rename(checkpoint / "moved.bin")
    (checkpoint / name).symlink_to("moved.bin")
    assert_loads(checkpoint)


def make_directory(path):
    path.mkdir()


def make_link_to_itself(path):
    path.symlink_to(path.name)


@pytest.mark.parametrize("name", [SECOND, GROUP_FILE])
@pytest.mark.parametrize("make", [make_directory, make_link_to_itself, os.mkfifo])
def test_what_is_no_regular_file_is_refused(checkpoint, make, name):
    (checkpoint / name).unlink()
    make(checkpoint / name)
    assert_refused(checkpoint, checkpoint / name)


@pytest.mark.parametrize("name", [SECOND, GROUP_FILE])
def test_a_missing_file_is_named(checkpoint, name):
    (checkpoint / name).unlink()
    assert_refused(checkpoint, checkpoint / name, "missing", error=MissingFileError)
    assert issubclass(MissingFileError, FileNotFoundError)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_shard_is_named(checkpoint, safetensors_checkpoint, kept):
    for shard in (checkpoint / SECOND, safetensors_checkpoint / "pytorch_optim-00002.safetensors"):
        os.truncate(shard, int(shard.stat().st_size * kept))
        assert_refused(shard.parent, shard)


def test_the_state_outlives_the_file_that_it_was_loaded_from(checkpoint, safetensors_checkpoint):
    optimizer = make_adamw(steps=1)
    for folder in (checkpoint, safetensors_checkpoint):
        GeneralCheckpointIO().load_optimizer(optimizer, folder)
        for file in folder.iterdir():
            os.truncate(file, 0)
        assert_same(in_order(optimizer.state_dict()), in_order(make_adamw(steps=2).state_dict()))


def swap_shards(checkpoint):
    first, second = checkpoint / "pytorch_optim-00001.bin", checkpoint / SECOND
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def swap_safetensors_shards(checkpoint):
    first, second = (checkpoint / f"pytorch_optim-0000{number}.safetensors" for number in (1, 2))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def test_shards_that_are_not_where_the_index_says_are_refused(checkpoint, safetensors_checkpoint):
    swap_shards(checkpoint)
    assert_refused(checkpoint, "does not hold the state of parameter", "of another checkpoint")
    swap_safetensors_shards(safetensors_checkpoint)
    assert_refused(safetensors_checkpoint, "does not hold the state of parameter", "of another checkpoint")


def test_a_parameter_that_two_shards_hold_is_read_from_the_one_that_the_index_names(checkpoint):
    states = torch.load(checkpoint / SECOND, weights_only=True)
    torch.save({**states, 0: {"step": torch.tensor(7.0)}}, checkpoint / SECOND)
    assert_loads(checkpoint)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b'{"weight_map": {}}', b'{"metadata": {"param_groups": "x"}}', b"\xff\xfe", b"[" * 99999],
)
def test_what_is_no_index_is_refused(checkpoint, content):
    (checkpoint / INDEX_FILE).write_bytes(content)
    assert_refused(checkpoint, checkpoint / INDEX_FILE)


def test_an_index_that_names_a_parameter_twice_is_refused(checkpoint):
    index = (checkpoint / INDEX_FILE).read_text()
    (checkpoint / INDEX_FILE).write_text(index.replace('"1":', '"0":'))
    assert_refused(checkpoint, "twice")
    (checkpoint / INDEX_FILE).write_text(index.replace('"1":', '"00":'))
    assert_refused(checkpoint, "twice")


@pytest.mark.parametrize("groups", [7, [], [7], [{}], [{"params": 7}], [{"params": [[]]}], {"params": []}, None])
def test_what_is_no_group_file_is_refused(checkpoint, groups):
    torch.save(groups, checkpoint / GROUP_FILE)
    assert_refused(checkpoint, "group", error=ValueError)


@pytest.mark.parametrize("name", [SECOND, GROUP_FILE])
@pytest.mark.parametrize("kind", CODE)
def test_no_code_from_a_bin_file_runs(checkpoint, kind, name):
    canary = checkpoint.parent / "canary"
    write_with_pickle(checkpoint / name, CODE[kind](canary))
    assert_refused(checkpoint, checkpoint / name)
    assert not canary.exists()


def replace_step(checkpoint, data):
    shard = checkpoint / "pytorch_optim-00002.safetensors"
    tensors = load_file(shard)
    tensors["state.1.step"] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    save_file(tensors, shard, metadata={"non_tensor_keys": json.dumps(["state.1.step"])})
    return shard


@pytest.mark.parametrize("kind", CODE)
def test_no_code_from_a_pickle_in_a_safetensors_file_runs(safetensors_checkpoint, kind):
    canary = safetensors_checkpoint.parent / "canary"
    shard = replace_step(safetensors_checkpoint, CODE[kind](canary))
    assert_refused(safetensors_checkpoint, shard)
    assert not canary.exists()
    assert torch._utils._rebuild_tensor_v2.__defaults__ in (None, (None,))


@pytest.mark.parametrize("kind", BOMBS)
def test_a_pickle_that_would_fill_the_memory_is_refused(checkpoint, safetensors_checkpoint, kind):
    replace_step(safetensors_checkpoint, BOMBS[kind](None))
    assert_refused(safetensors_checkpoint, safetensors_checkpoint)
    write_with_pickle(checkpoint / SECOND, BOMBS[kind](None))
    assert_refused(checkpoint, checkpoint / SECOND)


def test_a_tar_file_is_refused(checkpoint):
    subprocess.run(["tar", "-cf", checkpoint / SECOND, "/etc/hostname"], check=True, stderr=subprocess.DEVNULL)
    assert_refused(checkpoint, "tar format")


def test_a_torchscript_archive_is_refused(checkpoint):
    torch.jit.script(torch.nn.Linear(1, 1)).save(str(checkpoint / SECOND))
    assert_refused(checkpoint, checkpoint / SECOND)


def test_a_compressed_file_is_refused(checkpoint):
    with zipfile.ZipFile(checkpoint / SECOND, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"\0" * 2**20)
    assert_refused(checkpoint, "compressed")


def test_a_file_of_the_format_before_the_zip_is_read(checkpoint):
    states = torch.load(checkpoint / SECOND, weights_only=True)
    torch.save(states, checkpoint / SECOND, _use_new_zipfile_serialization=False)
    assert_loads(checkpoint)


def set_in_groups(checkpoint, **values):
    groups = torch.load(checkpoint / GROUP_FILE, weights_only=True)
    torch.save([group | values for group in groups], checkpoint / GROUP_FILE)


def test_a_class_that_is_not_admitted_is_named_with_what_admits_it(checkpoint):
    set_in_groups(checkpoint, lr=Fraction(1, 10))
    assert_refused(checkpoint, "fractions.Fraction", "add_safe_globals", "COLOSSALAI_PATCH_TRUST_PICKLE=1")


def test_a_number_of_numpy_is_read(checkpoint):
    set_in_groups(checkpoint, lr=numpy.float64(0.1))
    optimizer = make_adamw(steps=1)
    GeneralCheckpointIO().load_optimizer(optimizer, checkpoint)
    assert_same([group["lr"] for group in optimizer.param_groups], [numpy.float64(0.1)] * 2)


@pytest.mark.parametrize("number", [numpy.longdouble(0.1), numpy.str_("a"), numpy.datetime64(1, "s")])
def test_what_numpy_has_beside_plain_numbers_is_refused(checkpoint, number):
    set_in_groups(checkpoint, lr=number)
    assert_refused(checkpoint, checkpoint / GROUP_FILE, "multiarray.scalar")


def test_who_trusts_the_pickles_can_say_so(checkpoint, safetensors_checkpoint, monkeypatch):
    monkeypatch.setenv("COLOSSALAI_PATCH_TRUST_PICKLE", "1")
    canary = checkpoint.parent / "canary"
    write_with_pickle(checkpoint / SECOND, CODE["exec in a state"](canary))
    assert_refused(checkpoint)
    assert canary.exists()
    canary.unlink()
    replace_step(safetensors_checkpoint, CODE["builtins.exec"](canary))
    assert_refused(safetensors_checkpoint)
    assert canary.exists()


def test_a_wrong_value_of_the_setting_is_refused(checkpoint, monkeypatch):
    monkeypatch.setenv("COLOSSALAI_PATCH_TRUST_PICKLE", "yes")
    assert_refused(checkpoint, "COLOSSALAI_PATCH_TRUST_PICKLE='yes'", error=ValueError)


def record(checkpoint, name=SECOND, **change):
    from colossalai_patch.optimizer_checkpoint.checksum import checksum

    recorded = {"size": (checkpoint / name).stat().st_size, "xxh3": checksum(checkpoint / name)} | change
    edit_index(checkpoint, lambda index: index["metadata"].setdefault("files", {}).update({name: recorded}))


@pytest.mark.parametrize("name", [SECOND, GROUP_FILE])
def test_a_file_of_another_content_than_was_saved_is_named(checkpoint, name):
    record(checkpoint, name)
    assert_loads(checkpoint)
    record(checkpoint, name, xxh3="0" * 16)
    assert_refused(checkpoint, checkpoint / name, "when it was saved", "0" * 16)


def test_a_file_that_only_torch_can_read_is_compared_with_its_checksum_too(checkpoint):
    states = torch.load(checkpoint / SECOND, weights_only=True)
    torch.save(states, checkpoint / SECOND, _use_new_zipfile_serialization=False)
    record(checkpoint)
    assert_loads(checkpoint)
    record(checkpoint, xxh3="0" * 16)
    assert_refused(checkpoint, checkpoint / SECOND, "when it was saved", "0" * 16)


@pytest.mark.parametrize("name", [SECOND, GROUP_FILE])
def test_a_trusted_file_of_another_content_than_was_saved_is_refused_before_its_code_runs(
    checkpoint, monkeypatch, name
):
    monkeypatch.setenv("COLOSSALAI_PATCH_TRUST_PICKLE", "1")
    canary = checkpoint.parent / "canary"
    write_with_pickle(checkpoint / name, CODE["exec in a state"](canary))
    record(checkpoint, name, xxh3="0" * 16)
    assert_refused(checkpoint, checkpoint / name, "when it was saved")
    assert not canary.exists()


def test_a_file_that_cannot_be_read_as_it_is_is_told_by_its_checksum_if_that_is_recorded(checkpoint):
    record(checkpoint)
    content = bytearray((checkpoint / SECOND).read_bytes())
    content[content.index(b"exp_avg")] ^= 0x80
    (checkpoint / SECOND).write_bytes(content)
    assert_refused(checkpoint, checkpoint / SECOND, "when it was saved")


def test_a_file_of_another_size_than_was_saved_is_named(checkpoint):
    record(checkpoint, size=7)
    assert_refused(checkpoint, checkpoint / SECOND, "instead of the 7")


@pytest.mark.parametrize("files", [7, {"x": 7}, {"x": {}}, {"x": {"size": "a", "xxh3": ""}}, []])
def test_records_that_cannot_be_read_are_refused(checkpoint, files):
    edit_index(checkpoint, lambda index: index["metadata"].update(files=files))
    assert_refused(checkpoint, checkpoint / INDEX_FILE)


def test_a_prefix_picks_its_checkpoint_out_of_several(checkpoint):
    GeneralCheckpointIO().save_optimizer(make_adamw(steps=4), checkpoint, shard=True, prefix="later")
    assert_loads(checkpoint, steps=4, prefix="later")
    assert_refused(checkpoint, INDEX_FILE, "pytorch_optim.bin.index.later.json")
    assert_refused(checkpoint, "'sooner'", prefix="sooner")
    assert_loads(checkpoint / INDEX_FILE)


@pytest.mark.parametrize("use_safetensors", [True, False])
def test_a_model_and_an_optimizer_share_a_directory(checkpoint, use_safetensors):
    model, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    GeneralCheckpointIO().save_model(model, checkpoint, shard=True, use_safetensors=use_safetensors)
    assert_loads(checkpoint)
    GeneralCheckpointIO().load_model(other, checkpoint)
    assert_same(dict(other.state_dict()), dict(model.state_dict()))


def test_a_path_without_a_checkpoint_is_named(tmp_path):
    assert_refused(tmp_path / "nothing", tmp_path / "nothing", error=FileNotFoundError)
    assert_refused(tmp_path, tmp_path, "no index")


def test_a_model_index_that_names_a_file_elsewhere_is_refused(tmp_path):
    GeneralCheckpointIO().save_model(torch.nn.Linear(3, 3), tmp_path, shard=True)
    edit_index(tmp_path, lambda index: index["weight_map"].update(bias="../x.bin"), "pytorch_model.bin.index.json")
    with pytest.raises(CheckpointError, match="not inside that directory"):
        GeneralCheckpointIO().load_model(torch.nn.Linear(3, 3), tmp_path)


def test_no_code_from_a_model_file_runs(tmp_path):
    GeneralCheckpointIO().save_model(torch.nn.Linear(3, 3), tmp_path, shard=True)
    write_with_pickle(tmp_path / "pytorch_model-00001.bin", CODE["builtins.exec"](tmp_path / "canary"))
    with pytest.raises(CheckpointError):
        GeneralCheckpointIO().load_model(torch.nn.Linear(3, 3), tmp_path)
    assert not (tmp_path / "canary").exists()


def test_an_unsharded_file_is_held_to_the_same(tmp_path):
    canary = tmp_path / "canary"
    write_with_pickle(tmp_path / "optimizer.bin", CODE["builtins.exec"](canary))
    assert_refused(str(tmp_path / "optimizer.bin"), tmp_path / "optimizer.bin")
    tensor = torch.frombuffer(bytearray(CODE["builtins.exec"](canary)), dtype=torch.uint8)
    metadata = {"non_tensor_keys": '["param_groups"]'}
    save_file({"param_groups": tensor}, tmp_path / "optimizer.safetensors", metadata=metadata)
    assert_refused(str(tmp_path / "optimizer.safetensors"), tmp_path / "optimizer.safetensors")
    assert not canary.exists()


def test_the_crafted_pickles_do_run_code_where_nothing_stops_them(tmp_path):
    code = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    ran = set()
    for kind, craft in CODE.items():
        canary = tmp_path / "canary"
        (tmp_path / "pickle").write_bytes(craft(canary))
        subprocess.run([sys.executable, "-c", code, tmp_path / "pickle"], capture_output=True, check=False)
        if canary.exists():
            ran.add(kind)
            canary.unlink()
    assert ran >= {"os.system", "builtins.eval", "builtins.exec", "exec in a state", "pickle.loads", "an instance"}

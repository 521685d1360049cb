"""Saves through the public ``save_optimizer`` and ``save_model``: one commit, errors that are told, formats."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import forked
import pytest
import torch
from colossalai.checkpoint_io import GeneralCheckpointIO
from comparison import assert_same, assert_same_parameters
from faults import fail, fault_at, kill, supply_faults
from numbered_states import (
    MEGABYTES_OF_A_SHARD,
    files_by_index,
    make_optimizer,
    only_checkpoint_files,
    saved_number,
    set_number,
)

from colossalai_patch.optimizer_checkpoint import CheckpointError, checked_file
from colossalai_patch.optimizer_checkpoint.errors import SaveError

WAYS = ["bin", "safetensors", "async"]
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def save(folder, number, way="bin"):
    """Save to the end, in a checkpoint IO of its own."""
    checkpoint_io = begin_save(folder, number, way)
    checkpoint_io._sync_io()


def begin_save(folder, number, way):
    optimizer, checkpoint_io = make_optimizer(), GeneralCheckpointIO()
    set_number(optimizer, number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLOSSALAI_PATCH_SAVE_FORMAT", "safetensors" if way == "safetensors" else "bin")
        checkpoint_io.save_optimizer(
            optimizer, str(folder), shard=True, size_per_shard=MEGABYTES_OF_A_SHARD, use_async=way == "async"
        )
    return checkpoint_io


def suffixes(folder):
    index = json.loads(next(folder.glob("*.index.json")).read_text())
    return {Path(name).suffix for name in index["weight_map"].values()}


@every_way
@pytest.mark.parametrize("way_before", WAYS)
def test_a_save_replaces_the_one_before_whatever_its_format(tmp_path, way_before, way):
    save(tmp_path, 1, way_before)
    save(tmp_path, 2, way)
    assert saved_number(tmp_path) == 2
    assert only_checkpoint_files(tmp_path)
    assert suffixes(tmp_path) == {".bin" if way == "bin" else ".safetensors"}


def test_a_damaged_file_is_found_by_its_checksum(tmp_path):
    save(tmp_path, 1)
    name = max(files_by_index(tmp_path))
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        GeneralCheckpointIO().load_optimizer(make_optimizer(), str(tmp_path))


@every_way
def test_the_index_records_the_release_that_saved(tmp_path, way):
    save(tmp_path, 1, way)
    index = json.loads(next(tmp_path.glob("*.index.json")).read_text())
    assert index["metadata"]["saved_by"] == f"colossalai {version('colossalai')}"


def test_no_two_saves_use_the_same_names(tmp_path):
    save(tmp_path, 1)
    first = files_by_index(tmp_path)
    save(tmp_path, 2)
    assert first.keys().isdisjoint(files_by_index(tmp_path))


def test_prefixes_have_checkpoints_of_their_own(tmp_path):
    optimizer = make_optimizer()
    for prefix in ("first", "second", "first"):
        GeneralCheckpointIO().save_optimizer(optimizer, str(tmp_path), shard=True, prefix=prefix)
    indexes = sorted(path.name for path in tmp_path.glob("*.json"))
    assert indexes == ["pytorch_optim.bin.index.first.json", "pytorch_optim.bin.index.second.json"]
    named = [name for index in indexes for name in json.loads((tmp_path / index).read_text())["metadata"]["files"]]
    assert {path.name for path in tmp_path.iterdir()} == {*indexes, *named}


def test_other_files_of_the_directory_stay(tmp_path):
    others = ["pytorch_optim.bin", "optimizer.safetensors", "model-00001.safetensors", "notes-00001.txt"]
    for name in others:
        (tmp_path / name).touch()
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert all((tmp_path / name).exists() for name in others)


@pytest.fixture
def kill_first_save(tmp_path):
    """Leave what a save leaves that is killed after it has written its files."""

    def save_and_die():
        supply_faults()
        with fault_at(30, kill, tmp_path):
            save(tmp_path, 1)

    save(tmp_path, 0)
    assert forked.exit_code(forked.start(save_and_die)) == -signal.SIGKILL
    assert list(tmp_path.glob(".saving-*"))


@pytest.mark.usefixtures("kill_first_save")
def test_leftovers_of_a_killed_save_are_removed_by_the_next(tmp_path):
    save(tmp_path, 2)
    assert only_checkpoint_files(tmp_path)


def test_the_folder_of_a_live_save_is_no_leftover(tmp_path):
    save(tmp_path, 1)
    reader, writer = os.pipe()
    other, wait_here = os.pipe()

    def stay_in_a_save():
        class Stays(GeneralCheckpointIO):
            def save_sharded_optimizer(self, *arguments, **options):
                os.write(writer, b"in")
                os.read(other, 1)
                super().save_sharded_optimizer(*arguments, **options)

        optimizer = make_optimizer()
        set_number(optimizer, 2)
        Stays().save_optimizer(optimizer, str(tmp_path), shard=True)

    process = forked.start(stay_in_a_save)
    os.read(reader, 2)
    save(tmp_path, 3)
    os.write(wait_here, b".")
    assert forked.exit_code(process) == 0
    assert saved_number(tmp_path) == 2


def strike_at_every_operation(folder, way):
    """One save after the other, each with a fault at its next file operation; the outcome of each."""
    supply_faults()
    outcomes = []
    for number in range(1000):
        raised = False
        with fault_at(number, fail, folder) as fault:
            try:
                save(folder, number + 1, way)
            except OSError:
                raised = True
        loaded = saved_number(folder)
        outcomes.append((loaded == number + 1, raised))
        if not fault.struck:
            return outcomes
        save(folder, number + 1, "bin")
    raise AssertionError("a save does not end")


@every_way
def test_a_fault_at_any_file_operation_is_told_or_does_no_harm(tmp_path, way):
    save(tmp_path, 0)
    outcomes = forked.result_of(strike_at_every_operation, tmp_path, way)
    assert outcomes[0] == (False, True)
    assert outcomes[-1] == (True, False)
    assert all(saved != raised for saved, raised in outcomes)
    assert only_checkpoint_files(tmp_path)


def save_and_die(folder, number, way, operation):
    supply_faults()
    with fault_at(operation, kill, folder):
        save(folder, number, way)


@every_way
def test_a_kill_at_any_file_operation_leaves_one_of_the_two_states(tmp_path, way):
    save(tmp_path, 0)
    for operation in range(1000):
        code = forked.exit_code(forked.start(save_and_die, tmp_path, operation + 1, way, operation))
        assert saved_number(tmp_path) in (operation, operation + 1)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        save(tmp_path, operation + 1)
        assert only_checkpoint_files(tmp_path)
    assert saved_number(tmp_path) == operation + 1


@contextmanager
def no_file_larger_than(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("way", ["bin", "safetensors"])
def test_no_space_is_an_error_that_names_the_directory(tmp_path, way):
    save(tmp_path, 1)
    with no_file_larger_than(8192), pytest.raises(SaveError, match=str(tmp_path)):
        save(tmp_path, 2, way)
    assert saved_number(tmp_path) == 1
    assert only_checkpoint_files(tmp_path)


def test_no_space_is_an_error_that_says_how_much_is_needed(tmp_path, monkeypatch):
    def refuse(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    save(tmp_path / "with room", 1)
    needed = sum(record["size"] for record in files_by_index(tmp_path / "with room").values())
    monkeypatch.setattr(checked_file.os, "write", refuse)
    with pytest.raises(SaveError, match=rf"need {needed:,} bytes in all, and [\d,]+ are free"):
        save(tmp_path / "without", 1)


def test_an_error_in_the_background_surfaces_at_the_next_save(tmp_path):
    save(tmp_path, 1)
    with no_file_larger_than(8192):
        checkpoint_io = begin_save(tmp_path, 2, "async")
        checkpoint_io._saves["optimizer"]._committed.exception()
    with pytest.raises(SaveError, match=str(tmp_path)):
        checkpoint_io.save_optimizer(make_optimizer(), str(tmp_path), shard=True)
    assert saved_number(tmp_path) == 1


def test_an_error_in_the_background_surfaces_when_the_script_synchronizes(tmp_path):
    with no_file_larger_than(8192):
        checkpoint_io = begin_save(tmp_path, 2, "async")
        checkpoint_io._saves["optimizer"]._committed.exception()
    with pytest.raises(SaveError, match=str(tmp_path)):
        checkpoint_io.synchronize()


def test_an_error_in_the_background_is_raised_once(tmp_path):
    save(tmp_path, 1)
    with no_file_larger_than(8192):
        checkpoint_io = begin_save(tmp_path, 2, "async")
        checkpoint_io._saves["optimizer"]._committed.exception()
    with pytest.raises(SaveError, match=str(tmp_path)):
        checkpoint_io.synchronize()
    checkpoint_io.load_optimizer(make_optimizer(), str(tmp_path))
    checkpoint_io._sync_io()
    assert saved_number(tmp_path) == 1


def test_an_error_in_the_background_surfaces_at_exit(tmp_path):
    script = f"""
import resource, sys
sys.path.append({str(Path(__file__).parents[1])!r})
from colossalai.checkpoint_io import GeneralCheckpointIO
from numbered_states import make_optimizer, set_number
optimizer = make_optimizer()
set_number(optimizer, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
checkpoint_io = GeneralCheckpointIO()
checkpoint_io.save_optimizer(optimizer, {str(tmp_path)!r}, shard=True, use_async=True)
"""
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert "SaveError" in result.stderr
    assert str(tmp_path) in result.stderr


@pytest.mark.parametrize("shard", [True, False])
def test_a_file_where_a_directory_should_be_is_an_error(tmp_path, shard):
    (tmp_path / "file").write_text("something else")
    path = tmp_path / "file" if shard else tmp_path / "file" / "optimizer.bin"
    with pytest.raises(NotADirectoryError, match=str(path)):
        GeneralCheckpointIO().save_optimizer(make_optimizer(), str(path), shard=shard)
    assert (tmp_path / "file").read_text() == "something else"


def test_a_directory_where_a_file_should_be_is_an_error(tmp_path):
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        GeneralCheckpointIO().save_optimizer(make_optimizer(), str(tmp_path))


def save_without_permission(folder):
    folder.chmod(0o555)
    os.seteuid(65534)
    save(folder, 2)


def test_a_missing_permission_is_an_error_that_names_the_directory(tmp_path):
    save(tmp_path, 1)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    error = forked.result_of(save_without_permission, tmp_path)
    assert isinstance(error, PermissionError)
    assert str(tmp_path) in str(error)
    assert saved_number(tmp_path) == 1


def test_an_error_of_the_optimizer_keeps_its_type(tmp_path):
    def refuse(optimizer):
        raise KeyError("momentum")

    save(tmp_path, 1)
    optimizer = make_optimizer()
    optimizer.register_state_dict_pre_hook(refuse)
    with pytest.raises(KeyError, match="momentum"):
        GeneralCheckpointIO().save_optimizer(optimizer, str(tmp_path), shard=True)
    assert saved_number(tmp_path) == 1
    assert only_checkpoint_files(tmp_path)


@pytest.mark.parametrize("shard", [True, False])
def test_an_async_save_takes_the_state_as_it_was(tmp_path, shard):
    path = str(tmp_path if shard else tmp_path / "optimizer.safetensors")
    optimizer, expected, restored = make_optimizer(), make_optimizer(), make_optimizer()
    set_number(optimizer, 4)
    set_number(expected, 4)
    checkpoint_io = GeneralCheckpointIO()
    checkpoint_io.save_optimizer(optimizer, path, shard=shard, use_async=True)
    checkpoint_io.synchronize()
    for state in optimizer.state.values():
        state["exp_avg"].fill_(-1)
    checkpoint_io.load_optimizer(restored, path)
    native = make_optimizer()
    native.load_state_dict(expected.state_dict())
    assert_same(restored.state_dict()["param_groups"], native.state_dict()["param_groups"])
    for ours, theirs in zip(restored.state.values(), native.state.values(), strict=True):
        assert_same(dict(sorted(ours.items())), dict(sorted(theirs.items())))


def test_async_saves_follow_a_state_that_grows_shrinks_and_changes_its_dtype(tmp_path):
    optimizer, checkpoint_io = make_optimizer(), GeneralCheckpointIO()
    for number in (1, 2, 3, 4, 6):
        set_number(optimizer, number)
        checkpoint_io.save_optimizer(optimizer, str(tmp_path), shard=True, use_async=True)
        checkpoint_io._sync_io()
        assert saved_number(tmp_path) == number


def test_what_is_saved_in_safetensors_has_plain_forms_of_its_pickles(tmp_path):
    from safetensors import safe_open

    save(tmp_path, 5, "safetensors")
    for path in tmp_path.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        plain = json.loads(metadata["plain_values"])
        assert plain.keys() == set(json.loads(metadata["non_tensor_keys"]))
        assert set(plain.values()) == {5}


def make_model(value):
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 50))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


MODEL_WAYS = {
    "bin": {},
    "safetensors": {"use_safetensors": True},
    "async": {"use_safetensors": True, "use_async": True},
}


@pytest.mark.parametrize("way", MODEL_WAYS)
@pytest.mark.parametrize("shard", [True, False])
def test_a_model_is_saved_and_loaded_over_an_older_one(tmp_path, way, shard):
    path = str(tmp_path / ("model" if shard else "model.bin" if way == "bin" else "model.safetensors"))
    options = MODEL_WAYS[way] | {"shard": shard, "size_per_shard": MEGABYTES_OF_A_SHARD}
    checkpoint_io = GeneralCheckpointIO()
    for value in (1, 2):
        checkpoint_io.save_model(make_model(value), path, **options)
    loaded = make_model(0)
    checkpoint_io.load_model(loaded, path)
    assert_same_parameters(loaded.parameters(), make_model(2).parameters())
    assert not list(tmp_path.rglob(".saving-*"))


def test_a_sharded_model_has_the_names_that_are_looked_for(tmp_path):
    for way in ("safetensors", "async"):
        checkpoint_io = GeneralCheckpointIO()
        options = MODEL_WAYS[way] | {"size_per_shard": MEGABYTES_OF_A_SHARD}
        checkpoint_io.save_model(make_model(1), str(tmp_path), shard=True, **options)
        checkpoint_io._sync_io()
        names = ["model-00001.safetensors", "model-00002.safetensors", "model.safetensors.index.json"]
        assert sorted(path.name for path in tmp_path.iterdir()) == names


def saved_model_value(folder):
    model = make_model(-1)
    GeneralCheckpointIO().load_model(model, str(folder))
    (value,) = {value for parameter in model.parameters() for value in parameter.unique().tolist()}
    return value


def save_model_and_die(folder, value, operation):
    supply_faults()
    with fault_at(operation, kill, folder):
        GeneralCheckpointIO().save_model(
            make_model(value), str(folder), shard=True, size_per_shard=MEGABYTES_OF_A_SHARD
        )


def test_a_kill_at_any_file_operation_of_a_model_save_leaves_one_of_the_two_models(tmp_path):
    save_model_and_die(tmp_path, 0, 1000)
    for operation in range(1000):
        code = forked.exit_code(forked.start(save_model_and_die, tmp_path, operation + 1, operation))
        assert saved_model_value(tmp_path) in (operation, operation + 1)
        if code == 0:
            break
        GeneralCheckpointIO().save_model(
            make_model(operation + 1), str(tmp_path), shard=True, size_per_shard=MEGABYTES_OF_A_SHARD
        )
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            *map("pytorch_model-0000{}.bin".format, (1, 2)),
            "pytorch_model.bin.index.json",
        ]
    assert saved_model_value(tmp_path) == operation + 1

"""The commit of a save, on directories of small files."""

import errno
import fcntl
import json

import pytest

from colossalai_patch.optimizer_checkpoint.checked_file import finish_file
from colossalai_patch.optimizer_checkpoint.commit import BIN_MODEL, OPTIMIZER, DirectoryTarget
from colossalai_patch.optimizer_checkpoint.errors import SaveError
from colossalai_patch.optimizer_checkpoint.saved_index import named_files, unique_name
from colossalai_patch.optimizer_checkpoint.targets import FileTarget

ID = "0cba29bf"


@pytest.mark.parametrize(
    ("name", "unique"),
    [
        ("pytorch_optim-00001.bin", f"pytorch_optim-{ID}-00001.bin"),
        ("pytorch_optim.my-run-00001.bin", f"pytorch_optim.my-run-{ID}-00001.bin"),
        ("optimizer-00012.safetensors", f"optimizer-{ID}-00012.safetensors"),
        ("pytorch_optim-stage-00001-shard-00002.bin", f"pytorch_optim-{ID}-stage-00001-shard-00002.bin"),
        ("pytorch_optim-stage-00001-00003-shard-00002.bin", f"pytorch_optim-{ID}-stage-00001-00003-shard-00002.bin"),
        ("pytorch_optim_group.bin", f"pytorch_optim_group-{ID}-00000.bin"),
        ("pytorch_optim_group.my.run.bin", f"pytorch_optim_group.my.run-{ID}-00000.bin"),
    ],
)
def test_the_id_goes_before_the_number(name, unique):
    assert unique_name(name, ID) == unique


def write_optimizer(folder, content, suffix="bin", index="pytorch_optim.bin.index.json"):
    folder.mkdir(exist_ok=True)
    stem = "pytorch_optim" if suffix == "bin" else "optimizer"
    for name in ("pytorch_optim_group.bin", f"{stem}-00001.{suffix}", f"{stem}-00002.{suffix}"):
        (folder / name).write_text(f"{content} {name}")
    weight_map = {"0": f"{stem}-00001.{suffix}", "1": f"{stem}-00002.{suffix}"}
    (folder / index).write_text(
        json.dumps({"metadata": {"param_groups": "pytorch_optim_group.bin", "total_size": 1}, "weight_map": weight_map})
    )


def contents(directory):
    """What the files of the one checkpoint in a directory hold, with the index checked against all that is there."""
    (index_file,) = directory.glob("*.index.json")
    index = json.loads(index_file.read_text())
    names = named_files(index)
    assert {path.name for path in directory.iterdir()} == {index_file.name, *names}
    assert index["metadata"]["files"] == {name: finish_file(directory / name).as_json() for name in names}
    return index_file.name, sorted((directory / name).read_text() for name in names)


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    return tmp_path / "checkpoint"


def commit(directory, files, save_id=ID, layout=OPTIMIZER, prefix="", records=()):
    DirectoryTarget(directory, layout, prefix).commit(files, save_id, dict(records))


def test_a_commit_takes_the_place_of_what_stock_saved(tmp_path, directory):
    write_optimizer(directory, "old")
    write_optimizer(tmp_path / "files", "new")
    commit(directory, tmp_path / "files")
    name, held = contents(directory)
    assert name == "pytorch_optim.bin.index.json"
    assert all(text.startswith("new") for text in held)


def test_the_index_keeps_its_name_when_the_format_changes(tmp_path, directory):
    write_optimizer(directory, "old")
    write_optimizer(tmp_path / "files", "new", "safetensors", "optimizer.safetensors.index.json")
    commit(directory, tmp_path / "files")
    assert contents(directory)[0] == "pytorch_optim.bin.index.json"


def test_a_second_index_that_stock_left_is_removed(tmp_path, directory):
    write_optimizer(directory, "old")
    write_optimizer(directory, "older", "safetensors", "optimizer.safetensors.index.json")
    write_optimizer(tmp_path / "files", "new")
    commit(directory, tmp_path / "files")
    assert contents(directory)[0] == "pytorch_optim.bin.index.json"


LEFTOVERS = (
    "pytorch_optim-11111111-00007.bin",
    "optimizer-11111111-stage-00001-shard-00001.safetensors",
    "pytorch_optim_group-11111111-00000.bin",
)


def test_a_commit_leaves_alone_what_another_save_has_moved_in(tmp_path, directory):
    for name in LEFTOVERS:
        (directory / name).touch()
    write_optimizer(tmp_path / "files", "new")
    commit(directory, tmp_path / "files")
    assert all((directory / name).exists() for name in LEFTOVERS)


def test_what_a_dead_save_has_moved_in_is_removed_by_its_id(tmp_path, directory):
    write_optimizer(tmp_path / "files", "new")
    commit(directory, tmp_path / "files")
    for name in LEFTOVERS:
        (directory / name).touch()
    assert DirectoryTarget(directory, OPTIMIZER).remove_leftovers("11111111")
    contents(directory)


def test_what_an_index_names_is_no_leftover(tmp_path, directory):
    write_optimizer(tmp_path / "files", "new")
    commit(directory, tmp_path / "files")
    assert DirectoryTarget(directory, OPTIMIZER).remove_leftovers(ID)
    contents(directory)


def test_beside_an_index_that_cannot_be_read_everything_stays(directory):
    (directory / LEFTOVERS[0]).touch()
    (directory / "pytorch_optim.bin.index.json").write_text("{")
    assert not DirectoryTarget(directory, OPTIMIZER).remove_leftovers("11111111")
    assert (directory / LEFTOVERS[0]).exists()


def refuse_locks(monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_without_locks_a_model_keeps_the_names_of_its_save_and_leaves_the_plain_ones(tmp_path, directory, monkeypatch):
    refuse_locks(monkeypatch)
    write_model(directory, "old")
    write_model(tmp_path / "files", "new")
    commit(directory, tmp_path / "files", layout=BIN_MODEL)
    index = json.loads((directory / "pytorch_model.bin.index.json").read_text())
    assert named_files(index) == [f"pytorch_model-{ID}-00001.bin"]
    assert (directory / "pytorch_model-00001.bin").read_text() == "old"


def test_without_locks_what_a_dead_save_left_stays(directory, monkeypatch):
    refuse_locks(monkeypatch)
    (directory / LEFTOVERS[0]).touch()
    assert not DirectoryTarget(directory, OPTIMIZER).remove_leftovers("11111111")
    assert (directory / LEFTOVERS[0]).exists()


def test_a_shard_that_no_parameter_is_in_does_not_touch_the_old_checkpoint(tmp_path, directory):
    write_optimizer(directory, "old")
    write_optimizer(tmp_path / "files", "new")
    unnamed = tmp_path / "files" / "pytorch_optim-00003.bin"
    unnamed.touch()
    commit(directory, tmp_path / "files", records={unnamed.name: finish_file(unnamed)})
    contents(directory)


def test_another_prefix_is_another_checkpoint(tmp_path, directory):
    write_optimizer(directory, "other")
    before = {path.name: path.read_text() for path in directory.iterdir()}
    write_optimizer(tmp_path / "files", "new", index="pytorch_optim.bin.index.P.json")
    commit(directory, tmp_path / "files", prefix="P")
    assert before.items() <= {path.name: path.read_text() for path in directory.iterdir()}.items()


@pytest.mark.parametrize("count", [0, 2])
def test_without_exactly_one_index_nothing_is_committed(tmp_path, directory, count):
    write_optimizer(directory, "old")
    before = sorted(directory.iterdir())
    write_optimizer(tmp_path / "files", "new")
    index_file = tmp_path / "files" / "pytorch_optim.bin.index.json"
    if count == 0:
        index_file.unlink()
    else:
        (tmp_path / "files" / "pytorch_optim.bin.index.P.json").write_bytes(index_file.read_bytes())
    with pytest.raises(SaveError, match=f"{count} indexes"):
        commit(directory, tmp_path / "files")
    assert sorted(directory.iterdir()) == before


def write_model(folder, content):
    folder.mkdir(exist_ok=True)
    (folder / "pytorch_model-00001.bin").write_text(content)
    (folder / "config.json").write_text(content)
    (folder / "pytorch_model.bin.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"weight": "pytorch_model-00001.bin"}})
    )


def test_a_model_gets_its_names_back(tmp_path, directory):
    write_model(directory, "old")
    write_model(tmp_path / "files", "new")
    commit(directory, tmp_path / "files", layout=BIN_MODEL)
    names = ["config.json", "pytorch_model-00001.bin", "pytorch_model.bin.index.json"]
    assert sorted(path.name for path in directory.iterdir()) == names
    assert (directory / "pytorch_model-00001.bin").read_text() == (directory / "config.json").read_text() == "new"


def test_without_hard_links_a_model_keeps_the_names_of_its_save(tmp_path, directory, monkeypatch, caplog):
    def refuse(*arguments, **options):
        raise PermissionError("no hard links here")

    monkeypatch.setattr("os.link", refuse)
    write_model(directory, "old")
    write_model(tmp_path / "files", "new")
    commit(directory, tmp_path / "files", layout=BIN_MODEL)
    index = json.loads((directory / "pytorch_model.bin.index.json").read_text())
    assert named_files(index) == [f"pytorch_model-{ID}-00001.bin"]
    assert not (directory / "pytorch_model-00001.bin").exists()
    assert "no hard links here" in caplog.text


def test_an_unsharded_file_replaces_the_one_before(tmp_path):
    (tmp_path / "optimizer.bin").write_text("old")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "optimizer.bin").write_text("new")
    FileTarget(tmp_path / "optimizer.bin").commit(tmp_path / "files", ID, {})
    assert (tmp_path / "optimizer.bin").read_text() == "new"


def test_the_list_of_what_was_replaced_does_not_grow(tmp_path, directory):
    for number in range(4):
        write_optimizer(tmp_path / "files", "new")
        commit(directory, tmp_path / "files", save_id=f"0000000{number}")
    index = json.loads((directory / "pytorch_optim.bin.index.json").read_text())
    assert len(index["metadata"]["replaced"]) == 3


def test_what_a_killed_commit_did_not_remove_goes_with_the_next(tmp_path, directory, monkeypatch):
    write_optimizer(directory, "old")
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryTarget, "_remove", lambda *arguments: None)
        write_optimizer(tmp_path / "files", "new")
        commit(directory, tmp_path / "files")
    write_optimizer(tmp_path / "files", "newer")
    commit(directory, tmp_path / "files", save_id="12345678")
    contents(directory)

"""``read_whole`` reads again for as long as a save has replaced what it failed to read."""

import json
import os

import pytest
from click.testing import CliRunner
from written_checkpoints import changed, make_state_dict, write_file, write_sharded

from colossalai_patch.cli import main
from colossalai_patch.optimizer_checkpoint import checkpoint, shard, verification
from colossalai_patch.optimizer_checkpoint.consistent import read_whole, unchanged_files
from colossalai_patch.optimizer_checkpoint.errors import MissingFileError, ReplacedError
from colossalai_patch.optimizer_checkpoint.index import find_index

SAFETENSORS_INDEX = "optimizer.safetensors.index.json"


class Reads:
    """Fails as many times as there are actions, each of which it does before."""

    def __init__(self, *actions, error=FileNotFoundError):
        self.actions, self.error, self.count = actions, error, 0

    def __call__(self):
        self.count += 1
        if self.count > len(self.actions):
            return "read"
        self.actions[self.count - 1]()
        raise self.error


def nothing():
    pass


def train_on(state_dict):
    state_dict["state"][0]["step"] += 1


def replace(path, content):
    """As a commit does it: in one step, by another file."""
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").replace(path)


@pytest.fixture
def folder(tmp_path):
    return write_sharded(make_state_dict(), tmp_path / "checkpoint")


def commit_another(folder):
    """Replace the checkpoint by one with files and an index of other names, as a later save, in another format, may."""
    older, source = list(folder.iterdir()), write_sharded(changed(make_state_dict(), train_on), folder.parent / "new")
    index = json.loads(find_index(source).read_text())
    names = {path.name: f"later-{path.name}" for path in source.glob("*.bin")}
    for name, later in names.items():
        (source / name).rename(folder / later)
    index["metadata"]["param_groups"] = names[index["metadata"]["param_groups"]]
    index["weight_map"] = {key: names[name] for key, name in index["weight_map"].items()}
    replace(find_index(folder), json.dumps(index).encode())
    find_index(folder).rename(folder / SAFETENSORS_INDEX)
    for path in older:
        path.unlink(missing_ok=True)


def before_first_call(monkeypatch, module, name, action):
    function, actions = getattr(module, name), [action]

    def act_and_call(*arguments, **options):
        while actions:
            actions.pop()()
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, act_and_call)


def test_it_reads_again_each_time_that_the_index_was_replaced(folder):
    index = find_index(folder)
    read = Reads(*(lambda content=content: replace(index, content) for content in (b"1", b"22", b"3")))
    assert read_whole(read, folder) == "read"
    assert read.count == 4


def test_it_reads_again_if_the_index_has_another_name_now(folder):
    read = Reads(lambda: find_index(folder).rename(folder / SAFETENSORS_INDEX))
    assert read_whole(read, folder) == "read"


def test_it_reads_again_if_an_index_says_something_else_with_the_stat_of_before(folder):
    def edit():
        stat = index.stat()
        index.write_bytes(index.read_bytes().replace(b"1.0", b"2.0"))
        os.utime(index, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    index = find_index(folder)
    assert read_whole(Reads(edit), index) == "read"


def test_it_reads_again_if_the_file_that_is_the_checkpoint_was_replaced(tmp_path):
    path = write_file(make_state_dict(), tmp_path / "optimizer.pt")
    assert read_whole(Reads(lambda: replace(path, b"another")), path) == "read"


def test_it_reads_again_if_a_file_was_seen_to_be_replaced_under_the_same_index(folder):
    assert read_whole(Reads(nothing, error=ReplacedError), folder) == "read"


def test_it_reads_again_if_one_of_two_checkpoints_was_replaced(folder, tmp_path):
    other = write_file(make_state_dict(), tmp_path / "optimizer.pt")
    assert read_whole(Reads(lambda: replace(other, b"another")), folder, other) == "read"


def test_what_fails_under_an_unchanged_index_is_raised_at_once(folder):
    read = Reads(lambda: (folder / "pytorch_optim-00001.bin").unlink())
    with pytest.raises(FileNotFoundError):
        read_whole(read, folder)
    assert read.count == 1


def test_what_still_fails_after_a_save_is_raised(folder):
    read = Reads(lambda: replace(find_index(folder), b"another"), nothing)
    with pytest.raises(FileNotFoundError):
        read_whole(read, folder)
    assert read.count == 2


@pytest.mark.parametrize("name", ["pytorch_optim.bin.index.json", "pytorch_optim-00002.bin"])
def test_a_body_during_which_a_file_is_replaced_is_told(folder, name):
    with pytest.raises(ReplacedError, match="was replaced while it was read"), unchanged_files(find_index(folder)):
        replace(folder / name, (folder / name).read_bytes())


def test_a_body_during_which_another_file_is_replaced_is_not(folder):
    (folder / "another").touch()
    with unchanged_files(find_index(folder)):
        replace(folder / "another", b"")


@pytest.mark.parametrize("arguments", [["inspect"], ["verify"], ["verify", "--values"], ["convert"], ["diff"]])
@pytest.mark.parametrize(
    ("module", "name"), [(checkpoint, "check_file"), (checkpoint, "read_param_groups"), (shard, "map_file")]
)
def test_a_command_reads_one_of_two_checkpoints(folder, tmp_path, monkeypatch, arguments, module, name):
    same = write_sharded(changed(make_state_dict(), train_on), tmp_path / "same")
    before_first_call(monkeypatch, module, name, lambda: commit_another(folder))
    more = {"convert": [tmp_path / "converted"], "diff": [same]}.get(arguments[0], [])
    result = CliRunner().invoke(main, [*map(str, [*arguments, folder, *more])])
    assert result.exit_code == 0, result.output
    for path in more:
        assert CliRunner().invoke(main, ["diff", str(path), str(same)]).exit_code == 0


def test_verify_tells_what_is_wrong_under_an_unchanged_index(folder, monkeypatch):
    gone = folder / "pytorch_optim-00002.bin"
    before_first_call(monkeypatch, verification, "check_file", gone.unlink)
    found = json.loads(CliRunner().invoke(main, ["verify", str(folder), "--json"]).stdout)
    assert (found["missing"], found["damaged"]) == (1, 0)


def test_a_command_names_a_file_that_is_gone_under_an_unchanged_index(folder, monkeypatch):
    before_first_call(monkeypatch, checkpoint, "check_file", (folder / "pytorch_optim-00002.bin").unlink)
    result = CliRunner().invoke(main, ["inspect", str(folder), "--debug"])
    assert isinstance(result.exception, MissingFileError)

"""The commands on real checkpoints: what they print, and their exit codes."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from environments import CHECKOUT
from written_checkpoints import changed, make_state_dict, write_sharded

from colossalai_patch.cli import main

COMMANDS = sorted(main.commands)


def lines_of(text):
    return [line.strip() for line in text.splitlines()]


def spoil(state_dict):
    state_dict["state"][0]["exp_avg"][0, 0] = torch.nan


def examples_of(command):
    """The command lines in the help of a command, and how many times it says 'Example'."""
    return re.findall(r"^\s+colossalai-patch (.*)$", main.commands[command].help, re.MULTILINE)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "status"])
def test_every_example_of_the_help_runs(run, command):
    examples = examples_of(command)
    assert examples
    for example in examples:
        result = run(*shlex.split(example))
        assert result.exit_code == (1 if command == "diff" else 0), result.output


def test_inspect_shows_groups_states_steps_and_files(run):
    lines = lines_of(run("inspect", "checkpoint").stdout)
    assert "steps: 3" in lines
    assert "parameters: 4 with state, 1 without" in lines
    assert any(re.match(r"0 +2 +0\.1 +\[0\.9, 0\.999\] +0\.02", line) for line in lines)
    assert any(re.match(r"exp_avg +float32 +4", line) for line in lines)
    assert any(line.startswith("pytorch_optim-00001.bin") for line in lines)


def test_inspect_warns_where_steps_differ(run):
    lines = lines_of(run("inspect", "later").stdout)
    assert "warning: the steps of the parameters differ: 3 to 4" in lines


def test_inspect_has_one_line_per_parameter_if_asked(run):
    lines = lines_of(run("inspect", "checkpoint", "--params").stdout)
    assert any(re.match(r"0 +0 +step float32\[\], exp_avg float32\[4, 3\]", line) for line in lines)
    assert any(re.match(r"4 +1 +none", line) for line in lines)


def test_inspect_says_the_same_in_json(run):
    found = json.loads(run("inspect", "optimizer.pt", "--json", "--params").stdout)
    assert (found["form"], found["with_state"], found["steps"], len(found["params"])) == ("one file", 4, [3, 3], 5)
    assert "params" not in json.loads(run("inspect", "optimizer.pt", "--json").stdout)


def test_an_index_file_stands_for_its_directory(run):
    assert run("inspect", "checkpoint/pytorch_optim.bin.index.json").stdout == run("inspect", "checkpoint").stdout


def test_a_prefix_chooses_the_checkpoint(run):
    write_sharded(make_state_dict(steps=5), "checkpoint", prefix="other")
    assert "steps: 5" in lines_of(run("inspect", "checkpoint", "--prefix", "other").stdout)
    result = run("inspect", "checkpoint")
    assert result.exit_code == 2
    assert "several optimizer checkpoints" in result.stderr


def test_verify_says_first_that_a_checkpoint_is_sound(run):
    result = run("verify", "checkpoint")
    assert result.exit_code == 0
    assert lines_of(result.stdout)[0].startswith("sound: ")


def test_verify_says_first_that_nothing_could_be_compared(run):
    run("convert", "checkpoint", "one.safetensors")
    result = run("verify", "one.safetensors")
    assert result.exit_code == 0
    first, second = lines_of(result.stdout)
    assert first == "sound as far as can be told: one.safetensors"
    assert second == "files: 1, missing: 0, damaged: 0, without a checksum: 1"


def test_verify_says_first_that_a_checkpoint_is_not_sound_and_then_why(run):
    Path("checkpoint/pytorch_optim-00001.bin").unlink()
    result = run("verify", "checkpoint")
    assert result.exit_code == 1
    first, second, problem = lines_of(result.stdout)
    assert first.startswith("not sound: ")
    assert second == "files: 3, missing: 1, damaged: 0, without a checksum: 0"
    assert problem.startswith("checkpoint/pytorch_optim-00001.bin is missing")


def test_verify_says_what_is_not_a_checkpoint(run, tmp_path):
    Path("empty").mkdir()
    result = run("verify", "empty")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: not a checkpoint: empty holds no index")
    assert result.stdout == ""


FAILING = {
    "inspect": ["missing"],
    "verify": ["missing"],
    "diff": ["checkpoint", "missing"],
    "convert": ["checkpoint", "later"],
    "status": ["unexpected"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("wrong", [[], ["--no-such-option"]], ids=["", "usage"])
def test_an_error_is_a_json_object_too_if_asked(run, command, wrong):
    result = run(command, *FAILING[command], *wrong, "--json")
    assert result.exit_code == 2
    (error,) = json.loads(result.stdout).values()
    assert result.stderr.endswith(f"Error: {error}\n")
    assert run(command, *FAILING[command], *wrong).stdout == ""


@pytest.mark.parametrize(
    "arguments", [["inspect"], ["verify"], ["diff", "checkpoint"], ["convert", "--to-native", "x.pt"]]
)
def test_a_file_of_another_kind_is_called_that(run, arguments):
    Path("train.py").write_text("import torch")
    result = run(*arguments, "train.py")
    assert result.exit_code == 2
    assert result.stderr.endswith("train.py is neither a file of torch.save nor one of safetensors.\n")


def test_verify_counts_what_is_not_finite_if_asked(run):
    write_sharded(changed(make_state_dict(), spoil), "spoiled")
    assert run("verify", "spoiled").exit_code == 0
    result = run("verify", "spoiled", "--values")
    assert result.exit_code == 1
    assert any(re.match(r"exp_avg +1 +0 +1", line) for line in lines_of(result.stdout))


@pytest.mark.parametrize("spoiled", [False, True])
def test_verify_says_the_same_in_json(run, spoiled):
    write_sharded(changed(make_state_dict(), spoil) if spoiled else make_state_dict(), "other")
    result = run("verify", "other", "--values", "--json")
    assert result.exit_code == spoiled
    assert json.loads(result.stdout) == {
        "sound": not spoiled,
        "checkpoint": "other/pytorch_optim.bin.index.json",
        "files": 3,
        "missing": 0,
        "damaged": 0,
        "without_checksum": 0,
        "problems": [],
        "not_finite": {"exp_avg": {"nan": 1, "infinite": 0, "params": 1}} if spoiled else {},
    }


def test_diff_of_equals_exits_with_zero(run):
    result = run("diff", "checkpoint", "optimizer.pt")
    assert result.exit_code == 0
    assert lines_of(result.stdout)[0] == "equal"


def test_diff_shows_the_largest_differences_and_exits_with_one(run):
    result = run("diff", "checkpoint", "later")
    assert result.exit_code == 1
    lines = lines_of(result.stdout)
    assert lines[:2] == ["different", "parameters with equal states: 3"]
    assert any(re.match(r"step +1 +1 +0\.25", line) for line in lines)
    assert any(re.match(r"exp_avg +1 +1 ", line) for line in lines)


def test_diff_says_the_same_in_json(run):
    result = run("diff", "checkpoint", "later", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["equal"], found["equal_params"], found["only_in_first"]) == (False, 3, [])
    assert found["values"]["step"] == {"params": 1, "absolute": 1, "relative": 0.25}


def test_json_has_text_for_what_is_not_finite(run):
    write_sharded(changed(make_state_dict(), spoil), "spoiled")
    found = json.loads(run("diff", "checkpoint", "spoiled", "--json").stdout, parse_constant=pytest.fail)
    assert found["values"]["exp_avg"]["absolute"] == "nan"


def test_diff_with_something_else_exits_with_two(run):
    assert run("diff", "checkpoint", "missing").exit_code == 2


def test_convert_overwrites_nothing_unless_forced(run):
    before = Path("optimizer.pt").stat()
    result = run("convert", "later", "optimizer.pt")
    assert result.exit_code == 2
    assert result.stderr.endswith("optimizer.pt is there already. --force replaces it.\n")
    assert Path("optimizer.pt").stat() == before
    assert run("convert", "later", "optimizer.pt", "--force").exit_code == 0
    assert run("diff", "later", "optimizer.pt").exit_code == 0


def test_convert_keeps_the_checkpoint_of_a_directory_unless_forced(run):
    assert run("convert", "later", "checkpoint").exit_code == 2
    assert run("diff", "optimizer.pt", "checkpoint").exit_code == 0
    assert run("convert", "later", "checkpoint", "--force").exit_code == 0
    assert run("diff", "later", "checkpoint").exit_code == 0


@pytest.mark.parametrize(("old", "new"), [("bin", "safetensors"), ("safetensors", "bin")])
def test_a_forced_conversion_to_another_format_leaves_one_checkpoint_and_nothing_of_the_old(run, old, new):
    assert run("convert", "later", "other", "--format", old).exit_code == 0
    before = {path.name for path in Path("other").iterdir() if path.suffix != ".json"}
    assert run("convert", "checkpoint", "other", "--format", new, "--force").exit_code == 0
    found = json.loads(run("inspect", "other", "--json").stdout)
    assert found["file_format"] == new
    assert {str(path) for path in Path("other").iterdir()} == {
        found["checkpoint"],
        *(f"other/{name}" for name in found["file_bytes"]),
    }
    assert not before & found["file_bytes"].keys()
    assert run("diff", "checkpoint", "other").exit_code == 0


DOCUMENTED_KEYS = re.findall(
    r"^\| `(\w+)` +\| `(\w+)` ", (CHECKOUT / "docs" / "command-line.md").read_text(), re.MULTILINE
)
SUCCEEDING = {
    "inspect": ["checkpoint", "--params"],
    "verify": ["checkpoint"],
    "diff": ["checkpoint", "later"],
    "convert": ["checkpoint", "other"],
    "status": [],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_documented_keys_are_those_in_the_json(run, command):
    printed = json.loads(run(command, *SUCCEEDING[command], "--json").stdout)
    assert set(printed) == {key for name, key in DOCUMENTED_KEYS if name == command}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_says_the_exit_codes(command):
    assert "The exit code is 0" in main.commands[command].help


def test_convert_says_in_json_what_became_what(run):
    result = run("convert", "checkpoint", "other", "--json")
    assert json.loads(result.stdout) == {
        "source": "checkpoint/pytorch_optim.bin.index.json",
        "destination": "other",
    }


def test_convert_from_and_to_native(run):
    assert run("convert", "--from-native", "optimizer.pt", "shards", "--format", "safetensors").exit_code == 0
    assert run("convert", "shards", "--to-native", "again.native").exit_code == 0
    assert torch.load("again.native", weights_only=True).keys() == {"state", "param_groups"}
    assert run("diff", "optimizer.pt", "again.native").exit_code == 0


@pytest.mark.parametrize("text", ["2", "0GB", "GB", "2 elephants", "-1MB"])
def test_a_wrong_size_is_told(run, text):
    result = run("convert", "checkpoint", "other", "--shard-size", text)
    assert result.exit_code == 2
    assert "is no size, such as 500MB, 2GB or 1.5GiB" in result.stderr


@pytest.mark.parametrize(
    ("text", "size"), [("1B", 1), ("2GB", 2 * 10**9), ("1.5gib", 3 * 2**29), ("500 MB", 5 * 10**8), ("1KiB", 1024)]
)
def test_sizes_are_decimal_or_binary_by_their_unit(text, size):
    option = next(param for param in main.commands["convert"].params if param.name == "shard_size")
    assert option.type.convert(text, option, click.Context(main)) == size


@pytest.mark.parametrize(
    "arguments", [["checkpoint"], ["a", "b", "c"], ["checkpoint", "one.bin", "--shard-size", "1GB"]]
)
def test_convert_refuses_what_makes_no_sense(run, arguments):
    assert run("convert", *arguments).exit_code == 2


def test_an_error_is_one_line_and_debug_shows_its_traceback(run):
    result = run("inspect", "missing")
    assert result.exit_code == 2
    assert result.stderr == "Error: missing is neither a directory nor a file. Is the path right?\n"
    assert run("inspect", "missing", "--debug").exc_info[0].__name__ == "MissingFileError"


CONTROL = "[red]\x1b[31m"


def rename(state_dict):
    state_dict["state"][0][CONTROL] = torch.tensor(torch.nan)
    state_dict["param_groups"][0][CONTROL] = CONTROL


@pytest.mark.parametrize(
    "arguments", [["inspect", "--params"], ["verify", "--values"], ["diff", "checkpoint"]], ids=lambda each: each[0]
)
def test_what_a_terminal_would_obey_is_shown_instead(run, arguments):
    write_sharded(changed(make_state_dict(), rename), "crafted")
    output = run(*arguments, "crafted").output
    assert "[red]\\x1b[31m" in output
    assert "\x1b" not in output


def test_an_error_shows_what_a_terminal_would_obey(run):
    assert run("inspect", f"missing{CONTROL}").stderr.startswith("Error: missing[red]\\x1b[31m is ")


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_piped_output_is_plain(run, command):
    result = run(command, "checkpoint", "--prefix", "")
    assert result.output.isascii()
    assert "\x1b" not in result.output


PROGRESS = {
    "verify": (["checkpoint", "--values"], b"verifying"),
    "diff": (["checkpoint", "later"], b"comparing"),
    "convert": (["checkpoint", "other"], b"comparing"),
}


@pytest.mark.parametrize("command", PROGRESS)
@pytest.mark.slow
def test_progress_is_shown_on_a_terminal(run, command):
    arguments, stage = PROGRESS[command]
    controller, terminal = pty.openpty()
    line = [sys.executable, "-m", "colossalai_patch", command, *arguments]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=terminal, env=os.environ | {"TERM": "xterm"})
    assert process.communicate()[0]
    assert stage in os.read(controller, 2**16)


@pytest.mark.parametrize("command", PROGRESS)
def test_progress_is_not_shown_in_a_pipe(run, command):
    assert run(command, *PROGRESS[command][0]).stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(run, shell):
    assert f"_COLOSSALAI_PATCH_COMPLETE={shell}_complete" in run(_COLOSSALAI_PATCH_COMPLETE=f"{shell}_source").output


def test_the_shell_completes_commands(run):
    result = run(_COLOSSALAI_PATCH_COMPLETE="bash_complete", COMP_WORDS="colossalai-patch v", COMP_CWORD="1")
    assert result.output == "plain,verify\n"


def test_help_imports_neither_torch_nor_colossalai():
    code = (
        "import sys; from colossalai_patch.cli import main; main(['--help'], standalone_mode=False); "
        "print([name for name in ('torch', 'colossalai') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_inspecting_does_not_import_colossalai(run):
    code = (
        "import sys; from colossalai_patch.cli import main; main(['inspect', 'checkpoint'], standalone_mode=False); "
        "print('colossalai' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"

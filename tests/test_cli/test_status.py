"""``colossalai-patch status`` says what is active, and exits with 0 only when all is."""

import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from click.testing import CliRunner
from environments import CHECKOUT

from colossalai_patch import overlay, status
from colossalai_patch.cli import main

GENERAL = "colossalai.checkpoint_io.general_checkpoint_io"


@pytest.fixture
def found(monkeypatch):
    """What the command finds: a status that a test fills in, so that ColossalAI need not be imported."""
    found = status.Status([], {"torch": "2.13.0"})
    monkeypatch.setattr("colossalai_patch.cli.status.find_status", lambda: found)
    return found


def test_all_active_exits_with_zero(found):
    found.modules.append(status.ModuleStatus(GENERAL, status.ACTIVE, ""))
    result = CliRunner().invoke(main, ["status"])
    assert result.exit_code == 0
    assert GENERAL in result.output
    assert "torch 2.13.0" in result.output


@pytest.mark.parametrize("state", [status.OFF, status.UNTESTED, status.FAILED])
def test_anything_else_exits_with_one_and_shows_its_reason(found, state):
    found.modules.append(status.ModuleStatus(GENERAL, state, "[because]"))
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["status"])
    assert result.exit_code == 1
    assert state in result.output
    assert "[because]" in result.output


def test_json_says_the_same(found):
    found.modules.append(status.ModuleStatus(GENERAL, status.FAILED, "because"))
    result = CliRunner().invoke(main, ["status", "--json"])
    assert json.loads(result.output) == {
        "modules": [{"module": GENERAL, "state": "failed", "reason": "because"}],
        "versions": {"torch": "2.13.0"},
        "all_active": False,
    }


def test_the_versions_are_those_installed():
    versions = status.find_status().versions
    assert versions["colossalai"] == overlay.installed_release()
    assert versions["torch"] == version("torch")
    assert versions["safetensors"] == version("safetensors")
    assert versions["python"] == platform.python_version()


SETTINGS = re.findall(r"^\| `(COLOSSALAI_PATCH\w*)`", (CHECKOUT / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_wrong_setting_is_one_line_on_stderr(monkeypatch, name):
    monkeypatch.setenv(name, "wrong")
    result = CliRunner().invoke(main, ["status"])
    assert result.exit_code == 1
    assert re.fullmatch(rf"Error: {name}='wrong': it can be .+ or .+\n", result.stderr)


def test_a_misspelt_setting_is_one_line_that_names_those_there_are(monkeypatch):
    monkeypatch.setenv("COLOSSALAI_PATCH_PROGRES", "0")
    result = CliRunner().invoke(main, ["status"])
    assert result.exit_code == 1
    assert (
        result.stderr
        == f"Error: COLOSSALAI_PATCH_PROGRES is no setting and has no effect: there are {', '.join(SETTINGS)}\n"
    )


def test_a_wrong_setting_is_in_json_too(monkeypatch):
    monkeypatch.setenv("COLOSSALAI_PATCH", "of")
    result = CliRunner().invoke(main, ["status", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"error": "COLOSSALAI_PATCH='of': it can be 'on' (the default) or 'off'"}


def test_the_module_runs_as_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "colossalai_patch", "status", "--help"], capture_output=True, text=True
    )
    assert result.returncode == 0
    assert "Say which modules of ColossalAI are patched" in result.stdout


NOISY = """
import logging, os, sys, warnings
warnings.warn("unwanted"), logging.error("unwanted"), print("unwanted")
os.write(1, b"unwanted"), os.write(2, b"unwanted")
"""


def test_what_libraries_tell_while_they_are_imported_is_not_shown(tmp_path):
    """Through ``tensornvme``, which ColossalAI tries to import and does without."""
    (tmp_path / "tensornvme.py").write_text(f"{NOISY}\nraise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-m", "colossalai_patch", "status", "--json"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["all_active"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise OSError('no device')", "OSError: no device"),
        ("import sys; sys.exit('no device')", "SystemExit: no device"),
    ],
)
def test_a_module_that_cannot_be_imported_is_failed_with_its_reason(tmp_path, monkeypatch, capfd, code, reason):
    (tmp_path / "broken_module.py").write_text(f"{NOISY}\n{code}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(overlay, "overlaid_modules", lambda: ["broken_module"])
    (module,) = status.find_status().modules
    assert (module.state, module.reason.endswith(reason)) == (status.FAILED, True)
    assert capfd.readouterr() == ("", "")

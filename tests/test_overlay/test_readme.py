"""A new user gets along with the README alone: its commands run, in a fresh environment."""

import doctest
import os
import re
import subprocess
import sys

import pytest
from environments import CHECKOUT

README = (CHECKOUT / "README.md").read_text()
START = re.search(r"```sh\n(.*?)```", README, re.DOTALL)[1].splitlines()
TRAIN = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
PRINTED = dict(
    re.findall(r"^\$ (.*)\n([^$`]*)", re.search(r"```console\n(.*?)```", README, re.DOTALL)[1], re.MULTILINE)
)
COMPLETION = re.search(r"`(eval .*?)`", README)[1]
EXPECTED_CODES = {"colossalai-patch diff checkpoint later": 1, "COLOSSALAI_PATCH=off colossalai-patch status": 1}
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}


@pytest.fixture
def shell(environment_without_patch, checkout):
    """Run a command line in bash, in the checkout, as with the environment activated; what was asked for is there."""
    folder = environment_without_patch.python.parent
    pip = f"{sys.executable} -m pip --python {environment_without_patch.python}"
    torchrun = f"{environment_without_patch.python} -m torch.distributed.run"
    for name, command in {"pip": pip, "torchrun": torchrun}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    variables = os.environ | OFFLINE | {"PATH": f"{folder}:{os.environ['PATH']}"}
    variables.pop("COLOSSALAI_PATCH", None)
    return lambda line: subprocess.run(
        ["bash", "-c", line], cwd=checkout, env=variables, capture_output=True, text=True, check=False
    )


def test_the_first_commands_run_one_after_the_other_and_print_what_is_shown(shell, checkout):
    (checkout / "train.py").write_text(TRAIN)
    commands = [line.partition("#")[0].strip() for line in START]
    assert {"pip install .", *EXPECTED_CODES, *PRINTED} < set(commands)
    for command in commands:
        result = shell(command)
        assert result.returncode == EXPECTED_CODES.get(command, 0), f"{command}\n{result.stdout}{result.stderr}"
        assert_printed(result.stdout, PRINTED.get(command, "..."))
    assert shell("colossalai-patch status").returncode == 127


def assert_printed(actual, shown):
    """Compare but for white space, ``...`` in what is shown standing for anything."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(shown.strip(), actual.strip(), options), actual


def test_the_line_for_completion_completes(shell):
    assert shell("pip install .").returncode == 0
    result = shell(f"{COMPLETION}; complete -p colossalai-patch")
    assert result.stdout.endswith(" colossalai-patch\n"), result.stderr


def test_every_make_target_in_the_readme_is_one():
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", README)) <= targets


def test_every_link_in_the_readme_leads_somewhere():
    links = set(re.findall(r"\]\((?!https?:)([^)]*)\)", README))
    assert {link for link in links if not (CHECKOUT / link).exists()} == set()

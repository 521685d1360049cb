"""What the README's table says of stock and of the patch."""

import json
import os
import subprocess
import sys

import pytest
from environments import CHECKOUT

SCRIPT = CHECKOUT / "tests" / "claims.py"
CLAIMS = {
    "a_load_without_a_device": ("RuntimeError", "loaded"),
    "momentum_after_a_rollback": (0.81, 0.9),
    "a_truncated_shard": ("optimizer changed in part", "optimizer unchanged"),
    "a_kill_while_saving": ("a mixture of both", "the old checkpoint"),
    "a_save_over_a_loaded_file": ("the process dies of SIGBUS", "the process trains on"),
    "code_in_a_shard": ("the code ran", "refused"),
    "an_asynchronous_save": ("RuntimeError", "saved"),
}


@pytest.fixture(scope="module")
def outcomes():
    def of(patch):
        command = [sys.executable, "-W", "ignore", SCRIPT]
        variables = os.environ | {"COLOSSALAI_PATCH": patch}
        output = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout
        return json.loads(output[f"\n{output}".rindex("\n{\n") :])  # behind what ColossalAI logs

    return [of("off"), of("on")]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_row_of_the_readme_is_true(outcomes, claim):
    assert tuple(outcome[claim] for outcome in outcomes) == CLAIMS[claim]


def test_every_claim_is_a_row_of_the_readme():
    readme = (CHECKOUT / "README.md").read_text()
    assert [claim for claim in CLAIMS if f"`{claim}`" not in readme] == []

"""Every plugin's saves are committed once, by all ranks or by none: the checks are in ``distributed/``."""

from pathlib import Path

import pytest
from processes import outcomes

SCRIPT = Path(__file__).parent / "distributed" / "committing.py"
TOPOLOGIES = ["ddp", "zero1", "hybrid-dp2-zero1", "hybrid-tp2", "hybrid-pp2", "moe-ep2-zero1", "gemini", "fsdp"]
CHECKS = ["async", "load", "tidy", "model", "no space, sync", "no space, async"]
CASES = [(topology, check) for topology in TOPOLOGIES for check in CHECKS]
CASES.remove(("ddp", "load"))  # its ranks do not wait for each other
CASES.remove(("fsdp", "model"))  # its models cannot be saved on CPU


@pytest.fixture(scope="module")
def committing(tmp_path_factory):
    return outcomes(SCRIPT, tmp_path_factory.mktemp("committing"), *TOPOLOGIES)


@pytest.mark.parametrize(("topology", "check"), CASES)
def test_all_ranks_commit_together(committing, topology, check):
    assert committing[f"{topology}: {check}"]["errors"] == [None, None]

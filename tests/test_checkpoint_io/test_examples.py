"""The example for users, run on CPU processes."""

import re
from pathlib import Path

import pytest
from environments import CHECKOUT
from processes import torchrun

ON_CPUS = Path(__file__).parent / "distributed" / "example.py"


def run_resume(*arguments):
    """Run ``examples/resume.py`` and return the loss of each step as it was printed."""
    printed = torchrun(ON_CPUS, CHECKOUT / "examples" / "resume.py", *arguments)
    return dict(re.findall(r"step (\d+): loss (\S+)", printed))


def test_a_training_that_is_resumed_has_the_losses_of_one_that_was_not_interrupted(tmp_path):
    uninterrupted = run_resume(tmp_path / "uninterrupted")
    with pytest.raises(AssertionError, match="crashed before step 5"):
        run_resume(tmp_path / "interrupted", "--crash-before", 5)
    resumed = run_resume(tmp_path / "interrupted")
    assert resumed.keys() == {"3", "4", "5", "6", "7"}
    assert resumed == {step: uninterrupted[step] for step in resumed}

"""What ``make crash`` does, for as long as a suite has time."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "crash.py"
KILLS = 30


def test_a_kill_leaves_one_of_the_two_states_that_were_being_written():
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), "--kills", str(KILLS)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].startswith(f"{KILLS} kills")

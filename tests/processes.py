"""Real training processes, started as users start them."""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def torchrun(script, *arguments, processes=2, timeout=240):
    """Run ``script`` in that many processes on this machine and return what they print; fail as they do."""
    result = _torchrun(script, arguments, processes, timeout)
    assert result.returncode == 0, f"{script} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def outcomes(script, *arguments, processes=2, timeout=240, **variables):
    """Run a script of checks (``distributed/checking.py``) and return the outcome of each that came to an end.

    Returns:
        By the name of the check, a dict with ``errors`` of each rank and ``seconds``.
    """
    return _outcomes_in(_torchrun(script, arguments, processes, timeout, **variables), script)


def outcomes_of_forks(script, *arguments, timeout=3000, **variables):
    """As ``outcomes``, of a script that forks its ranks itself (``distributed/forked_ranks.py``)."""
    return _outcomes_in(_run([sys.executable], script, arguments, timeout, variables), script)


def _outcomes_in(result, script):
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert lines, f"{script} failed:\n{result.stdout}\n{result.stderr}"
    return {line.pop("name"): line for line in lines}


def _torchrun(script, arguments, processes, timeout, **variables):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    return _run(command, script, arguments, timeout, variables)


def _run(command, script, arguments, timeout, variables):
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": path}
    return subprocess.run(
        [*command, str(script), *map(str, arguments)],
        env=os.environ | settings | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )

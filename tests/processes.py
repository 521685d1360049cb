"""Real training processes, started as users start them."""

import os
import subprocess
import sys


def torchrun(script, *arguments, processes=2, timeout=240):
    """Run ``script`` in that many processes on this machine and return what they print; fail as they do."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(
        [*command, str(script), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, f"{script} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout

"""Virtual environments to install into, seen from outside."""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
SOURCES = Path(sys.prefix, "sources")
PIP_OPTIONS = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]


@dataclass
class Environment:
    """A virtual environment in ``folder``."""

    folder: Path

    @property
    def python(self):
        return self.folder / "bin" / "python"

    @property
    def site_packages(self):
        return Path(sysconfig.get_path("purelib", "venv", {"base": self.folder, "platbase": self.folder}))

    def pip(self, command, *arguments):
        run([sys.executable, "-m", "pip", "--python", self.python, command, *arguments])

    def output(self, *arguments, cwd=None, **variables):
        """What Python prints, without what ColossalAI warns about."""
        return run([self.python, *arguments], cwd=cwd or self.folder, **variables).stdout.strip()


def run(command, cwd=None, **variables):
    unset = {"COLOSSALAI_PATCH", "PYTHONPATH"}
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    result = subprocess.run(command, cwd=cwd, env=inherited | variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result

import pytest
from click.testing import CliRunner
from written_checkpoints import changed, make_state_dict, write_file, write_sharded

from colossalai_patch.cli import main


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command line in a folder with the checkpoints ``checkpoint/``, ``later/`` and ``optimizer.pt``."""

    def train_on(state_dict):
        state_dict["state"][0]["exp_avg"] += 1
        state_dict["state"][0]["step"] += 1

    write_sharded(make_state_dict(), tmp_path / "checkpoint")
    write_sharded(changed(make_state_dict(), train_on), tmp_path / "later")
    write_file(make_state_dict(), tmp_path / "optimizer.pt")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **variables: CliRunner(env=variables).invoke(
        main, arguments, prog_name="colossalai-patch"
    )

"""Through Booster, in real processes."""

from pathlib import Path

from processes import torchrun

SCRIPTS = Path(__file__).parent / "distributed"


def test_ddp_restores_as_natively_on_every_rank(tmp_path):
    output = torchrun(SCRIPTS / "ddp.py", tmp_path)
    assert sorted(output.splitlines()[-2:]) == ["rank 0 equals native", "rank 1 equals native"]

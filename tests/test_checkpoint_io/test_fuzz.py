"""A sample of ``make fuzz``."""

from fuzz import run


def test_spoilt_checkpoints_load_as_natively_or_are_refused():
    outcomes = dict(run(range(500)))
    assert len(outcomes) == 500
    assert {seed: outcome for seed, outcome in outcomes.items() if outcome.startswith("VIOLATION")} == {}
    assert len(set(outcomes.values())) > 2

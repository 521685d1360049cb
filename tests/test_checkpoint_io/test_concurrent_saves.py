"""Processes that save to one directory at the same time lose nothing, with and without locks and kills."""

import random

import pytest
from concurrent_saves import WAYS, refuse_locks, rounds
from forked import result_of

ROUNDS_OF_EACH_WAY = 1


def rounds_without_locks(*arguments):
    refuse_locks()
    return rounds(*arguments)


@pytest.mark.parametrize("kill", [False, True], ids=["all live", "one is killed"])
@pytest.mark.parametrize("do_rounds", [rounds, rounds_without_locks], ids=["locks", "no locks"])
def test_the_checkpoint_is_whole_and_one_of_the_last(tmp_path, do_rounds, kill):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    assert result_of(do_rounds, ROUNDS_OF_EACH_WAY * len(WAYS), tmp_path, seed, kill) == {}

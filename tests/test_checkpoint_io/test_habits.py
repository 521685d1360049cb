"""What scripts do with stock works as it does there: the checks are in ``distributed/habits*.py``.

All of them pass with ``COLOSSALAI_PATCH=off``, too, where nothing but TensorNVMe and pinned memory is supplied.
"""

from pathlib import Path

import pytest
from processes import outcomes_of_forks

SCRIPTS = Path(__file__).parent / "distributed"
KINDS = ("the model in shards", "the model in one file", "the optimizer in shards", "the optimizer in one file")
PLUGINS = ("ddp", "zero1")

every_kind = pytest.mark.parametrize("kind", KINDS)
every_plugin = pytest.mark.parametrize("plugin", PLUGINS)


@pytest.fixture(scope="module")
def habits(tmp_path_factory):
    return outcomes_of_forks(SCRIPTS / "habits.py", tmp_path_factory.mktemp("habits"))


def assert_works(found, name):
    assert name in found, "the processes ended before"
    assert not any(found[name]["errors"]), found[name]["errors"]


@every_kind
def test_rank_0_alone_saves(habits, kind):
    assert_works(habits, f"rank_0_alone_saves: {kind}")


@every_kind
def test_rank_0_alone_saves_in_the_background(habits, kind):
    assert_works(habits, f"rank_0_alone_saves_in_the_background: {kind}")


@every_kind
def test_rank_1_alone_asks_to_save(habits, kind):
    assert_works(habits, f"rank_1_alone_asks_to_save: {kind}")


@every_kind
def test_rank_0_alone_loads(habits, kind):
    assert_works(habits, f"rank_0_alone_loads: {kind}")


def test_rank_0_saves_its_best_model(habits):
    assert_works(habits, "rank_0_saves_its_best_model")


@every_plugin
def test_ranks_load_one_after_the_other(habits, plugin):
    assert_works(habits, f"ranks_load_one_after_the_other: {plugin}")


@pytest.mark.parametrize("who", ["rank_0_saves_in_a_thread_while_the_ranks", "all_ranks_save_in_threads_while_they"])
def test_a_thread_saves_while_the_ranks_train_on(habits, who):
    assert_works(habits, f"{who}_train_on")


@every_plugin
@every_kind
def test_each_rank_has_a_disk_of_its_own(habits, plugin, kind):
    assert_works(habits, f"each_rank_has_a_disk_of_its_own: {plugin}, {kind}")


@every_kind
def test_a_save_makes_no_collective(habits, kind):
    assert_works(habits, f"a_save_makes_no_collective: {kind}")


@every_kind
def test_a_save_in_the_background_makes_no_collective(habits, kind):
    assert_works(habits, f"a_save_in_the_background_makes_no_collective: {kind}")


@every_plugin
@every_kind
def test_a_load_makes_no_collective(habits, plugin, kind):
    assert_works(habits, f"a_load_makes_no_collective: {plugin}, {kind}")

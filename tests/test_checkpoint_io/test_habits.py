"""What scripts do with stock works as it does there: the checks are in ``distributed/habits*.py``.

They pass with ``COLOSSALAI_PATCH=off``, too; there, TensorNVMe and pinned memory have stand-ins.
"""

from itertools import product
from pathlib import Path

import pytest
from processes import outcomes_of_forks

SCRIPTS = Path(__file__).parent / "distributed"
SHARDED = ("the model in shards", "the optimizer in shards")
FILES = ("the model in one file", "the optimizer in one file")
MODELS = ("the model in shards", "the model in one file")
OPTIMIZERS = ("the optimizer in shards", "the optimizer in one file")
KINDS = MODELS + OPTIMIZERS
PLUGINS = ("ddp", "zero1")
ALL_PLUGINS = (*PLUGINS, "hybrid-dp2", "hybrid-tp2", "hybrid-pp2")
WHEN = ("at_once", "in_the_background")


def outcomes_of(name):
    """A fixture: the outcomes of all habits in one script."""

    @pytest.fixture(scope="module", name=name)
    def run(tmp_path_factory):
        return outcomes_of_forks(SCRIPTS / f"{name}.py", tmp_path_factory.mktemp(name))

    return run


habits = outcomes_of("habits")
habits_of_folders = outcomes_of("habits_of_folders")
habits_of_one_process = outcomes_of("habits_of_one_process")
habits_of_plugins = outcomes_of("habits_of_plugins")
habits_of_boosters = outcomes_of("habits_of_boosters")


def in_each(*values):
    """Run a test for each case, named by the values that its check is called with."""
    return pytest.mark.parametrize("case", [", ".join(case) for case in product(*values)])


def assert_works(found, name):
    assert name in found, "the processes ended before"
    assert not any(found[name]["errors"]), found[name]["errors"]


@in_each(KINDS)
def test_rank_0_alone_saves(habits, case):
    assert_works(habits, f"rank_0_alone_saves: {case}")


@in_each(KINDS)
def test_rank_0_alone_saves_in_the_background(habits, case):
    assert_works(habits, f"rank_0_alone_saves_in_the_background: {case}")


@in_each(KINDS)
def test_rank_1_alone_asks_to_save(habits, case):
    assert_works(habits, f"rank_1_alone_asks_to_save: {case}")


@in_each(KINDS)
def test_rank_0_alone_loads(habits, case):
    assert_works(habits, f"rank_0_alone_loads: {case}")


def test_rank_0_saves_its_best_model(habits):
    assert_works(habits, "rank_0_saves_its_best_model")


@in_each(PLUGINS)
def test_ranks_load_one_after_the_other(habits, case):
    assert_works(habits, f"ranks_load_one_after_the_other: {case}")


def test_rank_0_saves_in_a_thread_while_the_ranks_train_on(habits):
    assert_works(habits, "rank_0_saves_in_a_thread_while_the_ranks_train_on")


def test_all_ranks_save_in_threads_while_they_train_on(habits):
    assert_works(habits, "all_ranks_save_in_threads_while_they_train_on")


@in_each(PLUGINS, KINDS)
def test_each_rank_has_a_disk_of_its_own(habits, case):
    assert_works(habits, f"each_rank_has_a_disk_of_its_own: {case}")


@in_each(KINDS)
def test_a_save_makes_no_collective(habits, case):
    assert_works(habits, f"a_save_makes_no_collective: {case}")


@in_each(KINDS)
def test_a_save_in_the_background_makes_no_collective(habits, case):
    assert_works(habits, f"a_save_in_the_background_makes_no_collective: {case}")


@in_each(PLUGINS, KINDS)
def test_a_load_makes_no_collective(habits, case):
    assert_works(habits, f"a_load_makes_no_collective: {case}")


@in_each(KINDS)
def test_paths_are_pathlib(habits_of_folders, case):
    assert_works(habits_of_folders, f"paths_are_pathlib: {case}")


@in_each(FILES)
def test_a_path_has_no_suffix(habits_of_folders, case):
    assert_works(habits_of_folders, f"a_path_has_no_suffix: {case}")


@in_each(SHARDED)
def test_a_directory_is_called_like_a_file(habits_of_folders, case):
    assert_works(habits_of_folders, f"a_directory_is_called_like_a_file: {case}")


def test_a_model_goes_to_the_folder_of_the_epochs(habits_of_folders):
    assert_works(habits_of_folders, "a_model_goes_to_the_folder_of_the_epochs")


@in_each(SHARDED)
def test_shards_go_to_a_folder_of_a_tokenizer(habits_of_folders, case):
    assert_works(habits_of_folders, f"shards_go_to_a_folder_of_a_tokenizer: {case}")


@in_each(KINDS, WHEN)
def test_each_epoch_saves_over_the_last(habits_of_folders, case):
    assert_works(habits_of_folders, f"each_epoch_saves_over_the_last: {case}")


@in_each(["deleted", "renamed"])
def test_older_checkpoints_go_as_soon_as_a_save_returned(habits_of_folders, case):
    assert_works(habits_of_folders, f"older_checkpoints_go_as_soon_as_a_save_returned: {case}")


@in_each(KINDS, WHEN)
def test_mode_and_owner_change_as_soon_as_a_save_returned(habits_of_folders, case):
    assert_works(habits_of_folders, f"mode_and_owner_change_as_soon_as_a_save_returned: {case}")


@in_each(KINDS)
def test_a_function_of_the_script_stands_for_torch_save(habits_of_one_process, case):
    assert_works(habits_of_one_process, f"a_function_of_the_script_stands_for_torch_save: {case}")


@in_each(KINDS)
def test_a_function_that_stands_for_torch_save_is_given_paths(habits_of_one_process, case):
    assert_works(habits_of_one_process, f"a_function_that_stands_for_torch_save_is_given_paths: {case}")


@in_each(WHEN)
def test_the_garbage_collector_stays_off(habits_of_one_process, case):
    assert_works(habits_of_one_process, f"the_garbage_collector_stays_off: {case}")


def test_the_garbage_collector_stays_on(habits_of_one_process):
    assert_works(habits_of_one_process, "the_garbage_collector_stays_on")


def test_averaged_weights_are_saved_directly(habits_of_one_process):
    assert_works(habits_of_one_process, "averaged_weights_are_saved_directly")


def test_averaged_weights_are_saved_without_a_copy(habits_of_one_process):
    assert_works(habits_of_one_process, "averaged_weights_are_saved_without_a_copy")


@in_each(KINDS)
def test_a_class_of_the_script_overrides_one_method(habits_of_one_process, case):
    assert_works(habits_of_one_process, f"a_class_of_the_script_overrides_one_method: {case}")


@in_each(KINDS)
def test_a_second_pair_is_saved_while_the_first_is_pending(habits_of_one_process, case):
    assert_works(habits_of_one_process, f"a_second_pair_is_saved_while_the_first_is_pending: {case}")


def test_a_helper_of_the_script_takes_none(habits_of_one_process):
    assert_works(habits_of_one_process, "a_helper_of_the_script_takes_none")


def test_a_scheduler_is_saved_and_loaded(habits_of_one_process):
    assert_works(habits_of_one_process, "a_scheduler_is_saved_and_loaded")


@in_each(MODELS)
def test_a_booster_has_no_optimizer(habits_of_one_process, case):
    assert_works(habits_of_one_process, f"a_booster_has_no_optimizer: {case}")


@in_each(PLUGINS, ["with a save", "without a save"])
def test_it_synchronizes_before_every_step(habits_of_plugins, case):
    assert_works(habits_of_plugins, f"it_synchronizes_before_every_step: {case}")


@in_each(PLUGINS)
def test_each_rank_ends_its_saves_alone(habits_of_plugins, case):
    assert_works(habits_of_plugins, f"each_rank_ends_its_saves_alone: {case}")


@in_each(PLUGINS)
def test_rank_0_alone_ends_the_saves(habits_of_plugins, case):
    assert_works(habits_of_plugins, f"rank_0_alone_ends_the_saves: {case}")


@in_each(PLUGINS, ["deleted", "renamed"])
def test_older_checkpoints_go_as_soon_as_a_save_returned_under_a_plugin(habits_of_plugins, case):
    assert_works(habits_of_plugins, f"older_checkpoints_go_as_soon_as_a_save_returned: {case}")


@in_each(PLUGINS)
def test_each_epoch_saves_over_the_last_under_a_plugin(habits_of_plugins, case):
    assert_works(habits_of_plugins, f"each_epoch_saves_over_the_last: {case}")


@in_each(KINDS)
def test_a_load_leaves_the_master_weights_where_they_are(habits_of_plugins, case):
    assert_works(habits_of_plugins, f"a_load_leaves_the_master_weights_where_they_are: {case}")


def test_master_weights_are_copied_after_a_load(habits_of_plugins):
    assert_works(habits_of_plugins, "master_weights_are_copied_after_a_load")


@in_each(ALL_PLUGINS)
def test_rank_0_writes_the_scheduler(habits_of_plugins, case):
    assert_works(habits_of_plugins, f"rank_0_writes_the_scheduler: {case}")


@in_each(ALL_PLUGINS)
def test_rank_0_alone_saves_and_loads_the_scheduler(habits_of_plugins, case):
    assert_works(habits_of_plugins, f"rank_0_alone_saves_and_loads_the_scheduler: {case}")


@in_each(ALL_PLUGINS)
def test_ranks_load_the_scheduler_one_after_the_other(habits_of_plugins, case):
    assert_works(habits_of_plugins, f"ranks_load_the_scheduler_one_after_the_other: {case}")


@in_each(PLUGINS)
def test_a_second_pair_is_saved_while_the_first_is_pending_under_a_plugin(habits_of_boosters, case):
    assert_works(habits_of_boosters, f"a_second_pair_is_saved_while_the_first_is_pending: {case}")


@in_each(PLUGINS)
def test_two_boosters_share_a_plugin(habits_of_boosters, case):
    assert_works(habits_of_boosters, f"two_boosters_share_a_plugin: {case}")


def test_plugins_of_several_kinds_are_in_a_process(habits_of_boosters):
    assert_works(habits_of_boosters, "plugins_of_several_kinds_are_in_a_process")


@in_each(PLUGINS)
def test_a_booster_has_no_optimizer_under_a_plugin(habits_of_boosters, case):
    assert_works(habits_of_boosters, f"a_booster_has_no_optimizer: {case}")


@in_each(PLUGINS, OPTIMIZERS)
def test_another_booster_loads_the_optimizer(habits_of_boosters, case):
    assert_works(habits_of_boosters, f"another_booster_loads_the_optimizer: {case}")


@in_each(PLUGINS)
def test_none_is_refused_on_the_rank_that_asks(habits_of_boosters, case):
    assert_works(habits_of_boosters, f"none_is_refused_on_the_rank_that_asks: {case}")


@in_each(["ddp", "zero1", "hybrid-dp2"], KINDS)
def test_a_class_of_the_script_overrides_one_method_under_a_plugin(habits_of_boosters, case):
    assert_works(habits_of_boosters, f"a_class_of_the_script_overrides_one_method: {case}")

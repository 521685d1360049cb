"""Every plugin's loader and what it saves, in real processes: the checks are in ``distributed/``.

``make regression`` counts those that fail with ``COLOSSALAI_PATCH=off``.
"""

from pathlib import Path

import pytest
from processes import outcomes

SCRIPTS = Path(__file__).parent / "distributed"

TWO_RANKS = [
    "ddp",
    "zero1",
    "zero2",
    "zero1-offload",
    "zero2-offload",
    "hybrid-dp2",
    "hybrid-dp2-zero1",
    "hybrid-tp2",
    "hybrid-tp2-bf16",
    "hybrid-tp2-gpt2",
    "hybrid-pp2",
    "hybrid-pp2-gpt2",
    "moe-ep2-zero1",
    "gemini",
    "gemini-gpt2",
    "gemini-without-master",
    "fsdp",  # stock waits for ever in the end
]
FOUR_RANKS = [
    "zero1-extra-dp2",
    "hybrid-tp2-pp2",
    "hybrid-tp2-dp2-zero1",
    "hybrid-pp2-dp2-zero1",
    "moe-ep2-dp4-zero1",
]
ZERO = ("zero1", "hybrid-dp2-zero1")
GATHERED = (*ZERO, "hybrid-tp2")
PADDED = ("hybrid-tp2", "hybrid-tp2-gpt2", "hybrid-tp2-bf16", "hybrid-tp2-dp2-zero1", "moe-tp2")
UNSHARDED_MOE = ("moe-ep2-zero1", "moe-tp2", "moe-ep2-dp4-zero1", "moe-ep2-pp2-zero1", "moe-ep2-tp2-zero1")
PAIRED = ("ddp", "zero1", "hybrid-tp2")
EXCHANGED = ("ddp", "zero1", "hybrid-dp2-zero1", "hybrid-tp2", "moe-ep2-zero1", "gemini", "fsdp")

every_topology = pytest.mark.parametrize("topology", TWO_RANKS + FOUR_RANKS)
every_topology_of_two_groups = pytest.mark.parametrize("topology", [t for t in TWO_RANKS + FOUR_RANKS if t != "fsdp"])


@pytest.fixture(scope="module")
def restoring(tmp_path_factory):
    def of(processes, *topologies):
        folder = tmp_path_factory.mktemp("restoring")
        return outcomes(SCRIPTS / "restoring.py", folder, *topologies, processes=processes, timeout=400)

    return of(2, *TWO_RANKS) | of(4, *FOUR_RANKS)


@pytest.fixture(scope="module")
def saving(tmp_path_factory):
    def of(processes):
        return outcomes(SCRIPTS / "saving.py", tmp_path_factory.mktemp("saving"), processes=processes)

    return of(2) | of(4)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return outcomes(SCRIPTS / "interchange.py", tmp_path_factory.mktemp("pairs"), "pairs")


def assert_passed(found, name):
    assert name in found, "the processes ended before"
    assert not any(found[name]["errors"]), found[name]["errors"]


@every_topology
def test_a_checkpoint_restores_what_was_saved(restoring, topology):
    assert_passed(restoring, f"{topology}: restores what was saved")


@every_topology
def test_an_empty_checkpoint_clears_a_trained_optimizer(restoring, topology):
    assert_passed(restoring, f"{topology}: empty")


@every_topology
def test_restoring_into_a_trained_optimizer_equals_restoring_into_a_fresh_one(restoring, topology):
    assert_passed(restoring, f"{topology}: trained equals fresh")


@every_topology
def test_states_that_a_checkpoint_lacks_do_not_stay(restoring, topology):
    assert_passed(restoring, f"{topology}: lacking states")


@every_topology
def test_an_empty_unsharded_checkpoint_clears_a_trained_optimizer(restoring, topology):
    assert_passed(restoring, f"{topology}: unsharded, empty")


@every_topology
def test_states_that_an_unsharded_checkpoint_lacks_do_not_stay(restoring, topology):
    assert_passed(restoring, f"{topology}: unsharded, lacking states")


def test_states_of_a_part_of_what_fsdp_flattens_are_refused(restoring):
    assert_passed(restoring, "fsdp: a part of a unit")


@every_topology
@pytest.mark.parametrize("spoilt", ["with_one_group_less", "with_one_parameter_less"])
def test_groups_that_do_not_fit_are_refused_before_anything_changes(restoring, topology, spoilt):
    assert_passed(restoring, f"{topology}: {spoilt}")


@every_topology_of_two_groups
def test_a_parameter_in_another_group_is_refused_before_anything_changes(restoring, topology):
    assert_passed(restoring, f"{topology}: with_a_parameter_in_another_group")


@every_topology
def test_no_code_in_a_group_file_runs(restoring, topology):
    assert_passed(restoring, f"{topology}: code in the group file")


@every_topology
@pytest.mark.parametrize(
    "spoilt",
    [
        "the optimizer refuses",
        "truncate_a_shard",
        "truncate_the_file",
        "drop_a_group",
        "spoil_the_index",
        "remove_the_index",
    ],
)
def test_a_rank_that_fails_keeps_its_optimizer_and_no_other_waits_for_it(restoring, topology, spoilt):
    name = f"{topology}: rank 1: {spoilt}"
    assert_passed(restoring, name)
    assert restoring[name]["seconds"] < 10


@pytest.mark.parametrize("topology", ZERO)
def test_zero_saves_before_the_first_step(saving, topology):
    assert_passed(saving, f"{topology}: before the first step")


@pytest.mark.parametrize("topology", ZERO)
def test_a_parameter_without_state_is_left_out(saving, topology):
    assert_passed(saving, f"{topology}: a parameter without state")


@pytest.mark.parametrize("topology", [*GATHERED, "moe-ep2-zero1"])
def test_scalars_of_any_name_are_saved_whole(saving, topology):
    assert_passed(saving, f"{topology}: scalars")


@pytest.mark.parametrize("topology", PADDED)
def test_padded_vocabularies_are_saved_and_loaded_under_tensor_parallelism(saving, topology):
    assert_passed(saving, f"{topology}: a padded vocabulary")


def test_a_rank_that_holds_nothing_but_padding_gets_zeros(saving):
    assert_passed(saving, "hybrid-tp2: a rank without vocabulary")


def test_experts_whose_size_does_not_divide_are_restored(saving):
    assert_passed(saving, "moe-ep2-dp4-zero1: experts of odd sizes")


@pytest.mark.parametrize("topology", UNSHARDED_MOE)
def test_experts_are_saved_in_one_file_as_they_are_in_shards(saving, topology):
    assert_passed(saving, f"{topology}: unsharded")


@pytest.mark.parametrize("topology", GATHERED)
def test_ranks_whose_states_are_in_another_order_save_the_same(saving, topology):
    assert_passed(saving, f"{topology}: states in another order")


@pytest.mark.parametrize("topology", GATHERED)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_state_that_one_rank_lacks_is_saved_with_zeros_for_its_part(saving, topology, rank):
    assert_passed(saving, f"{topology}: no state on rank {rank}")


@pytest.mark.parametrize("source", PAIRED)
@pytest.mark.parametrize("target", PAIRED)
def test_a_checkpoint_of_one_plugin_loads_into_another(pairs, source, target):
    assert_passed(pairs, f"{source} to {target}")


@pytest.mark.parametrize(("writer", "reader"), [("on", "off"), ("off", "on")])
def test_stock_and_patched_read_what_the_other_wrote(tmp_path, writer, reader):
    for task, patch in (("save", writer), ("load", reader)):
        found = outcomes(SCRIPTS / "interchange.py", tmp_path, task, COLOSSALAI_PATCH=patch)
        for topology in EXCHANGED:
            assert_passed(found, f"{task} {topology}")

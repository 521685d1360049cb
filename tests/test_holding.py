"""What a rank reads of a checkpoint, and which groups it accepts."""

import json
from pathlib import Path

import pytest
import torch
from checkpoints import GROUP_FILE, INDEX_FILE, write_safetensors

from colossalai_patch.holding import Holding
from colossalai_patch.optimizer_checkpoint import CheckpointError, open_checkpoint
from colossalai_patch.slicing import tensor_parallel, whole

SHAPE = (4096, 2048)
STATE_BYTES = 4096 * 2048 * 4
LARGEST_PAGE = 2**21  # what a kernel may map at once for one byte that is touched
WRITERS = {"bin": torch.save, "safetensors": write_safetensors}


def write_checkpoint(folder, suffix):
    """One shard: a parameter with two states of 32 MiB each, and a small one."""
    states = {
        param_id: {"step": torch.tensor(1.0), "exp_avg": torch.randn(shape), "exp_avg_sq": torch.randn(shape)}
        for param_id, shape in enumerate([SHAPE, (2,)])
    }
    shard = folder / f"shard.{suffix}"
    WRITERS[suffix](states, shard)
    torch.save([{"params": [0, 1]}], folder / GROUP_FILE)
    index = {"metadata": {"param_groups": GROUP_FILE}, "weight_map": {"0": shard.name, "1": shard.name}}
    (folder / INDEX_FILE).write_text(json.dumps(index))
    return shard


def resident(path):
    """How many bytes of ``path`` this process has touched through its mappings."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    total, of_the_file = 0, False
    for line in lines:
        name, _, value = line.partition(":")
        if "-" in name.split(" ")[0]:
            of_the_file = line.endswith(str(path))
        elif name == "Rss" and of_the_file:
            total += int(value.split()[0]) * 1024
    return total


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("partition", ["zero", "tensor parallel"])
def test_a_rank_reads_only_the_pages_that_it_keeps(tmp_path, partition, suffix, ranks):
    shard = write_checkpoint(tmp_path, suffix)
    slices = {
        "zero": whole(SHAPE).chunk(ranks - 1, ranks),
        "tensor parallel": tensor_parallel(SHAPE, (SHAPE[0] // ranks, SHAPE[1]), 0, ranks - 1),
    }
    holding = Holding([[0, 1]], {0: slices[partition]})
    touched = []

    def take(param_id, state):
        taken = holding.take(param_id, state)
        touched.append(resident(shard))
        return taken

    states = dict(open_checkpoint(tmp_path / INDEX_FILE).states(True, 1, take).items())
    kept = states[0]["exp_avg"].nbytes + states[0]["exp_avg_sq"].nbytes
    assert kept == 2 * STATE_BYTES // ranks
    assert max(touched) <= kept + 4 * LARGEST_PAGE


def test_a_rank_leaves_out_the_states_of_parameters_that_it_does_not_hold(tmp_path):
    write_checkpoint(tmp_path, "bin")
    holding = Holding([[0, 1]], {1: whole((2,))})
    checkpoint = open_checkpoint(tmp_path / INDEX_FILE)
    assert [param_id for param_id, _ in checkpoint.states(True, 1, holding.take).items()] == [1]
    assert holding.groups(checkpoint.param_groups) == [{"params": [1]}]


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ([], "has 0 parameter groups, and the optimizer has 2"),
        ([[0, 1, 2]], "has 1 parameter groups, and the optimizer has 2"),
        ([[0], [1, 2]], "group 0 of the checkpoint holds 1 parameters .* optimizer 2 parameters"),
        ([[0, 2], [1]], "group 0 of the checkpoint holds 2 parameters \\(0 to 2\\)"),
        ([[0, 1], []], "group 1 of the checkpoint holds no parameter"),
    ],
)
def test_groups_other_than_the_recorded_ones_are_refused(saved, message):
    holding = Holding([[0, 1], [2]], {})
    with pytest.raises(CheckpointError, match=message):
        holding.groups([{"params": ids} for ids in saved])

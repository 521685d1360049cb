"""The slices of all ranks make up the complete state again, by ColossalAI's own gathering, without processes."""

import itertools

import pytest
import torch
from colossalai.checkpoint_io import hybrid_parallel_checkpoint_io
from colossalai.checkpoint_io.hybrid_parallel_checkpoint_io import HybridParallelCheckpointIO
from comparison import assert_same

from colossalai_patch.slicing import take_part, tensor_parallel, whole

SIZES = range(1, 9)
SHAPES = [(), (1,), (7,), (64,), (5, 3), (8, 8), (3, 5, 7), (17, 4)]


def complete_state(shape):
    generator = torch.Generator().manual_seed(0)
    return {
        "step": torch.tensor(3.0),
        "exp_avg": torch.randn(shape, generator=generator),
        "exp_avg_sq": torch.randn(shape, generator=generator, dtype=torch.float64),
        "foreach": None,
    }


class Ranks:
    """Stands for a process group: the ranks' tensors, name by name, as they come to be gathered."""

    def __init__(self, states):
        self.states = states
        self.names = iter(name for name in states[0] if name not in ("step", "foreach"))


@pytest.fixture
def gather(monkeypatch):
    """Gather states with the release's code, whose collectives are answered from the states of all ranks."""

    def all_gather(gathered, own, group):
        name = next(group.names)
        for tensor, state in zip(gathered, group.states, strict=True):
            tensor.copy_(state[name])

    dist = hybrid_parallel_checkpoint_io.dist
    monkeypatch.setattr(dist, "get_world_size", lambda group: len(group.states))
    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(hybrid_parallel_checkpoint_io, "get_current_device", lambda: torch.device("cpu"))

    def gathered(param_shape, complete_shape, dp_states, tp_states, use_zero):
        return HybridParallelCheckpointIO.gather_from_sharded_optimizer_state(
            dp_states[0], torch.empty(param_shape), torch.Size(complete_shape), Ranks(dp_states), Ranks(tp_states),
            use_zero, inplace=False,
        )  # fmt: skip

    return gathered


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_zero_chunks_gather_to_the_complete_state(gather, shape, size):
    complete = complete_state(shape)
    chunks = [take_part(whole(shape).chunk(rank, size), complete) for rank in range(size)]
    assert {chunk["exp_avg"].shape for chunk in chunks} == {(-(-complete["exp_avg"].numel() // size),)}
    assert_same(gather(shape, shape, chunks, [chunks[0]], use_zero=True), complete)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dim", [0, 1])
def test_tensor_parallel_slices_gather_to_the_complete_state(gather, dim, size):
    local = (3, 5)
    shape = tuple(length * size if position == dim else length for position, length in enumerate(local))
    complete = complete_state(shape)
    slices = [take_part(tensor_parallel(shape, local, dim, rank), complete) for rank in range(size)]
    assert_same(gather(local, shape, slices[:1], slices, use_zero=False), complete)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("vocabulary", [49, 50, 200, 511, 512])
def test_padded_vocabularies_gather_to_the_unpadded_state(gather, vocabulary, size):
    rows = 64 * -(-vocabulary // (64 * size))
    complete = complete_state((vocabulary, 3))
    slices = [take_part(tensor_parallel((vocabulary, 3), (rows, 3), 0, rank), complete) for rank in range(size)]
    assert not any(part["exp_avg"][max(0, vocabulary - rank * rows) :].any() for rank, part in enumerate(slices))
    assert_same(gather((rows, 3), (vocabulary, 3), slices[:1], slices, use_zero=False), complete)


@pytest.mark.parametrize(("tp_size", "dp_size"), itertools.product((1, 2, 4), (2, 3, 8)))
@pytest.mark.parametrize("dim", [0, 1])
def test_zero_chunks_of_padded_tensor_parallel_slices_gather_to_the_complete_state(gather, dim, tp_size, dp_size):
    shape, local = (50, 8), (64, 8 // tp_size) if dim == 1 else (-(-64 // tp_size), 8)
    complete = complete_state(shape)
    of_tp_ranks = []
    for tp_rank in range(tp_size):
        part = tensor_parallel(shape, local, dim, tp_rank)
        chunks = [take_part(part.chunk(dp_rank, dp_size), complete) for dp_rank in range(dp_size)]
        of_tp_ranks.append(gather(local, local, chunks, chunks[:1], use_zero=True))
    assert_same(gather(local, shape, of_tp_ranks[:1], of_tp_ranks, use_zero=False), complete)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_uneven_spans_make_up_the_flattened_state(shape):
    complete = complete_state(shape)
    flat = complete["exp_avg"].flatten()
    bounds = sorted({0, len(flat) // 3, len(flat) // 2 + 1, len(flat)})
    spans = [
        take_part(whole(shape).elements(begin, end), complete)["exp_avg"]
        for begin, end in itertools.pairwise(bounds)
    ]  # fmt: skip
    assert torch.equal(torch.cat(spans), flat)


def test_scalars_factors_and_plain_values_are_kept_whole():
    state = {"step": torch.ones(4, 4), "mu_product": torch.tensor(0.5), "row": torch.ones(4), "betas": (0.9, 0.999)}
    assert_same(take_part(whole((4, 4)).chunk(1, 2), state), state)


def test_a_state_that_stock_saved_flat_is_sliced_as_well():
    complete = complete_state((6, 5))
    flat = {name: value.flatten() if name.startswith("exp") else value for name, value in complete.items()}
    part = whole((6, 5)).chunk(1, 4)
    assert_same(take_part(part, flat), take_part(part, complete))


@pytest.mark.parametrize(
    "part",
    [whole((6, 5)), whole((6, 5)).chunk(0, 2), tensor_parallel((6, 5), (3, 5), 0, 1)],
    ids=["whole", "zero", "tp"],
)
def test_parts_are_copies_that_hold_no_more_than_they_need(part):
    complete = complete_state((6, 5))
    taken = take_part(part, complete)["exp_avg"]
    assert taken.untyped_storage().data_ptr() != complete["exp_avg"].untyped_storage().data_ptr()
    assert taken.untyped_storage().nbytes() == taken.numel() * taken.element_size()
    assert taken.is_contiguous()

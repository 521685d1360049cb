"""A state of another parameter's shape is loaded, as natively, with one warning that says where it is."""

import warnings

import pytest
import torch
from checkpoints import save_bin
from colossalai.checkpoint_io import GeneralCheckpointIO
from training import train


def make_adamw(shapes, groups=1):
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    size = len(parameters) // groups
    return torch.optim.AdamW([{"params": parameters[start : start + size]} for start in range(0, len(shapes), size)])


def load(saved_shapes, shapes, folder, groups=1):
    source, optimizer = make_adamw(saved_shapes, groups), make_adamw(shapes, groups)
    train(source, 1)
    save_bin(source, folder)
    GeneralCheckpointIO().load_optimizer(optimizer, folder)


def test_a_wrong_shape_is_named_with_its_file_group_position_and_both_shapes(tmp_path):
    shapes = [(4,), (4, 3), (4,), (4, 3), (5,), (6, 3)]
    saved_shapes = [(4,), (4, 3), (4,), (4, 3), (7,), (6, 3)]
    with pytest.warns(UserWarning, match="of another model") as caught:
        load(saved_shapes, shapes, tmp_path, groups=2)
    (message,) = [str(warning.message) for warning in caught]
    assert str(tmp_path / "pytorch_optim-00005.bin") in message
    assert "'exp_avg' of parameter 1 of group 1" in message
    assert "(7,)" in message
    assert "(5,)" in message
    assert "(1 more like it)" in message


@pytest.mark.parametrize(
    "saved_shapes",
    [
        [(3, 4), (4, 3), (4,)],
        [(4,), (4, 3), (3, 4)],
        [(4, 3), (4,), (3, 4)],
        [(4, 3), (9, 9), (4,)],
        [(4, 3), (3, 4), (4, 1)],
    ],
)
def test_states_in_another_order_or_of_another_size_are_noticed(tmp_path, saved_shapes):
    with pytest.warns(UserWarning, match="of another model"):
        load(saved_shapes, [(4, 3), (3, 4), (4,)], tmp_path)


@pytest.mark.parametrize("shapes", [[()], [(), (), (3,)], [(1,), (2, 1)], [(4, 3), (4,)]])
def test_right_shapes_are_silent(tmp_path, shapes):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        load(shapes, shapes, tmp_path)

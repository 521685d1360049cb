"""The tensors of a safetensors file are what the library gives, and a file that it refuses is refused."""

import json
import re

import pytest
import torch
from comparison import assert_same
from flipped_bits import read_otherwise
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from colossalai_patch.optimizer_checkpoint import CheckpointError
from colossalai_patch.optimizer_checkpoint.files import map_file
from colossalai_patch.optimizer_checkpoint.safetensors_file import map_safetensors_states
from colossalai_patch.optimizer_checkpoint.safetensors_tensors import MappedTensors

DTYPES = ["bfloat16", "bool", "complex64", "float16", "float32", "float64", "float8_e4m3fn"]
DTYPES += ["int16", "int32", "int64", "int8", "uint16", "uint32", "uint64", "uint8"]


def read(path):
    with safe_open(path, framework="pt") as file:
        tensors = MappedTensors(map_file(path), file)
        return {key: tensors[key] for key in file.keys()}  # noqa: SIM118


def by_name(states):
    return {f"state.{param_id}.{name}": value for param_id, state in states.items() for name, value in state.items()}


def write(path, header, content):
    encoded = header.encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (0, 3), (1, 1, 1)])
def test_tensors_are_as_the_library_gives_them(tmp_path, dtype, shape):
    tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(getattr(torch, dtype))
    path = tmp_path / "file.safetensors"
    save_file({"a": tensor, "b": torch.ones(2), "c": torch.ones(1, dtype=torch.int8)}, path)
    assert_same(read(path), dict(sorted(load_file(path).items())))


@pytest.mark.parametrize("spaces", range(8))
def test_tensors_that_are_not_aligned_are_read(tmp_path, spaces):
    described = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    content = torch.tensor([1.5, -2.0]).numpy().tobytes()
    path = write(tmp_path / "file.safetensors", json.dumps(described) + " " * spaces, content)
    assert_same(read(path), {"a": torch.tensor([1.5, -2.0])})


@pytest.mark.parametrize(
    "header",
    [
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":[2],"shape":[1,2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}}',
        '{"\\u0061":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        '{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        '{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}',
    ],
)
def test_a_header_is_read_as_the_library_reads_it(tmp_path, header):
    path = write(tmp_path / "file.safetensors", header, torch.tensor([1.5, -2.0]).numpy().tobytes())
    try:
        expected = load_file(path)
    except Exception:
        with pytest.raises(CheckpointError, match="damaged"):
            map_safetensors_states(map_file(path))
    else:
        assert_same(read(path), expected)


@pytest.mark.parametrize("name", ["gone", "__metadata__"])
def test_a_plain_value_that_names_no_tensor_is_refused(tmp_path, name):
    path = tmp_path / "file.safetensors"
    metadata = {"plain_values": json.dumps({"state.0.step": {"tensor": name}})}
    save_file({"state.0.step": torch.tensor(1.0)}, path, metadata)
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} is damaged"):
        map_safetensors_states(map_file(path))


def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path):
    path, later = tmp_path / "file.safetensors", tmp_path / "later.safetensors"
    for target in (path, later):
        save_file({"state.0.step": torch.tensor(1.0)}, target)
    file = map_file(path)
    later.replace(path)
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} was replaced while it was read"):
        map_safetensors_states(file)


@pytest.mark.slow
def test_with_any_bit_flipped_a_file_loads_as_the_library_reads_it_or_is_refused(tmp_path):
    path = tmp_path / "file.safetensors"
    save_file({"state.0.step": torch.tensor(1.0), "state.1.exp_avg": torch.ones(2, dtype=torch.bfloat16)}, path)

    def read(path):
        return dict(sorted(by_name(map_safetensors_states(map_file(path))).items()))

    assert read_otherwise(path, read, lambda path: dict(sorted(load_file(path).items()))) == []

"""The checksum that is taken while a file is copied out of its mapping is that of the whole file."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from colossalai_patch.optimizer_checkpoint import CheckpointError, copied_value
from colossalai_patch.optimizer_checkpoint.checksum import FEWEST_BYTES_AT_ONCE, ChecksumOfMapping, checksum
from colossalai_patch.optimizer_checkpoint.files import map_file

SIZES = [0, 1, 4096, 3 * FEWEST_BYTES_AT_ONCE + 5]


def make_file(folder, size):
    path = folder / "file.bin"
    path.write_bytes(random.Random(0).randbytes(size))
    return path


def begin(path, recorded):
    """Map a file, and give its beginning in memory and its checksum."""
    file = map_file(path)
    address = torch.frombuffer(file.content, dtype=torch.uint8).data_ptr() if file.content else 0
    return address, ChecksumOfMapping(file, recorded)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("parts", [[], [0.5], [0.1, 0.9, 0.3, 1, 1], [-1, 0, 2], [i / 7 for i in range(8)]])
def test_whatever_is_read_before_all_of_the_file_is_taken_in(tmp_path, size, parts):
    path = make_file(tmp_path, size)
    address, taken = begin(path, checksum(path))
    for part in parts:
        taken.go_on(address + int(part * size))
    taken.finish()


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("place", [0, -1])
def test_a_changed_byte_is_found_at_the_end(tmp_path, size, place):
    path = make_file(tmp_path, size)
    recorded = checksum(path)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    address, taken = begin(path, recorded)
    taken.go_on(address + size)
    with pytest.raises(CheckpointError, match=f"its checksum is {checksum(path)}, and was {recorded}"):
        taken.finish()


def test_threads_may_go_on_at_the_same_time(tmp_path):
    path = make_file(tmp_path, 50 * FEWEST_BYTES_AT_ONCE)
    address, taken = begin(path, checksum(path))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(taken.go_on, [address + i * FEWEST_BYTES_AT_ONCE // 2 for i in range(100)]))
    taken.finish()


def test_a_copy_tells_what_it_reads_next():
    tensor, told = torch.arange(3e6), []
    assert torch.equal(copied_value(tensor, told.append), tensor)
    assert told == sorted(told)
    assert told[-1] == tensor.data_ptr() + tensor.nbytes
    assert len(told) > 1

"""A checksum that is taken part by part is that of the whole file, in whatever order threads ask for the parts."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from colossalai_patch.optimizer_checkpoint import CheckpointError
from colossalai_patch.optimizer_checkpoint.checksum import ChecksumByParts, checksum

SIZES = [0, 1, 4096, 1_000_003]


def make_file(folder, size):
    path = folder / "file.bin"
    path.write_bytes(random.Random(0).randbytes(size))
    return path


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("parts", [[1], [0.5, 1], [0.1, 0.9, 0.3, 1, 1], [i / 7 for i in range(1, 8)]])
def test_all_parts_are_the_file(tmp_path, size, parts):
    path = make_file(tmp_path, size)
    checked = ChecksumByParts(path, checksum(path))
    for part in parts:
        checked.check(part)


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("place", [0, -1])
def test_a_changed_byte_is_found_with_the_last_part_and_not_before(tmp_path, size, place):
    path = make_file(tmp_path, size)
    recorded = checksum(path)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    checked = ChecksumByParts(path, recorded)
    checked.check(0.99)
    with pytest.raises(CheckpointError, match=f"its checksum is {checksum(path)}, and was {recorded}"):
        checked.check(1)


def test_threads_may_ask_for_parts_at_the_same_time(tmp_path):
    path = make_file(tmp_path, SIZES[-1])
    checked = ChecksumByParts(path, checksum(path))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(checked.check, [i / 100 for i in range(1, 101)]))

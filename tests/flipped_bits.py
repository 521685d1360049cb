"""Files with one bit flipped."""

import contextlib

from comparison import assert_same

from colossalai_patch.optimizer_checkpoint import CheckpointError


def read_otherwise(path, read, read_natively):
    """Flip each bit of a file in turn; give those with which ``read`` gives what ``read_natively`` does not."""
    content = path.read_bytes()
    otherwise = []
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with contextlib.suppress(CheckpointError):
            found = read(path)
            try:
                assert_same(found, read_natively(path))
            except Exception as error:
                otherwise.append((bit, str(error)))
    return otherwise

"""``verify_files`` and ``verify_values`` find everything that is wrong with a checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from counted_progress import CountedProgress
from written_checkpoints import changed, make_state_dict, write_file, write_sharded

from colossalai_patch.optimizer_checkpoint.conversion import convert, sharded
from colossalai_patch.optimizer_checkpoint.errors import NotACheckpointError
from colossalai_patch.optimizer_checkpoint.progress import UNSEEN
from colossalai_patch.optimizer_checkpoint.source import open_source
from colossalai_patch.optimizer_checkpoint.verification import NotFinite, verify_files, verify_values


def verified(path, verify=verify_files, prefix=None):
    return verify(path, prefix, UNSEEN)


def with_checksums(folder):
    """A checkpoint in which the patch has recorded sizes and checksums."""
    source = open_source(write_sharded(make_state_dict(), folder / "source"))
    convert(source, sharded(folder / "checked", source, None, 100, None))
    return folder / "checked"


def shards_of(folder):
    return sorted(Path(folder).glob("pytorch_optim-*.bin"))


def test_a_checkpoint_without_checksums_is_sound(tmp_path):
    found = verified(write_sharded(make_state_dict(), tmp_path))
    assert found.sound
    assert (found.files, found.checksums) == (3, 0)


def test_all_recorded_checksums_are_checked(tmp_path):
    found = verified(with_checksums(tmp_path))
    assert found.sound
    assert found.checksums == found.files == len(list((tmp_path / "checked").glob("*.bin")))


def test_one_file_is_sound(tmp_path):
    assert verified(write_file(make_state_dict(), tmp_path / "one.bin")).sound


def test_a_flipped_bit_is_found_by_its_checksum(tmp_path):
    shard = shards_of(with_checksums(tmp_path))[0]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    (problem,) = verified(tmp_path / "checked").problems
    assert problem.startswith(f"{shard} is damaged")


def test_every_damaged_file_is_told(tmp_path):
    shards = shards_of(write_sharded(make_state_dict(), tmp_path))
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-10])
    missing, cut = verified(tmp_path).problems
    assert missing.startswith(f"{shards[0]} is missing")
    assert cut.startswith(f"{shards[1]} is not complete")


def test_a_damaged_index_is_not_sound(tmp_path):
    index_file = write_sharded(make_state_dict(), tmp_path) / "pytorch_optim.bin.index.json"
    index_file.write_text(index_file.read_text()[:-5])
    assert not verified(index_file).sound


def test_a_cut_file_is_not_sound(tmp_path):
    path = write_file(make_state_dict(), tmp_path / "one.bin")
    path.write_bytes(path.read_bytes()[:-10])
    assert not verified(path).sound


def empty_folder(folder):
    return folder


def model_checkpoint(folder):
    index = {"metadata": {"total_size": 1}, "weight_map": {}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


def text_file(folder):
    (folder / "notes.txt").write_text("notes")
    return folder / "notes.txt"


def file_of_a_model(folder):
    return write_file({"weight": torch.zeros(2)}, folder / "model.bin")


@pytest.mark.parametrize("make", [empty_folder, model_checkpoint, text_file, file_of_a_model])
def test_what_is_no_optimizer_checkpoint_is_told_apart(tmp_path, make):
    with pytest.raises(NotACheckpointError):
        verified(make(tmp_path))


def set_values(state_dict):
    state_dict["state"][0]["exp_avg"][:2] = torch.nan
    state_dict["state"][1]["exp_avg"][0] = -torch.inf
    state_dict["state"][1]["exp_avg_sq"] = torch.full((7,), torch.inf, dtype=torch.float8_e5m2)


def test_numbers_that_are_not_finite_are_counted_by_name(tmp_path):
    found = verified(write_sharded(changed(make_state_dict(), set_values), tmp_path), verify_values)
    assert not found.sound
    assert found.not_finite == {"exp_avg": NotFinite(6, 1, 2), "exp_avg_sq": NotFinite(0, 7, 1)}


def test_values_are_left_alone_unless_asked_for(tmp_path):
    assert verified(write_sharded(changed(make_state_dict(), set_values), tmp_path)).sound


def test_a_prefix_chooses_the_checkpoint(tmp_path):
    write_sharded(make_state_dict(), tmp_path)
    write_sharded(changed(make_state_dict(), set_values), tmp_path, prefix="bad")
    assert not verified(tmp_path, verify_values, "bad").sound


def test_progress_goes_to_its_end_but_for_what_surrounds_the_tensors(tmp_path):
    progress = CountedProgress()
    verify_values(with_checksums(tmp_path), None, progress)
    files = sum(path.stat().st_size for path in (tmp_path / "checked").glob("*.bin"))
    ((stage, total, done),) = progress.stages
    assert (stage, total) == ("verifying", 2 * files)
    assert files < done <= total

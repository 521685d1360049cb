"""``verify_files`` and ``verify_values`` find everything that is wrong with a checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from counted_progress import CountedProgress
from written_checkpoints import changed, make_state_dict, write_file, write_sharded

from colossalai_patch.optimizer_checkpoint.checksum import checksum
from colossalai_patch.optimizer_checkpoint.conversion import convert, one_file, sharded
from colossalai_patch.optimizer_checkpoint.errors import NotACheckpointError
from colossalai_patch.optimizer_checkpoint.progress import UNSEEN
from colossalai_patch.optimizer_checkpoint.source import open_source
from colossalai_patch.optimizer_checkpoint.verification import NotFinite, verify_files, verify_values

EXP_AVG = make_state_dict()["state"][0]["exp_avg"].numpy().tobytes()


def verified(path, verify=verify_files, prefix=None):
    return verify(path, prefix, UNSEEN)


def with_checksums(folder):
    """A checkpoint in which the patch has recorded sizes and checksums."""
    source = open_source(write_sharded(make_state_dict(), folder / "source"))
    convert(source, sharded(folder / "checked", source, None, 100, None))
    return folder / "checked"


def sharded_by_torch(folder):
    return write_sharded(make_state_dict(), folder)


def file_of_torch(folder):
    return write_file(make_state_dict(), folder / "one.bin")


def legacy_file(folder):
    torch.save(make_state_dict(), folder / "one.bin", _use_new_zipfile_serialization=False)
    return folder / "one.bin"


def safetensors_file(folder):
    convert(open_source(file_of_torch(folder)), one_file(folder / "one.safetensors"))
    return folder / "one.safetensors"


def without_crc(folder):
    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("this torch always writes checksums")
    torch.serialization.set_crc32_options(False)
    try:
        return file_of_torch(folder)
    finally:
        torch.serialization.set_crc32_options(True)


def data_filled_in_later(folder):
    if not hasattr(torch.serialization, "skip_data"):
        pytest.skip("this torch always writes the data")
    with torch.serialization.skip_data():
        file = file_of_torch(folder)
    file.write_bytes(file.read_bytes().replace(bytes(len(EXP_AVG)), EXP_AVG, 1))
    return file


def shards_of(folder):
    return sorted(Path(folder).glob("pytorch_optim-*.bin"))


@pytest.mark.parametrize("make", [with_checksums, sharded_by_torch, file_of_torch])
def test_a_checkpoint_is_sound_whose_files_all_have_checksums(tmp_path, make):
    found = verified(make(tmp_path))
    assert found.sound
    assert (found.files, found.without_checksum) == (len(list(found.checkpoint.parent.glob("*.bin"))), 0)


@pytest.mark.parametrize("make", [without_crc, data_filled_in_later, legacy_file, safetensors_file])
def test_a_file_is_sound_that_nothing_can_be_compared_with_and_is_counted(tmp_path, make):
    found = verified(make(tmp_path))
    assert found.sound
    assert (found.files, found.without_checksum) == (1, 1)


def flip_a_bit(path, of):
    """Flip a bit of the bytes ``of``, which stand in the file once."""
    content = path.read_bytes()
    assert content.count(of) == 1
    place = content.index(of)
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


def test_a_flipped_bit_is_found_by_the_recorded_checksum(tmp_path):
    shard = shards_of(with_checksums(tmp_path))[0]
    recorded = checksum(shard)
    flip_a_bit(shard, of=EXP_AVG)
    (problem,) = verified(tmp_path / "checked").problems
    assert problem.startswith(f"{shard} is damaged: its checksum is {checksum(shard)}, and was {recorded}")


@pytest.mark.parametrize("make", [sharded_by_torch, file_of_torch])
def test_a_flipped_bit_is_found_by_what_torch_saves_beside_it(tmp_path, make):
    checkpoint = make(tmp_path)
    file = shards_of(tmp_path)[0] if checkpoint.is_dir() else checkpoint
    flip_a_bit(file, of=EXP_AVG)
    (problem,) = verified(checkpoint).problems
    assert problem.startswith(f"{file} is damaged: the CRC-32 of data/1 in it is ")


def test_every_file_that_is_not_sound_is_told_and_counted(tmp_path):
    shards = shards_of(write_sharded(make_state_dict(), tmp_path))
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-10])
    found = verified(tmp_path)
    missing, cut = found.problems
    assert missing.startswith(f"{shards[0]} is missing")
    assert cut.startswith(f"{shards[1]} is not complete")
    assert (found.files, found.missing, found.damaged) == (3, 1, 1)


def test_a_damaged_index_is_not_sound(tmp_path):
    index_file = write_sharded(make_state_dict(), tmp_path) / "pytorch_optim.bin.index.json"
    index_file.write_text(index_file.read_text()[:-5])
    found = verified(index_file)
    assert not found.sound
    assert (found.files, found.missing, found.damaged) == (1, 0, 1)


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


LARGE = {"state": {0: {"exp_avg": torch.full((10**6,), 0.5)}}, "param_groups": [{"params": [0]}]}


@pytest.mark.parametrize("name", ["one.bin", "one.safetensors"])
def test_progress_goes_through_what_is_compared_and_then_read(tmp_path, name):
    source = open_source(write_file(LARGE, tmp_path / "large.bin"))
    convert(source, one_file(tmp_path / name))
    progress = CountedProgress()
    assert verify_values(tmp_path / name, None, progress).sound
    ((stage, total, done),) = progress.stages
    assert stage == "verifying"
    assert done == pytest.approx(total, rel=0.01)

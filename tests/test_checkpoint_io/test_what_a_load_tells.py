"""A load leaves one line in ColossalAI's log, and long ones show a progress bar on a terminal."""

import contextlib
import io
import logging
import re

import pytest
import torch
from checkpoints import save_bin
from colossalai.checkpoint_io import GeneralCheckpointIO
from training import make_parameters, train

from colossalai_patch.optimizer_checkpoint import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def _at_once(monkeypatch):
    monkeypatch.setattr(progress_bar, "SECONDS_WITHOUT_ONE", 0)


def load(folder, stderr):
    optimizer = torch.optim.AdamW(make_parameters())
    train(optimizer, 1)
    save_bin(optimizer, folder)
    with contextlib.redirect_stderr(stderr):
        GeneralCheckpointIO().load_optimizer(optimizer, folder)


def test_the_log_says_what_was_loaded_how_many_bytes_and_how_fast(tmp_path):
    records = []
    handler = logging.Handler(logging.INFO)
    handler.emit = records.append
    logger = logging.getLogger("colossalai")
    logger.addHandler(handler)
    try:
        load(tmp_path, io.StringIO())
    finally:
        logger.removeHandler(handler)
    (message,) = [record.getMessage() for record in records if "Loaded" in record.getMessage()]
    size = sum(file.stat().st_size for file in tmp_path.glob("pytorch_optim-*")) / 1e9
    number = r"[\d.]+(?:e-\d+)?"
    assert f"{tmp_path / 'pytorch_optim.bin.index.json'}: {size:.3g} GB" in message
    assert re.search(rf"GB in {number} s, {number} GB/s", message)


def shown(folder, stderr):
    load(folder, stderr)
    return stderr.getvalue()


@pytest.mark.usefixtures("_at_once")
def test_a_terminal_shows_how_far_a_load_is(tmp_path):
    assert "loading the optimizer" in shown(tmp_path, Terminal())


def test_a_short_load_shows_no_bar(tmp_path):
    assert shown(tmp_path, Terminal()) == ""


@pytest.mark.usefixtures("_at_once")
def test_a_file_gets_no_bar(tmp_path):
    assert shown(tmp_path, io.StringIO()) == ""


@pytest.mark.usefixtures("_at_once")
def test_the_setting_takes_the_bar_away(tmp_path, monkeypatch):
    monkeypatch.setenv("COLOSSALAI_PATCH_PROGRESS", "0")
    assert shown(tmp_path, Terminal()) == ""


@pytest.mark.usefixtures("_at_once")
def test_only_the_first_rank_shows_a_bar(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_bar, "this_rank", lambda: 1)
    assert shown(tmp_path, Terminal()) == ""

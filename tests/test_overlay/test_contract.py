"""The overlay never breaks an import of ColossalAI, says what it does, and changes nothing else."""

import importlib.machinery
import importlib.util
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import colossalai.checkpoint_io
import pytest
from colossalai.booster.plugin.torch_ddp_plugin import TorchDDPCheckpointIO
from colossalai.checkpoint_io import GeneralCheckpointIO
from environments import CHECKOUT

from colossalai_patch import overlay, status

NAME = "colossalai.checkpoint_io.general_checkpoint_io"
OVERLAY_FILE = Path(overlay.FOLDER, "checkpoint_io", "general_checkpoint_io.py")


@pytest.fixture
def stock_finders(monkeypatch):
    """The finders of this process without the patch's."""
    finders = [finder for finder in sys.meta_path if not isinstance(finder, overlay.OverlayFinder)]
    monkeypatch.setattr(sys, "meta_path", finders)
    return finders


@pytest.fixture
def finder(tmp_path, stock_finders):
    """A finder over an overlay of its own: the file of one module, which a test may spoil."""
    (tmp_path / "checkpoint_io").mkdir()
    finder = overlay.OverlayFinder(str(tmp_path))
    finder.overlay_file = tmp_path / "checkpoint_io/general_checkpoint_io.py"
    finder.overlay_file.write_text(OVERLAY_FILE.read_text())
    return finder


def load(finder):
    """Import the module anew through this finder, beside the one that the process uses."""
    return load_spec(finder.find_spec(NAME, colossalai.checkpoint_io.__path__))


def load_stock():
    return load_spec(importlib.machinery.PathFinder.find_spec(NAME, colossalai.checkpoint_io.__path__))


def load_spec(spec):
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_overlay_file_is_in_force(finder):
    module = load(finder)
    assert module.__file__ == str(finder.overlay_file)
    assert module.GeneralCheckpointIO.load_sharded_optimizer.__code__.co_filename == str(finder.overlay_file)
    assert finder.outcomes == {NAME: overlay.ACTIVE}


def test_every_name_of_the_release_is_still_there(finder):
    assert set(vars(load_stock())) <= set(vars(load(finder)))


def test_functions_of_the_release_find_what_the_overlay_redefines(finder):
    finder.overlay_file.write_text("def load_state_dict(checkpoint_file_path): return 1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load(finder).GeneralCheckpointIO().load_unsharded_model(None, "model.bin", strict=True)


SPOILT = {
    "it raises": ("raise KeyError('spoilt')", "KeyError: 'spoilt'"),
    "it does not compile": ("def (", "SyntaxError"),
    "a name is gone": ("release.NoSuchCheckpointIO", "has no attribute 'NoSuchCheckpointIO'"),
    "a function is gone": ("def load_elsewhere(): ...", "this release has no load_elsewhere"),
    "a method is gone": (
        "class GeneralCheckpointIO(GeneralCheckpointIO):\n    def load_elsewhere(self): ...",
        "this release has no GeneralCheckpointIO.load_elsewhere",
    ),
    "a method has another signature": (
        "class GeneralCheckpointIO(GeneralCheckpointIO):\n    def load_sharded_optimizer(self, optimizer): ...",
        "load_sharded_optimizer(self, optimizer) in the patch",
    ),
}


@pytest.mark.parametrize(("code", "reason"), SPOILT.values(), ids=SPOILT)
def test_an_overlay_file_that_does_not_apply_leaves_the_stock_module_and_one_warning(finder, code, reason):
    finder.overlay_file.write_text(f"{finder.overlay_file.read_text()}\n{code}\n")
    with pytest.warns(RuntimeWarning, match=f"{NAME} stays stock") as caught:
        module = load(finder)
    stock = load_stock()
    assert module.__file__ == stock.__file__
    assert list(vars(module)) == list(vars(stock))
    assert reason in finder.outcomes[NAME]
    assert [reason in str(warning.message) for warning in caught] == [True]


def test_warnings_as_errors_do_not_break_the_import(finder, capsys):
    finder.overlay_file.write_text("raise KeyError('spoilt')\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = load(finder)
    assert module.__file__ == load_stock().__file__
    assert f"{NAME} stays stock" in capsys.readouterr().err


def test_an_untested_release_is_patched_with_one_warning(finder, monkeypatch):
    monkeypatch.setattr(overlay, "installed_release", lambda: "99.0.0")
    with pytest.warns(RuntimeWarning, match=r"not tested on ColossalAI 99\.0\.0") as caught:
        assert load(finder).__file__ == load(finder).__file__ == str(finder.overlay_file)
    assert len(caught) == 1


def test_switched_off_the_finder_finds_nothing(finder, monkeypatch):
    monkeypatch.setenv("COLOSSALAI_PATCH", "off")
    assert finder.find_spec(NAME, colossalai.checkpoint_io.__path__) is None


def test_a_process_is_patched_as_a_whole_or_not_at_all(finder, monkeypatch):
    load(finder)
    monkeypatch.setenv("COLOSSALAI_PATCH", "off")
    assert finder.find_spec(NAME, colossalai.checkpoint_io.__path__) is not None


def test_a_wrong_setting_warns_and_leaves_the_release_stock(finder, monkeypatch):
    monkeypatch.setenv("COLOSSALAI_PATCH", "of")
    with pytest.warns(RuntimeWarning, match="COLOSSALAI_PATCH='of'.* stays stock"):
        assert finder.find_spec(NAME, colossalai.checkpoint_io.__path__) is None


def test_a_misspelt_setting_warns_and_patches(finder, monkeypatch):
    monkeypatch.setenv("COLOSSALAI_PATCH_TRUST_PICKEL", "1")
    with pytest.warns(RuntimeWarning, match=r"COLOSSALAI_PATCH_TRUST_PICKEL is no setting"):
        assert load(finder).__file__ == str(finder.overlay_file)


@pytest.mark.parametrize("name", ["SAVE_FORMAT", "TRUST_PICKLE", "PROGRESS", "RELEASE_OLD_STATE"])
def test_any_other_wrong_setting_warns_once_and_patches(finder, monkeypatch, name):
    monkeypatch.setenv(f"COLOSSALAI_PATCH_{name}", "wrong")
    with pytest.warns(RuntimeWarning, match=f"COLOSSALAI_PATCH_{name}='wrong'") as caught:
        assert load(finder).__file__ == load(finder).__file__ == str(finder.overlay_file)
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["torch.optim", "colossalai_patch.overlay", "colossalai.accelerator", "colossalaix.a"])
def test_other_names_are_left_to_the_other_finders(finder, name):
    assert finder.find_spec(name, None) is None


def test_importing_the_package_after_colossalai_warns(stock_finders):
    with pytest.warns(RuntimeWarning, match="imported before colossalai_patch"):
        overlay.install()
    assert isinstance(stock_finders[0], overlay.OverlayFinder)


def test_importing_the_package_imports_nothing_else():
    code = (
        f"import os, sys; sys.path.append({str(CHECKOUT)!r}); before = set(sys.modules); "
        "import colossalai_patch; print(sorted(set(sys.modules) - before))"
    )
    imported = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert imported.stdout.strip() == "['colossalai_patch', 'colossalai_patch.overlay']"


def test_installing_twice_registers_one_finder():
    assert overlay.install() is overlay.install()
    assert sum(isinstance(finder, overlay.OverlayFinder) for finder in sys.meta_path) == 1


def test_classes_keep_their_module_and_name_and_can_be_pickled():
    assert pickle.loads(pickle.dumps(GeneralCheckpointIO)) is GeneralCheckpointIO
    assert type(pickle.loads(pickle.dumps(GeneralCheckpointIO()))) is GeneralCheckpointIO
    assert GeneralCheckpointIO.__module__ == NAME


def test_plugins_that_subclass_the_loader_inherit_the_patch():
    assert issubclass(TorchDDPCheckpointIO, GeneralCheckpointIO)
    assert GeneralCheckpointIO.load_sharded_optimizer.__code__.co_filename == str(OVERLAY_FILE)


def test_a_failed_overlay_file_shows_in_the_status(monkeypatch):
    monkeypatch.setitem(overlay.install().outcomes, NAME, "KeyError: 'spoilt'")
    found = status.find_status()
    assert status.ModuleStatus(NAME, status.FAILED, "KeyError: 'spoilt'") in found.modules
    assert not found.all_active


def test_an_untested_release_shows_in_the_status(monkeypatch):
    monkeypatch.setattr(overlay, "installed_release", lambda: "99.0.0")
    found = status.find_status()
    assert {module.state for module in found.modules} == {status.UNTESTED}
    assert not found.all_active


def test_switched_off_shows_in_the_status(monkeypatch):
    monkeypatch.setenv("COLOSSALAI_PATCH", "off")
    assert {module.state for module in status.find_status().modules} == {status.OFF}

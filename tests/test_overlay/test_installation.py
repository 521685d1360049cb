"""The patch is on wherever it is installed, however ColossalAI is, and gone when it is uninstalled."""

import json

import pytest
from environments import PIP_OPTIONS
from written_checkpoints import make_state_dict, write_sharded

GENERAL = "colossalai.checkpoint_io.general_checkpoint_io"
SHOW = f"""
def show(*rank):
    import colossalai
    from {GENERAL} import GeneralCheckpointIO
    print(colossalai.__file__, GeneralCheckpointIO.load_sharded_optimizer.__code__.co_filename)
"""
SPAWN = """
import torch.multiprocessing
from loader import show

if __name__ == "__main__":
    torch.multiprocessing.spawn(show, nprocs=1)
"""
WAYS_TO_RUN = {
    "spawned": ["spawn.py"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1", "here.py"],
}


@pytest.fixture(scope="session")
def scripts(tmp_path_factory):
    """Scripts that print the files of ColossalAI and of the loader in force: in this process, in a spawned child."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "loader.py").write_text(SHOW)
    (folder / "here.py").write_text("from loader import show\nshow()\n")
    (folder / "spawn.py").write_text(SPAWN)
    return folder


@pytest.mark.parametrize("way", WAYS_TO_RUN)
def test_the_loader_is_the_patch_s_in_every_kind_of_process(environment, scripts, way):
    release, loader = environment.output(*WAYS_TO_RUN[way], cwd=scripts).split()
    assert ("/source/" in release) == (environment.folder / "source").exists()
    assert loader.endswith("/colossalai/checkpoint_io/general_checkpoint_io.py")
    assert "/colossalai_patch/" in loader or "/checkout" in loader


def test_the_loader_is_stock_when_switched_off(environment, scripts):
    release, loader = environment.output("here.py", cwd=scripts, COLOSSALAI_PATCH="off").split()
    assert loader == release.replace("__init__.py", "checkpoint_io/general_checkpoint_io.py")


def test_status_says_that_every_module_is_active(environment):
    found = json.loads(environment.output("-m", "colossalai_patch", "status", "--json"))
    assert found["all_active"]
    assert GENERAL in [module["module"] for module in found["modules"]]


def test_the_command_line_reads_checkpoints(environment, tmp_path):
    write_sharded(make_state_dict(), tmp_path / "checkpoint")
    assert environment.output("-m", "colossalai_patch", "verify", "checkpoint", cwd=tmp_path).startswith("sound: ")


def test_a_checkout_in_the_working_directory_does_not_shadow_the_release(environment, checkout):
    code = "import sys, colossalai_patch; print(colossalai_patch.overlay.install().find_spec('colossalai').origin)"
    assert environment.output("-c", code, cwd=checkout).endswith("/colossalai/__init__.py")


def test_starting_python_imports_neither_torch_nor_colossalai(environment):
    code = "import sys; print([name for name in ('colossalai_patch', 'torch', 'colossalai') if name in sys.modules])"
    assert environment.output("-c", code) == "['colossalai_patch']"


@pytest.mark.parametrize("editable", [[], ["--editable"]], ids=["wheel", "editable"])
def test_uninstalling_leaves_nothing_behind(new_environment, checkout, editable):
    environment = new_environment("uninstalled")
    before = set(environment.site_packages.rglob("*"))
    environment.pip("install", *PIP_OPTIONS, *editable, checkout)
    assert (environment.site_packages / "colossalai_patch.pth").is_file()
    environment.pip("uninstall", "--quiet", "--yes", "colossalai-checkpoint-patch")
    assert set(environment.site_packages.rglob("*")) == before

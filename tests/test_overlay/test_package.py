"""What is published: an sdist and a wheel, complete and without tests."""

import shutil
import sys
import tarfile
import zipfile

import pytest
from environments import CHECKOUT, run


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Build sdist and wheel from a copy of the whole checkout, as ``python -m build`` does before an upload."""
    copy = tmp_path_factory.mktemp("package") / "checkout"
    shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info"))
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", copy / "dist", copy])
    return copy / "dist"


def wheel_names(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


def sdist_names(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        return {name.partition("/")[2] for name in file.getnames()}


def modules_below(folder):
    return {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / folder).rglob("*.py")}


def test_the_wheel_holds_every_module_and_overlay_file(built):
    expected = modules_below("colossalai_patch") | {f"colossalai_patch/{name}" for name in modules_below("colossalai")}
    assert expected | {"colossalai_patch.pth", "colossalai_patch/py.typed"} <= wheel_names(built)


def test_the_wheel_holds_nothing_else(built):
    top = {name.partition("/")[0] for name in wheel_names(built)}
    assert {name for name in top if not name.endswith(".dist-info")} == {"colossalai_patch", "colossalai_patch.pth"}


def test_the_sdist_holds_what_a_build_needs_and_no_tests(built):
    names = sdist_names(built)
    needed = {
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "colossalai_patch.pth",
        "requirements/requirements.txt",
    }
    assert needed | modules_below("colossalai_patch") | modules_below("colossalai") <= names
    assert not any(name.startswith("tests") for name in names)


def test_twine_finds_no_fault(built):
    run([sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()])

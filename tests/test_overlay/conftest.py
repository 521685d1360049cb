"""Fresh environments, each with its own installation of the patch and of ColossalAI, and the rest from this one."""

import shutil
import tarfile
import venv
from importlib.metadata import version

import pytest
from environments import CHECKOUT, PIP_OPTIONS, SITE_PACKAGES, SOURCES, Environment


@pytest.fixture(scope="session")
def new_environment(tmp_path_factory):
    """Make an environment that sees the packages of this one, but neither its start-up lines nor its ColossalAI."""

    def make(name):
        folder = tmp_path_factory.mktemp(name)
        venv.create(folder, symlinks=True)
        environment = Environment(folder)
        packages = folder / "packages"
        packages.mkdir()
        for package in SITE_PACKAGES.iterdir():
            if package.suffix != ".pth" and not package.name.startswith(("colossalai", "__editable__")):
                (packages / package.name).symlink_to(package)
        (environment.site_packages / "packages_of_the_suite.pth").write_text(f"{packages}\n")
        return environment

    return make


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """A copy of what the package is built from, so that a build leaves nothing in the real checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("colossalai", "colossalai_patch", "requirements"):
        shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "LICENSE", "MANIFEST.in", "setup.py", "pyproject.toml", "colossalai_patch.pth"):
        shutil.copy(CHECKOUT / name, copy)
    return copy


def install_patch(environment, checkout):
    environment.pip("install", *PIP_OPTIONS, checkout)


def install_patch_editable(environment, checkout):
    environment.pip("install", *PIP_OPTIONS, "--editable", checkout)


def install_release_from_registry(environment):
    """As pip would put it there: the files that this environment got from the registry."""
    for package in SITE_PACKAGES.glob("colossalai*"):
        if package.name in ("colossalai", f"colossalai-{version('colossalai')}.dist-info"):
            (environment.site_packages / package.name).symlink_to(package)


def install_release_editable(environment):
    (archive,) = SOURCES.glob("colossalai-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(environment.folder / "source", filter="data")
    (source,) = (environment.folder / "source").iterdir()
    environment.pip("install", *PIP_OPTIONS, "--editable", source)


@pytest.fixture(
    scope="session",
    params=[
        (install_patch, install_release_from_registry),
        (install_patch, install_release_editable),
        (install_patch_editable, install_release_from_registry),
        (install_patch_editable, install_release_editable),
    ],
    ids=["wheel-registry", "wheel-editable", "editable-registry", "editable-editable"],
)
def environment(request, new_environment, checkout):
    """An environment for each way to install the patch and ColossalAI."""
    install_patch_here, install_release_here = request.param
    environment = new_environment("environment")
    install_release_here(environment)
    install_patch_here(environment, checkout)
    return environment


@pytest.fixture
def environment_without_patch(new_environment):
    environment = new_environment("without_patch")
    install_release_from_registry(environment)
    return environment

import os

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))


def read(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


class BuildPatch(build_py):
    """Adds the start-up line, which makes every process of the environment patched, and the overlay's files.

    The overlay goes inside ``colossalai_patch``, since ``colossalai`` in site-packages belongs to the release. An
    editable install needs the start-up line only: the overlay is then found in the checkout.
    """

    START_UP_LINE = "colossalai_patch.pth"
    OVERLAY = "colossalai"

    def run(self):
        super().run()
        for source, target in self.extra_files().items():
            self.mkpath(os.path.dirname(target))
            self.copy_file(source, target)

    def extra_files(self):
        if self.editable_mode:
            site_packages = self.get_finalized_command("install").install_lib
            return {self.START_UP_LINE: os.path.join(site_packages, self.START_UP_LINE)}
        files = {self.START_UP_LINE: os.path.join(self.build_lib, self.START_UP_LINE)}
        for folder, _, names in os.walk(self.OVERLAY):
            for name in names:
                if name.endswith(".py"):
                    source = os.path.join(folder, name)
                    files[source] = os.path.join(self.build_lib, "colossalai_patch", source)
        return files

    def get_outputs(self, include_bytecode=True):
        return [*super().get_outputs(include_bytecode), *self.extra_files().values()]

    def get_output_mapping(self):
        return {**super().get_output_mapping(), **{target: source for source, target in self.extra_files().items()}}


setup(
    name="colossalai-checkpoint-patch",
    version="0.1.0",
    description="Optimizer checkpoints of ColossalAI that load exactly as torch.optim.Optimizer.load_state_dict does",
    long_description=read("README.md"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["colossalai", "checkpoint", "optimizer", "distributed training", "pytorch"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=find_packages(include=["colossalai_patch", "colossalai_patch.*"]),
    package_data={"colossalai_patch": ["py.typed"]},
    install_requires=read("requirements/requirements.txt").split(),
    extras_require={"colossalai": ["colossalai>=0.4.7"]},
    entry_points={"console_scripts": ["colossalai-patch = colossalai_patch.cli:main"]},
    cmdclass={"build_py": BuildPatch},
)

"""The command line. It shows; every decision is made in the modules that it calls.

Each command imports what needs torch when it runs, so that ``--help`` and completion take no seconds.
"""

import click

from colossalai_patch.cli import convert, diff, inspect, status, verify


@click.group()
@click.version_option(package_name="colossalai-checkpoint-patch")
def main() -> None:
    """Look after the patch to ColossalAI's checkpoint IO, and after optimizer checkpoints."""


for module in (convert.convert, diff.diff, inspect.inspect, status.status, verify.verify):
    main.add_command(module)

"""``status``: what the patch has replaced."""

import sys

import click

from colossalai_patch.cli.command import Command, json_option
from colossalai_patch.cli.showing import as_text, open_console, open_table, print_json, print_table
from colossalai_patch.settings import SettingError
from colossalai_patch.status import ACTIVE, FAILED, Status, find_status


@click.command(cls=Command, short_help="Say which modules of ColossalAI are patched.")
@json_option
def status(as_json: bool) -> None:
    """Say which modules of ColossalAI are patched, and why not where they are not.

    The exit code is 0 when all are active, and 1 otherwise, as when a COLOSSALAI_PATCH variable is wrong.

    \b
    Example:
        colossalai-patch status --json
    """
    try:
        found = find_status()
    except SettingError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json(found.as_json())
    else:
        _show(found)
    sys.exit(0 if found.all_active else 1)


def _show(found: Status) -> None:
    console = open_console()
    table = open_table(console, "module", "state", "reason")
    for module in found.modules:
        colour = {ACTIVE: "green", FAILED: "red"}.get(module.state, "yellow")
        table.add_row(module.module, as_text(module.state, colour), as_text(module.reason))
    print_table(table, console)
    for name, version in found.versions.items():
        console.print(as_text(f"{name} {version}"))

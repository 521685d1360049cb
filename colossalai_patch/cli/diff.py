"""``diff``: how two checkpoints differ."""

import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console

from colossalai_patch.cli.command import Command, json_option, prefix_option
from colossalai_patch.cli.showing import (
    ProgressBar,
    as_text,
    open_console,
    open_table,
    print_json,
    print_table,
    shortened,
)

if TYPE_CHECKING:
    from colossalai_patch.optimizer_checkpoint.comparison import Comparison


@click.command(cls=Command, short_help="Say how two checkpoints differ.")
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@prefix_option
@json_option
def diff(first: str, second: str, prefix: str | None, as_json: bool) -> None:
    """Say how the checkpoint SECOND differs from FIRST, in whatever format each is.

    Numbers that differ are told by name, with the largest difference of any two and the largest relative one, which is
    the difference divided by the larger of both, without their signs. Both are nan where a number stands beside NaN,
    and inf where it stands beside infinity.

    The exit code is 0 when they are equal, 1 when they differ, and 2 when that cannot be told.

    \b
    Example:
        colossalai-patch diff checkpoint/ later/
    """
    from colossalai_patch.optimizer_checkpoint.comparison import compare
    from colossalai_patch.optimizer_checkpoint.consistent import read_whole
    from colossalai_patch.optimizer_checkpoint.source import open_source

    with ProgressBar() as progress:
        found = read_whole(
            lambda: compare(open_source(first, prefix), open_source(second, prefix), progress), first, second
        )
    if as_json:
        print_json(found.as_json())
    else:
        _show(found, open_console())
    sys.exit(0 if found.equal else 1)


def _show(found: "Comparison", console: Console) -> None:
    console.print("equal" if found.equal else "different")
    console.print(f"parameters with equal states: {found.equal_params}")
    for title, ids in (("only in the first", found.only_in_first), ("only in the second", found.only_in_second)):
        if ids:
            console.print(as_text(f"states {title}: {len(ids)}: {' '.join(shortened(list(map(str, ids))))}"))
    for line in [*shortened(found.groups), *shortened(found.unlike)]:
        console.print(as_text(line))
    if not found.values:
        return
    table = open_table(console, "state", "parameters", "largest difference", "relative")
    for name, difference in found.values.items():
        numbers = (f"{number:.3g}" for number in (difference.absolute, difference.relative))
        table.add_row(as_text(name), str(difference.params), *numbers)
    print_table(table, console)

"""``verify``: whether a checkpoint is sound."""

import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from colossalai_patch.cli.command import Command, Trouble, json_option, prefix_option
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
    from colossalai_patch.optimizer_checkpoint.verification import Verification


@click.command(cls=Command, short_help="Check that a checkpoint is sound.")
@click.argument("checkpoint", type=click.Path())
@prefix_option
@click.option("--values", "with_values", is_flag=True, help="Look for NaN and infinity in every state, too.")
@json_option
def verify(checkpoint: str, prefix: str | None, with_values: bool, as_json: bool) -> None:
    """Check that CHECKPOINT is whole, would load, and is as it was saved.

    Files are compared with the checksums in the index, or with those that torch.save puts into a file. Where there is
    neither, CHECKPOINT is only sound as far as can be told. With --values, NaN and infinity are not sound.

    The exit code is 0 when it is sound, 1 when it is not, and 2 when it is no checkpoint.

    \b
    Example:
        colossalai-patch verify checkpoint/ --values
    """
    from colossalai_patch.optimizer_checkpoint.errors import NotACheckpointError
    from colossalai_patch.optimizer_checkpoint.verification import verify_files, verify_values

    try:
        with ProgressBar() as progress:
            found = (verify_values if with_values else verify_files)(checkpoint, prefix, progress)
    except NotACheckpointError as error:
        raise Trouble(f"not a checkpoint: {error}") from error
    if as_json:
        print_json(found.as_json())
    else:
        _show(found, open_console())
    sys.exit(0 if found.sound else 1)


def _show(found: "Verification", console: Console) -> None:
    console.print(Text.assemble(_verdict(found), as_text(f": {found.checkpoint}")))
    console.print(
        f"files: {found.files}, missing: {found.missing}, damaged: {found.damaged}, "
        f"without a checksum: {found.without_checksum}"
    )
    for problem in shortened(found.problems):
        console.print(as_text(problem))
    if not found.not_finite:
        return
    table = open_table(console, "state", "NaN", "infinite", "parameters")
    for name, counts in found.not_finite.items():
        table.add_row(as_text(name), str(counts.nan), str(counts.infinite), str(counts.params))
    print_table(table, console)


def _verdict(found: "Verification") -> Text:
    if not found.sound:
        return as_text("not sound", "red")
    return as_text("sound as far as can be told", "yellow") if found.without_checksum else as_text("sound", "green")

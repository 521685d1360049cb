"""``inspect``: what is in a checkpoint."""

from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.filesize import decimal

from colossalai_patch.cli.command import Command, json_option, prefix_option
from colossalai_patch.cli.showing import as_text, open_console, open_table, print_json, print_table

if TYPE_CHECKING:
    from colossalai_patch.optimizer_checkpoint.summary import Summary

SHOWN_OPTIONS = ("lr", "betas", "momentum", "weight_decay")


@click.command(cls=Command, short_help="Say what is in a checkpoint.")
@click.argument("checkpoint", type=click.Path())
@prefix_option
@click.option("--params", "with_params", is_flag=True, help="Add one line per parameter.")
@json_option
def inspect(checkpoint: str, prefix: str | None, with_params: bool, as_json: bool) -> None:
    """Say what is in CHECKPOINT: a directory, an index file, or the file of an unsharded checkpoint.

    The exit code is 0, or 2 when that cannot be told.

    \b
    Example:
        colossalai-patch inspect checkpoint/ --params
    """
    from colossalai_patch.optimizer_checkpoint.consistent import read_whole
    from colossalai_patch.optimizer_checkpoint.source import open_source
    from colossalai_patch.optimizer_checkpoint.summary import summarize

    summary = read_whole(lambda: summarize(open_source(checkpoint, prefix)), checkpoint)
    if as_json:
        params = {"params": summary.params_as_json()} if with_params else {}
        print_json(summary.as_json() | params)
        return
    console = open_console()
    _show(summary, console)
    if with_params:
        _show_params(summary, console)


def _show(summary: "Summary", console: Console) -> None:
    console.print(as_text(f"{summary.checkpoint}: {summary.form}, {summary.file_format}"))
    console.print(as_text(f"saved by: {summary.saved_by or 'not recorded'}"))
    console.print(f"parameters: {summary.with_state} with state, {summary.without_state} without")
    console.print(f"steps: {_range(summary.steps)}")
    for warning in summary.warnings:
        console.print(as_text(f"warning: {warning}", "yellow"))
    _show_groups(summary, console)
    _show_names(summary, console)
    _show_files(summary, console)


def _show_groups(summary: "Summary", console: Console) -> None:
    from colossalai_patch.optimizer_checkpoint.summary import options_that_differ

    there = {name for group in summary.groups for name in group}
    shown = [name for name in SHOWN_OPTIONS if name in there]
    shown += [name for name in options_that_differ(summary.groups) if name not in (*shown, "params")]
    table = open_table(console, "group", "parameters", *shown)
    for number, group in enumerate(summary.groups):
        table.add_row(str(number), str(group["params"]), *(as_text(str(group.get(name, ""))) for name in shown))
    print_table(table, console)


def _show_names(summary: "Summary", console: Console) -> None:
    table = open_table(console, "state", "dtype", "count")
    for name, dtypes in summary.names.items():
        for dtype, count in dtypes.items():
            table.add_row(as_text(name), as_text(dtype), str(count))
    print_table(table, console)


def _show_files(summary: "Summary", console: Console) -> None:
    table = open_table(console, "file", "size")
    for name, size in summary.file_bytes.items():
        table.add_row(as_text(name), decimal(size))
    table.add_row("total", decimal(summary.total_bytes))
    print_table(table, console)


def _show_params(summary: "Summary", console: Console) -> None:
    table = open_table(console, "parameter", "group", "state")
    for param in summary.params:
        state = ", ".join(f"{name} {form}" for name, form in param.state.items())
        table.add_row(as_text(str(param.param_id)), str(param.group), as_text(state or "none"))
    print_table(table, console)


def _range(steps: tuple[float, float] | None) -> str:
    if steps is None:
        return "none"
    return f"{steps[0]:g}" if steps[0] == steps[1] else f"{steps[0]:g} to {steps[1]:g}"

"""How things are shown: tables and colours on a terminal, plain lines in a pipe."""

import json
import math
import sys
from types import TracebackType
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Column, Table
from rich.text import Text

WIDTH_OF_A_PIPE = 1000
MOST_LINES = 20


def open_console() -> Console:
    """A console on stdout, which never folds the lines of a pipe."""
    return Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_PIPE, highlight=False)


def printable(text: str) -> str:
    """A text without characters that a terminal obeys: a checkpoint of somebody else may hold them."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def as_text(text: str, style: str = "") -> Text:
    """A text to be shown as it is, without markup and in one line."""
    return Text(printable(text), style)


def open_table(console: Console, *columns: str) -> Table:
    """A table with lines on a terminal, and with nothing but columns in a pipe."""
    headers = (Column(as_text(name)) for name in columns)
    return Table(*headers, box=box.SIMPLE if console.is_terminal else None, show_edge=False)


def print_table(table: Table, console: Console) -> None:
    """Print a table below an empty line."""
    console.print()
    console.print(table)


def print_json(content: Any) -> None:
    """Print a JSON object; what JSON has no word for, such as infinity, becomes text."""
    click.echo(json.dumps(_finite(content), indent=2, default=str))


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content


class ProgressBar:
    """Bytes that are done, with rate and time left: on stderr, if that is a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> "ProgressBar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, stage: str, total: int) -> None:
        """Start again from nothing, for another stage of a task."""
        self._progress.reset(self._task, description=stage, total=total)

    def advance(self, count: int) -> None:
        """Move on by so many bytes."""
        self._progress.advance(self._task, count)


def shortened(lines: list[str]) -> list[str]:
    """The first lines of a long list, and how many more there are."""
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[:MOST_LINES], f"... and {len(lines) - MOST_LINES} more"]

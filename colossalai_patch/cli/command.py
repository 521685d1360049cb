"""What the commands have in common: how they end in an error, and how they are told of a checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from colossalai_patch.cli.showing import print_json, printable

DEBUG = "debug"
JSON = "--json"


class Trouble(click.ClickException):
    """Why a command cannot do what it is for; the exit code is 2, since 1 is an answer of some commands."""

    exit_code = 2

    def format_message(self) -> str:
        """Show the message as it is."""
        return printable(self.message)


class Command(click.Command):
    """A command whose errors are one line on stderr, and with ``--json`` a JSON object on stdout as well.

    ``--debug`` shows the traceback instead.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params.append(click.Option([f"--{DEBUG}"], is_flag=True, help="Show the traceback of an error."))

    def make_context(self, info_name: str | None, args: list[str], *others: Any, **options: Any) -> click.Context:
        """Read the command line.

        Raises:
            click.UsageError: if it is not one of this command.
        """
        with _errors_on_stdout(JSON in args):
            return super().make_context(info_name, args, *others, **options)

    def invoke(self, context: click.Context) -> Any:
        """Run the command.

        Raises:
            Trouble: in place of every error that click does not show by itself.
        """
        if context.params.pop(DEBUG):
            return super().invoke(context)
        with _errors_on_stdout(context.params["as_json"]):
            try:
                return super().invoke(context)
            except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
                raise
            except Exception as error:
                raise Trouble(" ".join(str(error).split()) or type(error).__name__) from error


@contextmanager
def _errors_on_stdout(wanted: bool) -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        if wanted:
            print_json({"error": error.format_message()})
        raise


json_option = click.option(JSON, "as_json", is_flag=True, help="Print one JSON object, and an error as one too.")
prefix_option = click.option("--prefix", help="The prefix that the checkpoint was saved with.")

"""What the commands have in common: how they end in an error, and how they are told of a checkpoint."""

from typing import Any

import click

from colossalai_patch.cli.showing import printable

DEBUG = "debug"


class Trouble(click.ClickException):
    """Why a command cannot do what it is for; the exit code is 2, since 1 is an answer of some commands."""

    exit_code = 2

    def format_message(self) -> str:
        """Show the message as it is."""
        return printable(self.message)


class Command(click.Command):
    """A command whose errors are one line on stderr; ``--debug`` shows the traceback instead."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params.append(click.Option([f"--{DEBUG}"], is_flag=True, help="Show the traceback of an error."))

    def invoke(self, context: click.Context) -> Any:
        """Run the command.

        Raises:
            Trouble: in place of every error that click does not show by itself.
        """
        if context.params.pop(DEBUG):
            return super().invoke(context)
        try:
            return super().invoke(context)
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except Exception as error:
            raise Trouble(" ".join(str(error).split()) or type(error).__name__) from error


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
prefix_option = click.option("--prefix", help="The prefix that the checkpoint was saved with.")

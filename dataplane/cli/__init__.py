"""The roof: commands. Each is a module here with an `app`, imported when it is run; nothing imports this package."""

import re
import sys
import traceback
from importlib import import_module
from importlib.metadata import version
from typing import Any

import typer
from typer.core import TyperGroup

from dataplane.errors import DataplaneError

# Name, which is also the module's, and what `dataplane --help` says. A new command is a line here.
COMMANDS = {
    "preprocess": "Turn JSON lines, text or Parquet into a dataset of compressed blocks.",
    "index": "Make WebDataset tars a dataset where they lie.",
    "inspect": "Show a dataset's schema, versions, sizes and first rows.",
    "train": "Train a GPT on a packed dataset, with exact resume.",
    "profile": "Train, and show how each step's time divides.",
    "demo": "The whole road: text, dataset, training, a kill, a resume, the account.",
    "verify": "Read every block of a dataset and check its digest and its rows.",
    "versions": "List the versions of a dataset, and what made them.",
    "rollback": "Commit a new version with the content of an earlier one.",
    "compact": "Merge runs of small shards into full ones.",
    "gc": "Show or delete what no kept version names.",
    "copy": "Copy a dataset between any two stores.",
    "merge": "Make datasets below a folder one dataset there, without copying.",
}


class _LazyGroup(TyperGroup):
    """Lists the commands without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:  # Any: click's, or typer's own copy of it
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:  # Any: as above
        if name not in COMMANDS:
            return None
        command = typer.main.get_command(import_module(f"dataplane.cli.{name}").app)
        command.name = name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # Any: as above
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=_LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(version("dataplane"))
        raise typer.Exit


@app.callback()
def dataplane(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    show_version: bool = typer.Option(False, "--version", help="Show the version.", is_eager=True, callback=_version),
) -> None:
    """Streams preprocessed datasets from any store so that accelerators never wait for data."""


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and ends the process: status 0, or one line on stderr and another status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    try:
        app([argument for argument in arguments if argument != "--debug"], prog_name="dataplane")
    except SystemExit as end:
        if end.code == 130:
            _fail("interrupted", 130)
        raise
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except (DataplaneError, ValueError, OSError) as error:
        if debug:
            traceback.print_exc()
        _fail(_one_line(error), 1)


def _fail(message: str, status: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(status)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror.lower()}"
    else:
        text = str(error) or type(error).__name__
    notes = getattr(error, "__notes__", [])
    return re.sub(r"[\x00-\x20\x7f]+", " ", "; ".join([text, *notes])).strip()

"""`dataplane copy SRC DST`: a dataset to another store."""

import sys
from contextlib import ExitStack

import typer

from dataplane.catalog import copy_dataset
from dataplane.cli.options import STORAGE_OPTION, storage_options
from preprocess import display_on, silent
from preprocess.progress import Display

app = typer.Typer(rich_markup_mode=None)


@app.command()
def command(
    source: str = typer.Argument(..., metavar="SRC", help="Folder of the dataset; a path or a URL."),
    destination: str = typer.Argument(..., metavar="DST", help="Where it is copied to; a path or a URL."),
    version: int | None = typer.Option(None, help="Copy this version only; all if not given."),
    options: list[str] = STORAGE_OPTION,
    source_options: list[str] = typer.Option(
        [], "--source-option", metavar="KEY=VALUE", help="As --storage-option, for SRC only."
    ),
    destination_options: list[str] = typer.Option(
        [], "--destination-option", metavar="KEY=VALUE", help="As --storage-option, for DST only."
    ),
    quiet: bool = typer.Option(False, "--quiet", help="Print nothing but errors."),
) -> None:
    """Copy a dataset between any two stores: files are checked on the way, versions put last.

    The same command again after an interruption copies what is left.
    """
    show = silent if quiet else display_on(sys.stderr)
    with ExitStack() as stack:
        displays: list[Display] = []

        def progress(done: int, total: int) -> None:
            if not displays:
                displays.append(stack.enter_context(show("copy", total)))
            displays[0].update(done, str)

        copied = copy_dataset(
            source,
            destination,
            version=version,
            source_options=storage_options([*options, *source_options]),
            destination_options=storage_options([*options, *destination_options]),
            progress=progress,
        )
    if not quiet:
        numbers = ", ".join(map(str, copied.versions))
        print(f"{destination}: has version {numbers}; copied {copied.num_files:,} files of {copied.num_bytes:,} bytes")

"""`dataplane index FOLDER`: stream WebDataset tars where they lie."""

import sys

import typer

from dataplane.cli.options import STORAGE_OPTION, storage_options
from preprocess import display_on, index_in_place, silent

app = typer.Typer(rich_markup_mode=None)


@app.command()
def command(
    folder: str = typer.Argument(..., help="Folder of .tar files; a path or a URL."),
    options: list[str] = STORAGE_OPTION,
    quiet: bool = typer.Option(False, "--quiet", help="Print nothing but errors."),
) -> None:
    """Make a folder of WebDataset tars a dataset, without copying them: exact epochs and resume come from an index."""
    show = silent if quiet else display_on(sys.stderr)
    version = index_in_place(folder, storage_options=storage_options(options), show=show)
    if not quiet:
        columns = ", ".join(version.columns)
        print(f"{folder}: {version.num_rows:,} samples in {version.num_blocks:,} blocks, columns {columns}")

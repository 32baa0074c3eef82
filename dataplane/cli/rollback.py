"""`dataplane rollback DEST N`: the content of an earlier version again, as a new one."""

import typer

from dataplane.catalog import rollback
from dataplane.cli.options import STORAGE_OPTION, storage_options

app = typer.Typer(rich_markup_mode=None)


@app.command()
def command(
    destination: str = typer.Argument(..., metavar="DEST", help="Folder of the dataset; a path or a URL."),
    number: int = typer.Argument(..., metavar="N", help="The version to go back to."),
    options: list[str] = STORAGE_OPTION,
) -> None:
    """Commit a new version with the content of version N. Nothing is removed; `gc` does that."""
    version = rollback(destination, number, storage_options=storage_options(options))
    print(f"version {version.number} of {destination} has the content of version {number}: {version.num_rows:,} rows")

"""`dataplane merge ROOT PART...`: datasets below a folder become one there."""

import typer

from dataplane.catalog import merge
from dataplane.cli.options import STORAGE_OPTION, storage_options

app = typer.Typer(rich_markup_mode=None)


@app.command()
def command(
    root: str = typer.Argument(..., help="Folder that holds the parts; a path or a URL."),
    parts: list[str] = typer.Argument(..., metavar="PART...", help="Folders of datasets, relative to ROOT or in full."),
    options: list[str] = STORAGE_OPTION,
) -> None:
    """Make the datasets in some folders one dataset at ROOT, which names their shards where they lie.

    Nothing is copied, and the tree can be moved as a whole.
    """
    version = merge(root, parts, storage_options=storage_options(options))
    print(
        f"version {version.number} of {root}: {version.num_rows:,} rows in {version.num_blocks:,} blocks of "
        f"{len(parts)} datasets"
    )

"""`dataplane versions DEST`: what was committed, and by what."""

import json
import sys

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dataplane.catalog import DatasetVersion, versions
from dataplane.cli.options import STORAGE_OPTION, storage_options

app = typer.Typer(rich_markup_mode=None)


@app.command()
def command(
    destination: str = typer.Argument(..., metavar="DEST", help="Folder of the dataset; a path or a URL."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    options: list[str] = STORAGE_OPTION,
) -> None:
    """List the versions of a dataset, oldest first: number, parent, rows, sizes, and what made them."""
    found = [_row(version) for version in versions(destination, storage_options=storage_options(options))]
    if as_json:
        json.dump(found, sys.stdout, indent=1, ensure_ascii=False)
        print()
        return
    table = Table(title=f"versions of {escape(destination)}")
    for name, value in found[0].items():
        table.add_column(name.replace("_", " "), justify="left" if isinstance(value, str) else "right")
    for row in found:
        table.add_row(*(_shown(value) for value in row.values()))
    Console().print(table)


def _row(version: DatasetVersion) -> dict[str, int | str | None]:
    return {
        "version": version.number,
        "parent": version.parent,
        "rows": version.num_rows,
        "blocks": version.num_blocks,
        "shards": version.num_shards,
        "bytes": version.num_bytes,
        "raw_bytes": version.raw_bytes,
        "made_by": version.made_by,
    }


def _shown(value: int | str | None) -> str:
    match value:
        case None:
            return "-"
        case int():
            return f"{value:,}"
        case _:
            return escape(value)

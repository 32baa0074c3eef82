"""`dataplane gc DEST`: delete what no kept version names."""

import re

import typer

from dataplane.catalog import collect_garbage
from dataplane.cli.options import STORAGE_OPTION, storage_options

app = typer.Typer(rich_markup_mode=None)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.command()
def command(
    destination: str = typer.Argument(..., metavar="DEST", help="Folder of the dataset; a path or a URL."),
    keep: int | None = typer.Option(None, min=1, help="Keep this many of the newest versions; all if not given."),
    older_than: str = typer.Option("1d", metavar="AGE", help="Touch nothing younger: a number with s, m, h or d."),
    delete: bool = typer.Option(False, "--delete", help="Delete. Without it, only show what would be deleted."),
    options: list[str] = STORAGE_OPTION,
) -> None:
    """Show, and with --delete remove, the shards, indexes and unfinished work that no kept version names.

    Only files that this package writes are ever removed. Give --older-than more than the longest run takes.
    """
    found = collect_garbage(
        destination,
        keep=keep,
        older_than_seconds=seconds_of(older_than),
        delete=delete,
        storage_options=storage_options(options),
    )
    for path, num_bytes in found.objects:
        print(f"{num_bytes:>15,} {path}")
    verb = "deleted" if delete else "would delete (give --delete)"
    young = f"; {found.num_young:,} unnamed objects are younger than {older_than}" if found.num_young else ""
    print(f"{verb} {len(found.objects):,} objects of {found.num_bytes:,} bytes, {len(found.versions)} versions{young}")


def seconds_of(age: str) -> float:
    """Raises ValueError for what is not a number with a unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])|0", age)
    if match is None:
        raise ValueError(f"--older-than needs a number with s, m, h or d, such as 12h; got {age!r}")
    return float(match[1]) * _UNITS[match[2]] if match[1] else 0.0

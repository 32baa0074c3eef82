"""`dataplane inspect DEST`: what a dataset is, and its first rows."""

import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dataplane.catalog import Dataset, DatasetVersion, list_versions, open_dataset
from dataplane.cli.options import STORAGE_OPTION, storage_options
from dataplane.metrics import Metrics
from dataplane.storage import BlockSource
from preprocess.tokenizer import Vocabulary, load_vocabulary

app = typer.Typer(rich_markup_mode=None)

_SHOWN_ITEMS = 12  # of a list in a sample row
_SHOWN_CHARACTERS = 200


@app.command()
def command(
    destination: str = typer.Argument(..., metavar="DEST", help="Folder of the dataset; a path or a URL."),
    version: int | None = typer.Option(None, help="Which version; the newest if not given."),
    rows: int = typer.Option(3, min=0, help="Sample rows to show."),
    tokenizer: str | None = typer.Option(None, metavar="FILE", help="Show tokens as text, by this tokenizer's file."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    options: list[str] = STORAGE_OPTION,
) -> None:
    """Show a dataset's schema, versions, sizes, metadata and first rows."""
    stores = storage_options(options)
    dataset = open_dataset(destination, version=version, storage_options=stores)
    vocabulary = load_vocabulary(tokenizer, stores) if tokenizer is not None else None
    if vocabulary is not None:
        _check_vocabulary(vocabulary, dataset)
    view = _View(
        dataset,
        [
            open_dataset(destination, version=number, storage_options=stores).version
            for number in list_versions(dataset.store)
        ],
        [_shortened(row, vocabulary) for row in first_rows(dataset, rows)],
    )
    if as_json:
        json.dump(view.to_dict(), sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        view.print(Console())


def first_rows(dataset: Dataset, num_rows: int) -> list[dict[str, Any]]:  # Any: whatever Arrow holds
    """The first rows as Python values. Reads no more blocks than these rows are in."""
    source = BlockSource(dataset.store, None, Metrics())
    rows: list[dict[str, Any]] = []
    for number in range(len(dataset.index)):
        if len(rows) >= num_rows:
            break
        batch = dataset.format.decode(source.read(dataset.index[number]), dataset.schema)
        rows += [
            {name: _value(batch.column(name)[row]) for name in batch.schema.names}
            for row in range(min(batch.num_rows, num_rows - len(rows)))
        ]
    return rows


def _value(scalar: pa.Scalar) -> Any:  # Any: whatever Arrow holds
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):  # a time that Python's types cannot hold
        return scalar.cast(pa.string()).as_py() if pa.types.is_temporal(scalar.type) else str(scalar.type)


@dataclass(frozen=True, slots=True)
class _View:
    dataset: Dataset
    versions: list[DatasetVersion]
    rows: list[dict[str, Any]]  # Any: JSON

    def to_dict(self) -> dict[str, Any]:  # Any: JSON
        return {
            "url": self.dataset.store.url,
            "version": self.dataset.version.number,
            "fingerprint": self.dataset.version.fingerprint,
            "schema": _columns(self.dataset),
            "versions": [_numbers(version) for version in self.versions],
            "metadata": self.dataset.version.metadata,
            "rows": self.rows,
        }

    def print(self, console: Console) -> None:
        console.print(f"{self.dataset.store.url}, version {self.dataset.version.number}", markup=False)
        schema = Table("column", "type", "nulls", title="schema")
        for column in _columns(self.dataset):
            schema.add_row(escape(column["name"]), column["type"], "yes" if column["nullable"] else "no")
        console.print(schema)
        versions = Table(title="versions")
        for name in _numbers(self.dataset.version):
            versions.add_column(name.replace("_", " "), justify="right")
        for version in self.versions:
            versions.add_row(*(f"{value:,}" for value in _numbers(version).values()))
        console.print(versions)
        for name, value in self.dataset.version.metadata.items():
            console.print(f"{name}: {value}", markup=False, highlight=False)
        for number, row in enumerate(self.rows):
            console.print(f"row {number}: {json.dumps(row, ensure_ascii=False)}", markup=False, highlight=False)


def _columns(dataset: Dataset) -> list[dict[str, Any]]:  # Any: JSON
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in dataset.schema]


def _numbers(version: DatasetVersion) -> dict[str, float]:
    return {
        "version": version.number,
        "rows": version.num_rows,
        "blocks": version.num_blocks,
        "shards": version.num_shards,
        "bytes": version.num_bytes,
        "raw_bytes": version.raw_bytes,
        "ratio": round(version.raw_bytes / version.num_bytes, 2) if version.num_bytes else 0,
    }


def _check_vocabulary(vocabulary: Vocabulary, dataset: Dataset) -> None:
    metadata = dataset.version.metadata
    if "tokenizer_digest" not in metadata:
        raise ValueError(f"{dataset.store.url}: its rows hold no tokens; leave --tokenizer out")
    if metadata["tokenizer_digest"] != vocabulary.digest:
        raise ValueError(
            f"the tokenizer has digest {vocabulary.digest}, the rows of {dataset.store.url} were made with "
            f"{metadata['tokenizer_digest']}; give the same file"
        )


def _shortened(
    row: dict[str, Any],  # Any: whatever Arrow holds
    vocabulary: Vocabulary | None,
) -> dict[str, Any]:
    if vocabulary is not None:
        text = vocabulary.decode(np.array(row["tokens"][: row["length"]]))
        row = {**row, "tokens": text}
    return {name: _short(value) for name, value in row.items()}


def _short(value: Any) -> Any:  # Any: whatever Arrow holds, and JSON
    match value:
        case dict():
            return {str(name): _short(child) for name, child in value.items()}
        case list() if len(value) > _SHOWN_ITEMS:
            return [*(_short(child) for child in value[:_SHOWN_ITEMS]), f"... {len(value)} in all"]
        case list():
            return [_short(child) for child in value]
        case str() if len(value) > _SHOWN_CHARACTERS:
            return f"{value[:_SHOWN_CHARACTERS]}... {len(value)} characters in all"
        case str() | int() | float() | None:
            return value
        case bytes():
            return f"{len(value)} bytes"
        case _:
            return str(value)

"""`dataplane preprocess SOURCE... DEST`."""

import json
import sys
from enum import StrEnum
from pathlib import Path

import typer
from rich.console import Console

from dataplane.catalog import Encoding
from dataplane.cli.options import STORAGE_OPTION, storage_options
from preprocess import Packing, Reading, Recipe, display_on, preprocess, silent

app = typer.Typer(rich_markup_mode=None)


class _Format(StrEnum):
    AUTO = "auto"
    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    TEXT = "text"
    PARQUET = "parquet"
    ARROW = "arrow"
    WEBDATASET = "webdataset"
    IMAGE = "image"


class _Records(StrEnum):
    FILE = "file"
    PARAGRAPH = "paragraph"
    LINE = "line"


class _Codec(StrEnum):
    ZSTD = "zstd"
    LZ4 = "lz4"
    NONE = "none"


@app.command()
def command(
    sources: list[str] = typer.Argument(
        ..., metavar="SOURCE...", help="Files, folders (with all below them) or patterns; paths or URLs."
    ),
    destination: str = typer.Argument(..., metavar="DEST", help="Folder of the dataset; a path or a URL."),
    tokenizer: str | None = typer.Option(
        None, metavar="FILE", help="A `tokenizers` JSON file: tokenise and pack the texts. Without it rows are kept."
    ),
    sequence_length: int = typer.Option(2048, min=1, help="Tokens of a packed row."),
    eos_token: str | None = typer.Option(None, metavar="TEXT", help="Token to append to each document."),
    text_column: str = typer.Option("text", help="Column that holds the texts."),
    columns: str | None = typer.Option(
        None, metavar="A,B", help="Columns to keep, without --tokenizer. All if not given."
    ),
    format: _Format = typer.Option(_Format.AUTO, help="Form of the inputs; `auto` goes by their names."),
    column_names: str | None = typer.Option(None, metavar="A,B", help="Columns of CSV and TSV without a header."),
    file_column: str | None = typer.Option(
        None, metavar="NAME", help="Column of CSV and TSV that names files, such as images: read them too."
    ),
    records: _Records = typer.Option(_Records.FILE, help="What a record of plain text is."),
    block_bytes: int = typer.Option(1 << 20, min=1, help="Bytes of a block's rows in memory."),
    shard_bytes: int = typer.Option(Encoding().shard_bytes, min=1, help="Bytes at which a shard file is full."),
    codec: _Codec = typer.Option(_Codec.ZSTD, help="Compression of the blocks."),
    level: int = typer.Option(Encoding().level, min=1, max=22, help="Level of zstd."),
    zstd_window_log: int = typer.Option(
        27, min=10, max=31, help="Read zst (xz) with a window (dictionary) of up to 2 to this power bytes."
    ),
    append: bool = typer.Option(False, "--append", help="Add a version to the dataset that is there."),
    options: list[str] = STORAGE_OPTION,
    report: Path | None = typer.Option(None, metavar="FILE", help="Write the final report as JSON too."),
    quiet: bool = typer.Option(False, "--quiet", help="Print nothing but errors."),
) -> None:
    """Turn a corpus of any common form, plain or compressed, into a dataset of compressed blocks.

    With --tokenizer, texts become rows of --sequence-length tokens with document boundaries kept;
    without it, rows are kept as they are. The last argument is where the dataset is written.
    """
    recipe = Recipe(
        reading=Reading(
            format=format.value,
            records=records.value,
            text_column=text_column,
            column_names=tuple(column_names.split(",")) if column_names is not None else None,
            file_column=file_column,
            zstd_window_log=zstd_window_log,
        ),
        packing=Packing(tokenizer=tokenizer, sequence_length=sequence_length, eos_token=eos_token)
        if tokenizer is not None
        else None,
        columns=tuple(columns.split(",")) if columns is not None else None,
        block_bytes=block_bytes,
        encoding=Encoding(codec=codec.value, level=level, shard_bytes=shard_bytes),
    )
    if tokenizer is None and eos_token is not None:
        raise ValueError("--eos-token goes with --tokenizer; give both or neither")
    result = preprocess(
        sources,
        destination,
        recipe,
        append=append,
        storage_options=storage_options(options),
        show=silent if quiet else display_on(sys.stderr),
    )
    if report is not None:
        report.write_text(json.dumps(result.to_dict(), indent=1, ensure_ascii=False) + "\n")
    if not quiet:
        Console().print(result.table())

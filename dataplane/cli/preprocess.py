"""`dataplane preprocess SOURCE... DEST`."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from dataplane.catalog import Encoding
from dataplane.cli.options import STORAGE_OPTION, storage_options
from preprocess import (
    Inline,
    Processes,
    Ray,
    Report,
    display_on,
    load_recipe,
    parse_recipe,
    preprocess,
    silent,
)
from preprocess.engines import Engine

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


class _Engine(StrEnum):
    PROCESSES = "processes"
    RAY = "ray"


class _Codec(StrEnum):
    ZSTD = "zstd"
    LZ4 = "lz4"
    NONE = "none"


class _OutputFormat(StrEnum):
    ARROW = "arrow"
    TAR = "tar"
    TAR_ZST = "tar.zst"


@app.command()
def command(
    sources: list[str] = typer.Argument(
        ..., metavar="SOURCE...", help="Files, folders (with all below them) or patterns; paths or URLs."
    ),
    destination: str = typer.Argument(..., metavar="DEST", help="Folder of the dataset; a path or a URL."),
    recipe: str | None = typer.Option(
        None,
        metavar="FILE",
        help="A recipe in YAML, TOML or JSON. Options given beside it go before what it says.",
    ),
    tokenizer: str | None = typer.Option(
        None,
        metavar="FILE",
        help="A `tokenizers` JSON file, a .tiktoken file or a sentencepiece .model: tokenise and pack the texts. "
        "Without it rows are kept.",
    ),
    sequence_length: int | None = typer.Option(None, min=1, help="Tokens of a packed row. [default: 2048]"),
    eos_token: str | None = typer.Option(None, metavar="TEXT", help="Token to append to each document."),
    text_column: str | None = typer.Option(None, help="Column that holds the texts. [default: text]"),
    columns: str | None = typer.Option(
        None, metavar="A,B", help="Columns to read, without --tokenizer. All if not given."
    ),
    format: _Format | None = typer.Option(None, help="Form of the inputs; `auto` goes by their names. [default: auto]"),
    column_names: str | None = typer.Option(None, metavar="A,B", help="Columns of CSV and TSV without a header."),
    file_column: str | None = typer.Option(
        None, metavar="NAME", help="Column of CSV and TSV that names files, such as images: read them too."
    ),
    records: _Records | None = typer.Option(None, help="What a record of plain text is. [default: file]"),
    block_bytes: int | None = typer.Option(None, min=1, help="Bytes of a block's rows in memory. [default: 1048576]"),
    shard_bytes: int | None = typer.Option(
        None, min=1, help=f"Bytes at which a shard file is full. [default: {Encoding().shard_bytes}]"
    ),
    output_format: _OutputFormat | None = typer.Option(
        None, help="Form of the shards; tar and tar.zst are WebDatasets. [default: arrow]"
    ),
    codec: _Codec | None = typer.Option(None, help="Compression of the blocks. [default: zstd]"),
    level: int | None = typer.Option(None, min=1, max=22, help=f"Level of zstd. [default: {Encoding().level}]"),
    zstd_window_log: int | None = typer.Option(
        None, min=10, max=31, help="Largest window of zst (dictionary of xz) to read, as a power of 2. [default: 27]"
    ),
    append: bool = typer.Option(
        False, "--append", help="Add a version to the dataset that is there, of the inputs that it does not have."
    ),
    workers: int | None = typer.Option(None, min=1, help="Processes that share the work; one for each core or CPU."),
    threads: int | None = typer.Option(
        None, min=1, help="Native threads of each process; by default a share of the cores."
    ),
    engine: _Engine = typer.Option(_Engine.PROCESSES, help="Where the work is done: here, or on a Ray cluster."),
    ray_address: str | None = typer.Option(None, metavar="ADDRESS", help="Of the cluster, as `ray.init` has it."),
    task_bytes: int | None = typer.Option(
        None, min=1, help="Bytes of input that one worker does in one go, and that a killed run loses at most."
    ),
    resume: bool = typer.Option(
        True, "--resume/--no-resume", help="Go on from what an earlier, unfinished run has done, or refuse to."
    ),
    options: list[str] = STORAGE_OPTION,
    report: Path | None = typer.Option(None, metavar="FILE", help="Write the final report as JSON too."),
    quiet: bool = typer.Option(False, "--quiet", help="Print nothing but errors."),
) -> None:
    """Turn a corpus of any common form, plain or compressed, into a dataset of compressed blocks.

    With --tokenizer, texts become rows of --sequence-length tokens with document boundaries kept;
    without it, rows are kept as they are. The last argument is where the dataset is written.
    """
    packing = _given(tokenizer=tokenizer, sequence_length=sequence_length, eos_token=eos_token)
    given = {
        "reading": _given(
            format=format,
            records=records,
            text_column=text_column,
            column_names=_listed(column_names),
            file_column=file_column,
            zstd_window_log=zstd_window_log,
        ),
        "packing": packing,
        "output": _given(
            block_bytes=block_bytes, shard_bytes=shard_bytes, format=output_format, codec=codec, level=level
        ),
        "columns": _listed(columns),
        "task_bytes": task_bytes,
    }
    overrides = {name: value for name, value in given.items() if value}
    storage = storage_options(options)
    if recipe is not None:
        # Functions of the user lie beside the recipe, or where the command is given.
        sys.path[:0] = [str(Path(recipe).parent.absolute()), str(Path.cwd())]
    elif tokenizer is None and (alone := next(iter(packing or ()), None)):
        raise ValueError(f"--{alone.replace('_', '-')} goes with --tokenizer; give both or neither")
    made = parse_recipe(overrides) if recipe is None else load_recipe(recipe, overrides, storage)

    def say(result: Report) -> None:
        if report is not None:
            report.write_text(json.dumps(result.to_dict(), indent=1, ensure_ascii=False) + "\n")
        if not quiet:
            Console().print(result.table())

    result = preprocess(
        sources,
        destination,
        made,
        append=append,
        resume=resume,
        engine=_chosen(engine, workers, threads, ray_address),
        unfinished=say,
        storage_options=storage,
        show=silent if quiet else display_on(sys.stderr),
    )
    say(result)


def _chosen(engine: _Engine, workers: int | None, threads: int | None, address: str | None) -> Engine | None:
    """None where nothing was chosen. Raises ValueError for choices that do not go together."""
    if engine is _Engine.RAY:
        if threads is not None:
            raise ValueError("--threads goes with --engine processes; a Ray worker has the one CPU that Ray gives it")
        return Ray(address, workers)
    if address is not None:
        raise ValueError("--ray-address goes with --engine ray; give both or neither")
    if workers is None and threads is None:
        return None
    return Inline() if workers == 1 and threads is None else Processes(workers, threads)


def _given(**settings: Any) -> dict[str, Any]:  # Any: of the settings' own types
    """Those that were given on the command line."""
    return {
        name: value.value if isinstance(value, StrEnum) else value
        for name, value in settings.items()
        if value is not None
    }


def _listed(names: str | None) -> list[str] | None:
    return None if names is None else names.split(",")

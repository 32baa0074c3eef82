"""What the reader of every form can do, and which form has which."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import pyarrow as pa

from dataplane.metrics import Metrics
from preprocess.schema import Survey
from preprocess.sources.arrow_ipc import ArrowIpc
from preprocess.sources.compression import DEFAULT_WINDOW_LOG, MAX_WINDOW_LOG
from preprocess.sources.contents import Contents
from preprocess.sources.delimited import Delimited
from preprocess.sources.images import Images
from preprocess.sources.input_file import Form, InputFile, Piece
from preprocess.sources.jsonl import JsonLines
from preprocess.sources.parquet import Parquet
from preprocess.sources.tar import Tar
from preprocess.sources.text import PlainText, Records
from preprocess.type_names import parse_schema


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How the bytes of the inputs are understood."""

    format: Literal["auto", "jsonl", "csv", "tsv", "text", "parquet", "arrow", "webdataset", "image"] = "auto"
    """`auto` goes by the ends of the files' names."""
    records: Records = "file"
    """What one record of plain text is."""
    text_column: str = "text"
    """Column that holds the documents; also the name of the column that plain text becomes."""
    schema: Mapping[str, str] | Sequence[tuple[str, str]] | None = None
    """Columns to read and their Arrow types, such as `{"id": "int64", "at": "timestamp[us, UTC] not null"}`.

    Rows are then not looked at beforehand, other columns are left out, and a value that does not fit is refused. None
    finds the types of all columns. Kept as a tuple of pairs.
    """
    column_names: tuple[str, ...] | None = None
    """Of CSV and TSV that have no header; None takes the first row for one."""
    file_column: str | None = None
    """Column of CSV and TSV with the names of files beside them: they become the column `image`, the names `path`."""
    zstd_window_log: int = DEFAULT_WINDOW_LOG
    """Frames with a window of more than 2 to this power bytes are refused."""

    def __post_init__(self) -> None:
        if self.format not in ("auto", *Form):
            raise ValueError(f"format must be auto, {', '.join(Form)}, got {self.format!r}")
        if self.records not in get_args(Records):
            raise ValueError(f"records must be {', '.join(get_args(Records))}, got {self.records!r}")
        if self.schema is not None:
            pairs = self.schema.items() if isinstance(self.schema, Mapping) else self.schema
            object.__setattr__(self, "schema", tuple((name, kind) for name, kind in pairs))
            self.arrow_schema()
        if not 10 <= self.zstd_window_log <= MAX_WINDOW_LOG:
            raise ValueError(f"zstd_window_log must be in [10, {MAX_WINDOW_LOG}], got {self.zstd_window_log}")

    def arrow_schema(self, columns: Sequence[str] | None = None) -> pa.Schema | None:
        """The schema that was given, or these columns of it; None if none was. Raises ValueError for one not in it."""
        if self.schema is None:
            return None
        schema = parse_schema(self.schema)  # type: ignore[arg-type]  # pairs, since __post_init__
        if missing := [name for name in columns or () if name not in schema.names]:
            known = ", ".join(schema.names)
            raise ValueError(f"columns name {missing[0]!r}, which the schema does not have; it has {known}")
        return schema if columns is None else pa.schema([schema.field(name) for name in columns])


class Reader(Protocol):
    """Reads the files of one form. Every refusal is an InputError that names file and place."""

    def cut(self, file: InputFile, num_bytes: int) -> list[Piece]:
        """The file in pieces of about `num_bytes` of it where its form allows, else in one; always the same pieces."""
        ...

    def texts(self, piece: Piece) -> Iterator[list[str]]:
        """The documents in order, in lists of about a million characters."""
        ...

    def survey(self, piece: Piece, survey: Survey) -> None:
        """Adds the columns and types of all rows of the piece."""
        ...

    def batches(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows in order, of a schema that a survey of this piece led to."""
        ...


def reader_for(form: Form, reading: Reading, metrics: Metrics) -> Reader:
    """Counts what it reads as `input_bytes` and what it leaves out as `dropped_blank_lines`."""
    contents = Contents(reading.zstd_window_log, metrics)
    readers: dict[Form, Callable[[], Reader]] = {
        Form.JSONL: lambda: JsonLines(contents, reading.text_column),
        Form.TEXT: lambda: PlainText(contents, reading.text_column, reading.records, metrics),
        Form.CSV: lambda: _delimited(contents, ",", reading),
        Form.TSV: lambda: _delimited(contents, "\t", reading),
        Form.ARROW: lambda: ArrowIpc(contents, reading.text_column, metrics),
        Form.TAR: lambda: Tar(contents, reading.text_column),
        Form.IMAGE: lambda: Images(metrics),
        Form.PARQUET: lambda: Parquet(reading.text_column, metrics),
    }
    return readers[form]()


def _delimited(contents: Contents, delimiter: str, reading: Reading) -> Delimited:
    return Delimited(
        contents,
        delimiter,
        text_column=reading.text_column,
        column_names=reading.column_names,
        file_column=reading.file_column,
    )

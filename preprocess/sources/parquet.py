"""Parquet, row group by row group. Arrow types are kept; dictionaries become their values.

Whether a column has nulls is taken from the file's statistics where it has them, and is checked when the rows are read.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from dataplane.errors import InputError
from dataplane.metrics import Metrics
from preprocess.schema import Survey, conform, plain_schema
from preprocess.sources.documents import check_text_column, grouped, strings_of
from preprocess.sources.input_file import InputFile, Piece

# Decoded bytes of one record batch, by the row group's average row.
_BATCH_BYTES = 8 << 20


class Parquet:
    """Reads Parquet files; page checksums are checked where a file has them."""

    def __init__(self, text_column: str, metrics: Metrics) -> None:
        self._text_column = text_column
        self._metrics = metrics

    def cut(self, file: InputFile, num_bytes: int) -> list[Piece]:
        with _refusals(file), _opened(file) as parquet:
            _schema_of(parquet, file)
            sizes = _group_sizes(parquet, file)
        pieces: list[Piece] = []
        start = total = 0
        for stop, size in enumerate(sizes, 1):
            total += size
            if total >= num_bytes or stop == len(sizes):
                pieces.append(Piece(file=file, start=start, stop=stop, num_bytes=total))
                start, total = stop, 0
        return pieces or [Piece.whole(file, 0)]

    def texts(self, piece: Piece) -> Iterator[list[str]]:
        return grouped(self._texts(piece))

    def survey(self, piece: Piece, survey: Survey) -> None:
        file = piece.file
        with _refusals(file), _opened(file) as parquet:
            schema = _schema_of(parquet, file)
            groups = _groups_of(piece, parquet)
            wanted = [field for field in schema if survey.wants(field.name)]
            fields = [
                field.with_nullable(field.nullable and _has_nulls(parquet, groups, field.name)) for field in wanted
            ]
        survey.add_schema(pa.schema(fields), str(file), all_names=schema.names)
        self._metrics.add(input_bytes=piece.num_bytes)

    def batches(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        file = piece.file
        with _refusals(file), _opened(file) as parquet:
            own = _schema_of(parquet, file)
            names = [name for name in schema.names if name in own.names]
            row = _first_row(parquet, piece)
            for batch in self._raw_batches(parquet, piece, names):
                yield conform(batch, schema, str(file), first_row=row)
                row += batch.num_rows

    def _texts(self, piece: Piece) -> Iterator[str]:
        column, file = self._text_column, piece.file
        with _refusals(file), _opened(file) as parquet:
            schema = _schema_of(parquet, file)
            check_text_column(schema, column, file)
            batches = self._raw_batches(parquet, piece, [column])
            yield from strings_of(batches, column, file, first_row=_first_row(parquet, piece))

    def _raw_batches(self, parquet: pq.ParquetFile, piece: Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows as they are in the file; counts `input_bytes` row group by row group."""
        counted = 0
        sizes = _group_sizes(parquet, piece.file)
        for number in _groups_of(piece, parquet):
            yield from _group_batches(parquet, number, names)
            size = min(sizes[number], piece.num_bytes - counted)
            self._metrics.add(input_bytes=size)
            counted += size
        self._metrics.add(input_bytes=piece.num_bytes - counted)


def _group_sizes(parquet: pq.ParquetFile, file: InputFile) -> list[int]:
    """Bytes of the file for each row group, those of the footer with the last; all of the file in all."""
    groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
    left = file.num_bytes
    sizes: list[int] = []
    for group in groups:
        stored = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
        sizes.append(max(0, min(stored, left)))  # a damaged footer may say anything
        left -= sizes[-1]
    return [*sizes[:-1], sizes[-1] + left] if sizes else []


def _first_row(parquet: pq.ParquetFile, piece: Piece) -> int:
    return sum(parquet.metadata.row_group(number).num_rows for number in range(piece.start))


def _groups_of(piece: Piece, parquet: pq.ParquetFile) -> range:
    if piece.stop > parquet.num_row_groups:
        raise ValueError(f"it has {parquet.num_row_groups} row groups, and had {piece.stop} when the run began")
    return range(piece.start, piece.stop)


def _group_batches(parquet: pq.ParquetFile, number: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    group = parquet.metadata.row_group(number)
    row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
    size = max(1, min(_BATCH_BYTES // row_bytes, 1 << 16))
    num_rows = 0
    for batch in parquet.iter_batches(size, row_groups=[number], columns=list(names)):
        batch.validate(full=True)
        num_rows += batch.num_rows
        # A name that is also the start of another's path brings that one along.
        yield batch.select(list(names))
    if num_rows != group.num_rows:  # seen with damaged files, which then end without an error
        raise ValueError(f"row group {number} gave {num_rows} rows, its header says {group.num_rows}")


def _schema_of(parquet: pq.ParquetFile, file: InputFile) -> pa.Schema:
    return plain_schema(parquet.schema_arrow, str(file))


def _has_nulls(parquet: pq.ParquetFile, groups: range, name: str) -> bool:
    if (leaf := _flat_leaf(parquet, name)) is not None:
        statistics = [parquet.metadata.row_group(g).column(leaf).statistics for g in groups]
        if all(s is not None and s.has_null_count for s in statistics):
            return any(s.null_count for s in statistics)
    return any(batch.column(0).null_count for g in groups for batch in _group_batches(parquet, g, [name]))


def _flat_leaf(parquet: pq.ParquetFile, name: str) -> int | None:
    """Number of the leaf of a column that is neither nested nor repeated: its nulls are the column's."""
    for number in range(parquet.metadata.num_columns):
        leaf = parquet.schema.column(number)
        if leaf.path == name and leaf.max_repetition_level == 0 and leaf.max_definition_level == 1:
            return number
    return None


@contextmanager
def _opened(file: InputFile) -> Iterator[pq.ParquetFile]:
    with pq.ParquetFile(file.opened(), page_checksum_verification=True) as parquet:
        yield parquet


@contextmanager
def _refusals(file: InputFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InputError(f"{file}: not readable as Parquet: {reason}") from error

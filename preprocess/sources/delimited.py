"""CSV and TSV, by pyarrow: quotes as in RFC 4180, so that a field may hold newlines; blank lines are no rows.

Every field is read as text, and what its column is follows from all rows of all inputs: numbers and truth values where
every field is one and nothing is lost, else strings. An empty field is null, in a column of strings an empty string.

A list of files, such as of images with labels, has a column of names: its files become the column `image`.
"""

import csv
import io
import posixpath
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dataplane.errors import InputError
from preprocess.schema import Survey, require_filled
from preprocess.sources.byte_stream import byte_stream
from preprocess.sources.contents import Contents
from preprocess.sources.documents import grouped
from preprocess.sources.images import IMAGE, PATH
from preprocess.sources.input_file import MAX_RECORD_BYTES, InputFile, Piece
from preprocess.sources.lines import BYTE_ORDER_MARK
from preprocess.text_column import TextColumn
from preprocess.values import cast, first_misfit, is_misfit

# Parsed at a time; a longer row makes it grow.
_BLOCK_BYTES = 4 << 20
_MAX_BLOCK_BYTES = 2**31 - 1
# Bytes of listed files in one record batch.
_BATCH_BYTES = 8 << 20
# The row that is put behind the last one. If it is not read as a row, it was taken for the rest of a quoted field.
_END = "\0end of rows"


class Delimited:
    """Reads tables of text with `delimiter` between fields; in one piece, as any newline may stand in quotes."""

    def __init__(
        self,
        contents: Contents,
        delimiter: str,
        *,
        text_column: str,
        column_names: tuple[str, ...] | None,
        file_column: str | None,
    ) -> None:
        """The first row names the columns, unless `column_names` do. `file_column` makes it a list of files."""
        self._contents = contents
        self._delimiter = delimiter
        self._text_column = text_column
        self._column_names = column_names
        self._file_column = file_column

    def cut(self, file: InputFile, num_bytes: int) -> list[Piece]:
        return [Piece.whole(file)]

    def texts(self, piece: Piece) -> Iterator[list[str]]:
        return grouped(self._texts(piece.file))

    def survey(self, piece: Piece, survey: Survey) -> None:
        file = piece.file
        names = self._names(file)
        columns = {name: TextColumn() for name in names if survey.wants(self._shown(name))}
        num_rows = 0
        for batch in self._raw_batches(file, names, list(columns) or names[:1]):
            num_rows += batch.num_rows
            for name, column in columns.items():
                column.add(batch.column(name))
        shown = {self._shown(name): column for name, column in columns.items()}
        images = [] if self._file_column is None else [pa.field(IMAGE, pa.binary(), nullable=False)]
        fixed = pa.schema([field for field in images if survey.wants(field.name)])
        survey.add_texts(shown, num_rows, fixed, all_names=[*(f.name for f in images), *map(self._shown, names)])

    def batches(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        file = piece.file
        names = self._names(file)
        wanted = [name for name in names if self._shown(name) in schema.names]
        if self._file_column is not None and IMAGE in schema.names:
            wanted = list(dict.fromkeys([*wanted, self._file_column]))
        first_row = 0
        for batch in self._raw_batches(file, names, wanted or names[:1]):
            fields = {self._shown(name): batch.column(name) for name in wanted}
            for rows, images in self._with_images(file, fields, batch.num_rows, schema):
                yield self._typed(file, rows, images, schema, first_row)
                first_row += len(images)

    def _shown(self, name: str) -> str:
        return PATH if name == self._file_column else name

    def _texts(self, file: InputFile) -> Iterator[str]:
        names = self._names(file)
        column = self._text_column
        if column not in names:
            raise InputError(
                f"{file}: has no column {column!r}; its columns are {', '.join(names)}, choose one with --text-column"
            )
        for batch in self._raw_batches(file, names, [column]):
            yield from batch.column(0).to_pylist()

    def _names(self, file: InputFile) -> list[str]:
        """Of all columns of the file in order."""
        names = list(self._column_names) if self._column_names else self._header(file)[0]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(
                f"{file}:1: has more than one column named {twice!r}; rename one, "
                "or name all with --column-names if the file has no header"
            )
        if self._file_column is not None:
            if self._file_column not in names:
                raise InputError(f"{file}:1: has no column {self._file_column!r}; its columns are {', '.join(names)}")
            if {IMAGE, PATH} & ({*names} - {self._file_column}):
                raise InputError(f"{file}:1: has a column {IMAGE!r} or {PATH!r}, where the files are put; rename it")
        return names

    def _header(self, file: InputFile) -> tuple[list[str], int]:
        """The first row, and the number of lines that it takes."""
        with _csv_errors(file):
            rows = csv.reader(_decoded_lines(self._contents.whole(file), file), delimiter=self._delimiter, strict=True)
            for row in rows:
                if row:
                    return row, rows.line_num
        raise InputError(f"{file}: has no header and no rows; leave it out")

    def _raw_batches(self, file: InputFile, names: Sequence[str], wanted: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The wanted columns of all rows as text."""
        skipped = 0 if self._column_names else self._header(file)[1]
        done, block_bytes = 0, _BLOCK_BYTES
        while True:
            try:
                for batch in self._parsed(file, names, wanted, skipped, block_bytes, first_row=done):
                    done += batch.num_rows
                    yield batch
            except pa.ArrowInvalid as error:
                if "straddl" in str(error) and block_bytes < _MAX_BLOCK_BYTES:
                    block_bytes = min(8 * block_bytes, _MAX_BLOCK_BYTES)  # read again from the start with more room
                    continue
                raise self._refusal(file, len(names), error) from error
            return

    def _parsed(
        self,
        file: InputFile,
        names: Sequence[str],
        wanted: Sequence[str],
        skipped: int,
        block_bytes: int,
        first_row: int,
    ) -> Iterator[pa.RecordBatch]:
        end = self._delimiter.join([_END] * len(names)).encode()
        rows = byte_stream(chain(_without_lines(self._contents.whole(file), skipped), [b"\n" + end + b"\n"]))
        reader = pyarrow.csv.open_csv(
            rows,
            pyarrow.csv.ReadOptions(column_names=names, block_size=block_bytes, use_threads=False),
            pyarrow.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string()),
                include_columns=list(wanted),
                null_values=[],
                strings_can_be_null=False,
            ),
        )
        with reader:
            ahead: pa.RecordBatch | None = None
            for batch in chain(reader, [None]):
                if batch is not None and not batch.num_rows:
                    continue
                if batch is None and ahead is not None:
                    ahead = self._without_end(file, ahead)
                if ahead is not None:
                    skip = min(first_row, ahead.num_rows)
                    first_row -= skip
                    yield ahead.slice(skip)
                ahead = batch

    def _without_end(self, file: InputFile, last: pa.RecordBatch) -> pa.RecordBatch:
        if last.column(0)[-1].as_py() != _END:
            raise InputError(
                f"{file}: ends inside quotes, in the row that begins at line {self._last_line(file)}; "
                "close the quote, the rows after it are lost otherwise"
            )
        return last.slice(0, last.num_rows - 1)

    def _with_images(
        self, file: InputFile, fields: dict[str, pa.StringArray], num_rows: int, schema: pa.Schema
    ) -> Iterator[tuple[dict[str, pa.StringArray], list[bytes | None]]]:
        """Runs of rows that are small enough for one batch, with the contents of the files that they list."""
        if self._file_column is None or IMAGE not in schema.names:
            yield fields, [None] * num_rows
            return
        start = size = 0
        images: list[bytes | None] = []
        for number, name in enumerate(fields[PATH].to_pylist()):
            data = _listed_file(file, name)
            if images and size + len(data) > _BATCH_BYTES:
                yield {key: column.slice(start, len(images)) for key, column in fields.items()}, images
                start, size, images = number, 0, []
            images.append(data)
            size += len(data)
        if images:
            yield {key: column.slice(start) for key, column in fields.items()}, images

    def _typed(
        self,
        file: InputFile,
        fields: dict[str, pa.StringArray],
        images: list[bytes | None],
        schema: pa.Schema,
        first_row: int,
    ) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        for field in schema:
            if field.name == IMAGE and self._file_column is not None:
                columns.append(pa.array(images, field.type))
            elif field.name in fields:
                columns.append(self._cast(file, fields[field.name], field, first_row))
            else:
                columns.append(pa.nulls(len(images), field.type))
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        require_filled(batch, lambda row: f"{file}:{self._line_of(file, first_row + row)}")
        return batch

    def _cast(self, file: InputFile, values: pa.StringArray, field: pa.Field, first_row: int) -> pa.Array:
        kind = field.type
        if pa.types.is_null(kind):
            values, kind = _empty_to_null(values), pa.string()
            if values.null_count == len(values):
                return pa.nulls(len(values))
        elif not _is_text(kind):
            values = _empty_to_null(values)
        try:
            return cast(values, kind)
        except Exception as error:
            row = first_misfit(len(values), lambda row: cast(values.slice(row, 1), kind))
            if row is None or not is_misfit(error):
                raise
            raise InputError(
                f"{file}:{self._line_of(file, first_row + row)}: column {field.name!r} holds "
                f"{(values[row].as_py() or '')[:100]!r}, which does not fit {field.type}"
            ) from None

    def _line_of(self, file: InputFile, row: int) -> int:
        """The line at which a row begins, both counted as people do, rows without the header."""
        for number, (line, _) in enumerate(self._lines_of_rows(file)):
            if number == row:
                return line
        return 0

    def _last_line(self, file: InputFile) -> int:
        """The line at which the last row begins."""
        return deque(self._lines_of_rows(file), maxlen=1)[0][0]

    def _lines_of_rows(self, file: InputFile) -> Iterator[tuple[int, int]]:
        """The line at which each row begins, by Python's own parser, and how many fields it has."""
        with _csv_errors(file):
            rows = csv.reader(_decoded_lines(self._contents.whole(file), file), delimiter=self._delimiter, strict=False)
            line = 1
            is_header = not self._column_names
            for row in rows:
                if row and not is_header:
                    yield line, len(row)
                is_header = is_header and not row
                line = rows.line_num + 1

    def _refusal(self, file: InputFile, num_fields: int, error: pa.ArrowInvalid) -> InputError:
        """Says in which line of the file the fault is; raises what is wrong with the text itself."""
        for line, found in self._lines_of_rows(file):
            if found != num_fields:
                return InputError(f"{file}:{line}: has {found} fields, and there are {num_fields} columns")
        return InputError(f"{file}: not readable as CSV: {str(error).splitlines()[0]}")


def _decoded_lines(parts: Iterator[bytes], file: InputFile) -> Iterator[str]:
    """Lines with their ends, of bytes that must be UTF-8."""
    with io.TextIOWrapper(byte_stream(parts), encoding="utf-8-sig", newline="\n", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if not line.isascii() and any("\udc80" <= character <= "\udcff" for character in line):
                raise InputError(f"{file}:{number}: not UTF-8; convert the file to UTF-8")
            yield line


def _without_lines(parts: Iterator[bytes], count: int) -> Iterator[bytes]:
    """The bytes without so many lines at the start, and without a byte-order mark."""
    head = b""
    for part in parts:
        head += part
        if len(head) >= len(BYTE_ORDER_MARK):
            break
    rest = chain([head.removeprefix(BYTE_ORDER_MARK)], parts)
    for part in rest:
        while count and part:
            _, newline, part = part.partition(b"\n")
            count -= len(newline)
        if part:
            yield part


@contextmanager
def _csv_errors(file: InputFile) -> Iterator[None]:
    """Lets fields be as long as rows, and makes the parser's complaints refusals."""
    before = csv.field_size_limit(MAX_RECORD_BYTES)
    try:
        yield
    except csv.Error as error:
        raise InputError(f"{file}: not readable as CSV: {error}") from None
    finally:
        csv.field_size_limit(before)


def _listed_file(file: InputFile, name: str) -> bytes:
    """The content of a file that a list names, from the list's own folder or below."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(file.path), name))
    if not name or posixpath.isabs(name) or ".." in name.split("/"):
        raise InputError(f"{file}: lists {name!r}; names must be relative to the list's folder and stay in it")
    try:
        return file.store.read(path)
    except FileNotFoundError:
        raise InputError(f"{file}: lists {name!r}, which does not exist beside it") from None


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def _empty_to_null(values: pa.StringArray) -> pa.StringArray:
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)

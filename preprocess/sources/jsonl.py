"""JSON lines: one object a line, parsed by Python's `json` so that a refusal can name line and column.

Blank lines are no rows; NaN and Infinity are numbers, as Python has it; of a repeated key the last value counts.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from dataplane.errors import InputError
from preprocess.schema import Survey, require_filled
from preprocess.sources.documents import grouped
from preprocess.sources.input_file import InputFile, Piece
from preprocess.sources.lines import decode_utf8, split_lines

# Lines of one record batch. As columns they take a few times that at most.
_BATCH_BYTES = 8 << 20

# In a line that is valid UTF-8, only an escape can make half of a surrogate pair.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
_KINDS |= {int: "a number", float: "a number", type(None): "null"}

Row = dict[str, Any]  # Any: whatever JSON holds


class JsonLines:
    """Reads JSON lines from what `open_bytes` makes of a file."""

    def __init__(self, open_bytes: Callable[[InputFile], Iterator[bytes]], text_column: str) -> None:
        self._open = open_bytes
        self._text_column = text_column

    def cut(self, file: InputFile, num_bytes: int) -> list[Piece]:
        return [Piece.whole(file)]

    def texts(self, piece: Piece) -> Iterator[list[str]]:
        return grouped(self._texts(piece.file))

    def survey(self, piece: Piece, survey: Survey) -> None:
        for number, row, _ in self._rows(piece.file):
            try:
                survey.add_row(row, (piece.file, number))
            except RecursionError:
                raise InputError(f"{piece.file}:{number}: nested too deeply") from None

    def batches(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        rows: list[Row] = []
        num_bytes = 0
        file = piece.file
        for _, row, size in self._rows(file):
            if rows and num_bytes + size > _BATCH_BYTES:
                yield _record_batch(rows, schema, file)
                rows, num_bytes = [], 0
            rows.append(row)
            num_bytes += size
        if rows:
            yield _record_batch(rows, schema, file)

    def _texts(self, file: InputFile) -> Iterator[str]:
        column = self._text_column
        for number, row, _ in self._rows(file):
            text = row.get(column)
            if type(text) is not str:
                raise _no_text(row, column, f"{file}:{number}")
            yield text

    def _rows(self, file: InputFile) -> Iterator[tuple[int, Row, int]]:
        """Line number, object and bytes of the line."""
        where = str(file)
        for number, line in split_lines(self._open(file), where):
            if line and not line.isspace():
                yield number, _parse(line, where, number), len(line)


def _parse(line: bytes, file: str, number: int) -> Row:
    where = f"{file}:{number}"
    text = decode_utf8(line, where)
    try:
        row = json.loads(text)
        if type(row) is dict and _SURROGATE.search(text):
            json.dumps(row, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 20].strip() or "the end of the line"
        reason = error.msg[:1].lower() + error.msg[1:]
        raise InputError(f"{where}:{error.colno}: not JSON, {reason}, found {found!r}") from None
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise InputError(
            f"{where}: holds {character!r}, half of a surrogate pair, which is no text; repair the row"
        ) from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"{where}: {error}") from None
    if type(row) is not dict:
        raise InputError(f"{where}: is {_KINDS[type(row)]}, not an object; one JSON object a line is needed")
    return row


def _no_text(row: Row, column: str, where: str) -> InputError:
    if column not in row:
        return InputError(
            f"{where}: has no column {column!r}; its columns are {', '.join(row) or 'none'}, "
            "choose one with --text-column"
        )
    return InputError(f"{where}: column {column!r} is {_KINDS[type(row[column])]}, not a string")


def _record_batch(rows: list[Row], schema: pa.Schema, file: InputFile) -> pa.RecordBatch:
    try:
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InputError(f"{file}: changed while it was being read ({error})") from error
    require_filled(batch, str(file))
    return batch

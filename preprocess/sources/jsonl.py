"""JSON lines: one object a line, parsed by Python's `json` so that a refusal can name line and column.

Blank lines are no rows; NaN and Infinity are numbers, as Python has it; of a repeated key the last value counts.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from dataplane.errors import InputError
from preprocess.schema import Survey, require_filled
from preprocess.sources.contents import Contents
from preprocess.sources.documents import grouped
from preprocess.sources.input_file import InputFile, Piece
from preprocess.sources.lines import decode_utf8
from preprocess.values import first_misfit, from_json, is_misfit

# Lines of one record batch. As columns they take a few times that at most.
_BATCH_BYTES = 8 << 20

# In a line that is valid UTF-8, only an escape can make half of a surrogate pair.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
_KINDS |= {int: "a number", float: "a number", type(None): "null"}

Row = dict[str, Any]  # Any: whatever JSON holds


class JsonLines:
    """Reads JSON lines, whatever packs them."""

    def __init__(self, contents: Contents, text_column: str) -> None:
        self._contents = contents
        self._text_column = text_column

    def cut(self, file: InputFile, num_bytes: int) -> list[Piece]:
        return self._contents.cut(file, num_bytes)

    def texts(self, piece: Piece) -> Iterator[list[str]]:
        return grouped(self._texts(piece))

    def survey(self, piece: Piece, survey: Survey) -> None:
        file = str(piece.file)
        num_lines = 0
        for run in self._contents.line_runs(piece):
            for number, row, _ in self._parsed(piece, run, num_lines):
                survey.add_row(row, file, number)
                if survey.is_refused:
                    return
            num_lines += len(run)
        survey.add_lines(file, num_lines)

    def batches(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        rows: list[Row] = []
        numbers: list[int] = []
        num_bytes = 0
        for number, row, size in self._rows(piece):
            if rows and num_bytes + size > _BATCH_BYTES:
                yield self._record_batch(piece, rows, numbers, schema)
                rows, numbers, num_bytes = [], [], 0
            rows.append(row)
            numbers.append(number)
            num_bytes += size
        if rows:
            yield self._record_batch(piece, rows, numbers, schema)

    def _record_batch(self, piece: Piece, rows: list[Row], numbers: list[int], schema: pa.Schema) -> pa.RecordBatch:
        def place(row: int) -> str:
            return self._contents.place(piece, numbers[row])

        columns = [_array([row.get(field.name) for row in rows], field, place) for field in schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        require_filled(batch, place)
        return batch

    def _texts(self, piece: Piece) -> Iterator[str]:
        column = self._text_column
        for number, row, _ in self._rows(piece):
            text = row.get(column)
            if type(text) is not str:
                raise _no_text(row, column, self._contents.place(piece, number))
            yield text

    def _rows(self, piece: Piece) -> Iterator[tuple[int, Row, int]]:
        """Number of the line in the piece, object, and bytes of the line."""
        num_lines = 0
        for run in self._contents.line_runs(piece):
            yield from self._parsed(piece, run, num_lines)
            num_lines += len(run)

    def _parsed(self, piece: Piece, lines: list[bytes], num_before: int) -> Iterator[tuple[int, Row, int]]:
        place = partial(self._contents.place, piece)
        for number, line in enumerate(lines, num_before + 1):
            if line and not line.isspace():
                yield number, _parse(line, partial(place, number)), len(line)


def _parse(line: bytes, where: Callable[[], str]) -> Row:
    text = decode_utf8(line, where)
    try:
        row = json.loads(text)
        if type(row) is dict and _SURROGATE.search(text):
            json.dumps(row, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 20].strip() or "the end of the line"
        reason = error.msg[:1].lower() + error.msg[1:]
        raise InputError(f"{where()}:{error.colno}: not JSON, {reason}, found {found!r}") from None
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        raise InputError(
            f"{where()}: holds {character!r}, half of a surrogate pair, which is no text; repair the row"
        ) from None
    except RecursionError:
        raise InputError(f"{where()}: nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"{where()}: {error}") from None
    if type(row) is not dict:
        raise InputError(f"{where()}: is {_KINDS[type(row)]}, not an object; one JSON object a line is needed")
    return row


def _no_text(row: Row, column: str, where: str) -> InputError:
    if column not in row:
        return InputError(
            f"{where}: has no column {column!r}; its columns are {', '.join(row) or 'none'}, "
            "choose one with --text-column"
        )
    return InputError(f"{where}: column {column!r} is {_KINDS[type(row[column])]}, not a string")


def _array(values: list[Any], field: pa.Field, place: Callable[[int], str]) -> pa.Array:  # Any: whatever JSON holds
    try:
        return from_json(values, field.type)
    except Exception as error:
        row = first_misfit(len(values), lambda row: from_json(values[row : row + 1], field.type))
        if row is None or not is_misfit(error):
            raise
        raise InputError(
            f"{place(row)}: column {field.name!r} holds {json.dumps(values[row], ensure_ascii=False)[:100]}, "
            f"which does not fit {field.type}"
        ) from None

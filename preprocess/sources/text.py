"""Plain text: a record per file, per paragraph or per line.

A file's record is its whole text, line endings as they are. A line's record leaves out its newline, and a carriage
return before it; blank lines are no records, and are counted. A paragraph's record is the lines between two blank ones,
with newlines between them.
"""

from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from typing import Literal

import pyarrow as pa

from dataplane.errors import InputError
from dataplane.metrics import Metrics
from preprocess.schema import Survey, conform
from preprocess.sources.contents import Contents
from preprocess.sources.documents import grouped
from preprocess.sources.input_file import MAX_RECORD_BYTES, InputFile, Piece
from preprocess.sources.lines import BYTE_ORDER_MARK, decode_utf8

Records = Literal["file", "paragraph", "line"]


class PlainText:
    """Reads text, whatever packs it, into the one column `column`."""

    def __init__(self, contents: Contents, column: str, records: Records, metrics: Metrics) -> None:
        self._contents = contents
        self._column = column
        self._records = records
        self._metrics = metrics

    def cut(self, file: InputFile, num_bytes: int) -> list[Piece]:
        return [Piece.whole(file)] if self._records == "file" else self._contents.cut(file, num_bytes)

    def texts(self, piece: Piece) -> Iterator[list[str]]:
        match self._records:
            case "file":
                return grouped(self._whole(piece.file))
            case "paragraph":
                return grouped(self._paragraphs(piece))
            case "line":
                return grouped(self._lines(piece))

    def survey(self, piece: Piece, survey: Survey) -> None:
        column = pa.field(self._column, pa.string(), nullable=False)
        survey.add_schema(pa.schema([column]), str(piece.file))
        self._metrics.add(input_bytes=piece.num_bytes)

    def batches(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for texts in self.texts(piece):
            batch = pa.record_batch([pa.array(texts, pa.string())], names=[self._column])
            yield conform(batch, schema, str(piece.file))

    def _whole(self, file: InputFile) -> Iterator[str]:
        parts: list[bytes] = []
        num_bytes = 0
        for part in self._contents.whole(file):
            num_bytes += len(part)
            if num_bytes > MAX_RECORD_BYTES:
                raise InputError(
                    f"{file}: as one record it has more than {MAX_RECORD_BYTES} bytes, the limit; "
                    "split the file, or make each line a record with --records line"
                )
            parts.append(part)
        if num_bytes:
            yield decode_utf8(b"".join(parts), partial(str, file)).removeprefix(BYTE_ORDER_MARK.decode())

    def _lines(self, piece: Piece) -> Iterator[str]:
        for number, line in self._contents.lines(piece):
            if _is_blank(line):
                self._metrics.add(dropped_blank_lines=1)
            else:
                yield self._text(piece, number, line)

    def _paragraphs(self, piece: Piece) -> Iterator[str]:
        """Those that begin behind a blank line of this piece, or at the start of the file."""
        lines: list[str] = []
        is_ours = not piece.start
        number = 0
        for number, line in self._contents.lines(piece):
            if _is_blank(line):
                yield from _joined(lines)
                lines, is_ours = [], True
            elif is_ours:
                lines.append(self._text(piece, number, line))
        if is_ours:
            following = enumerate(self._contents.lines_beyond(piece), number + 1)
            lines += [self._text(piece, *one) for one in takewhile(lambda one: not _is_blank(one[1]), following)]
            yield from _joined(lines)

    def _text(self, piece: Piece, number: int, line: bytes) -> str:
        return decode_utf8(line.removesuffix(b"\r"), partial(self._contents.place, piece, number))


def _is_blank(line: bytes) -> bool:
    return not line or line.isspace()


def _joined(lines: list[str]) -> Iterator[str]:
    if lines:
        yield "\n".join(lines)

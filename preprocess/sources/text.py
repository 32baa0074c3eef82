"""Plain text: a record per file, or per line.

A file's record is its whole text, line endings as they are. A line's record leaves out its newline, and a carriage
return before it; blank lines are no records, and are counted.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import pyarrow as pa

from dataplane.errors import InputError
from dataplane.metrics import Metrics
from preprocess.schema import Survey
from preprocess.sources.documents import grouped
from preprocess.sources.input_file import MAX_RECORD_BYTES, InputFile, Piece
from preprocess.sources.lines import BYTE_ORDER_MARK, decode_utf8, split_lines


class PlainText:
    """Reads text from what `open_bytes` makes of a file, into the one column `column`."""

    def __init__(
        self,
        open_bytes: Callable[[InputFile], Iterator[bytes]],
        column: str,
        records: Literal["file", "line"],
        metrics: Metrics,
    ) -> None:
        self._open = open_bytes
        self._column = column
        self._records = self._lines if records == "line" else self._whole
        self._metrics = metrics

    def cut(self, file: InputFile, num_bytes: int) -> list[Piece]:
        return [Piece.whole(file)]

    def texts(self, piece: Piece) -> Iterator[list[str]]:
        return grouped(self._records(piece.file))

    def survey(self, piece: Piece, survey: Survey) -> None:
        column = pa.field(self._column, pa.string(), nullable=False)
        survey.add_schema(pa.schema([column]), str(piece.file))
        self._metrics.add(input_bytes=piece.num_bytes)

    def batches(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for texts in self.texts(piece):
            yield pa.RecordBatch.from_pylist([{self._column: text} for text in texts], schema=schema)

    def _whole(self, file: InputFile) -> Iterator[str]:
        pieces: list[bytes] = []
        num_bytes = 0
        for piece in self._open(file):
            num_bytes += len(piece)
            if num_bytes > MAX_RECORD_BYTES:
                raise InputError(
                    f"{file}: as one record it has more than {MAX_RECORD_BYTES} bytes, the limit; "
                    "split the file, or make each line a record with --records line"
                )
            pieces.append(piece)
        if num_bytes:
            yield decode_utf8(b"".join(pieces), str(file)).removeprefix(BYTE_ORDER_MARK.decode())

    def _lines(self, file: InputFile) -> Iterator[str]:
        where = str(file)
        for number, line in split_lines(self._open(file), where):
            if not line or line.isspace():
                self._metrics.add(dropped_blank_lines=1)
            else:
                yield decode_utf8(line.removesuffix(b"\r"), f"{where}:{number}")

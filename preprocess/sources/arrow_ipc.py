"""Arrow IPC, as a file or as a stream, told apart by the first bytes. Arrow types are kept; dictionaries become values.

A stream may end anywhere between two batches without looking cut; here it must end with its end mark.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from dataplane.errors import InputError
from dataplane.metrics import Metrics
from preprocess.schema import Survey, conform, plain_schema
from preprocess.sources.byte_stream import byte_stream
from preprocess.sources.contents import Contents
from preprocess.sources.documents import check_text_column, grouped, strings_of
from preprocess.sources.input_file import Compression, InputFile, Piece

_MAGIC = b"ARROW1"
_FILE_HEAD = _MAGIC + b"\0\0"
_READ_BYTES = 16 << 20


class ArrowIpc:
    """Reads Arrow IPC files and streams; compressed as a whole too, then from start to end."""

    def __init__(self, contents: Contents, text_column: str, metrics: Metrics) -> None:
        self._contents = contents
        self._text_column = text_column
        self._metrics = metrics

    def cut(self, file: InputFile, num_bytes: int) -> list[Piece]:
        return [Piece.whole(file)]

    def texts(self, piece: Piece) -> Iterator[list[str]]:
        return grouped(self._texts(piece.file))

    def survey(self, piece: Piece, survey: Survey) -> None:
        with self._opened(piece.file) as (schema, batches):
            wanted = [field for field in schema if survey.wants(field.name)]
            with_nulls: set[str] = set()
            for batch in batches:
                with_nulls |= {field.name for field in wanted if batch.column(field.name).null_count}
        fields = [field.with_nullable(field.name in with_nulls) for field in wanted]
        survey.add_schema(pa.schema(fields), str(piece.file), all_names=schema.names)

    def batches(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._opened(piece.file) as (own, batches):
            names = [name for name in schema.names if name in own.names]
            row = 0
            for batch in batches:
                yield conform(batch.select(names), schema, str(piece.file), first_row=row)
                row += batch.num_rows

    def _texts(self, file: InputFile) -> Iterator[str]:
        column = self._text_column
        with self._opened(file) as (schema, batches):
            check_text_column(schema, column, file)
            yield from strings_of((batch.select([column]) for batch in batches), column, file)

    @contextmanager
    def _opened(self, file: InputFile) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """The schema without dictionaries and the record batches as they are; makes what pyarrow says refusals."""
        try:
            with self._source(file) as source:
                head = source.read(len(_FILE_HEAD))
                is_file = head == _FILE_HEAD
                if is_file and file.compression is Compression.NONE:
                    reader = pa.ipc.open_file(source)
                    yield plain_schema(reader.schema, str(file)), self._of_file(reader, file)
                else:  # behind its head, a file is a stream, and then the footer
                    watched = _Watched(b"" if is_file else head, source)
                    stream = pa.ipc.open_stream(pa.PythonFile(watched, mode="r"))
                    schema = plain_schema(stream.schema, str(file))
                    yield schema, self._of_stream(stream, watched, file, is_file=is_file)
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            reason = str(error).split("\n", 1)[0]
            raise InputError(f"{file}: not readable as Arrow IPC: {reason}") from error

    def _source(self, file: InputFile) -> io.BufferedReader:
        if file.compression is Compression.NONE:
            return file.opened()
        return byte_stream(self._contents.whole(file))

    def _of_file(self, reader: pa.ipc.RecordBatchFileReader, file: InputFile) -> Iterator[pa.RecordBatch]:
        counted = 0
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate(full=True)
            yield batch
            done = file.num_bytes * (number + 1) // reader.num_record_batches
            self._metrics.add(input_bytes=done - counted)
            counted = done
        self._metrics.add(input_bytes=file.num_bytes - counted)

    def _of_stream(
        self, stream: pa.ipc.RecordBatchStreamReader, watched: "_Watched", file: InputFile, *, is_file: bool
    ) -> Iterator[pa.RecordBatch]:
        is_plain = file.compression is Compression.NONE
        counted = 0
        for batch in stream:
            batch.validate(full=True)
            yield batch
            if is_plain:
                self._metrics.add(input_bytes=watched.num_bytes - counted)
                counted = watched.num_bytes
        if is_plain:
            self._metrics.add(input_bytes=file.num_bytes - counted)
        if watched.is_exhausted:
            raise InputError(f"{file}: the Arrow stream ends without its end mark; it is truncated, write it again")
        rest = watched.drain()
        if is_file and not rest.endswith(_MAGIC):
            raise InputError(f"{file}: the Arrow file ends without its footer; it is truncated, write it again")
        if not is_file and rest:
            raise InputError(f"{file}: has something after the end mark of its Arrow stream; it is damaged")


class _Watched(io.RawIOBase):
    """A file that is read from its start, and knows whether more was asked for than there was."""

    def __init__(self, head: bytes, source: io.BufferedReader) -> None:
        """`head` comes before what the source holds."""
        super().__init__()
        self._head = head
        self._source = source
        self.num_bytes = 0
        self.is_exhausted = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts: list[bytes] = []
        missing = size
        while missing > 0:  # in parts, as a damaged length may be anything
            part = self._head[:missing] or self._source.read(min(missing, _READ_BYTES))
            self._head = self._head[len(part) :] if self._head else b""
            if not part:
                self.is_exhausted = True
                break
            parts.append(part)
            missing -= len(part)
        self.num_bytes += size - missing
        return b"".join(parts)

    def drain(self) -> bytes:
        """Reads to the end and gives the last bytes of what was left."""
        last = self._head
        while part := self._source.read(_READ_BYTES):
            last = (last + part)[-_READ_BYTES:]
        return last

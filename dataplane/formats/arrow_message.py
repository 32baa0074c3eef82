"""A record-batch message, taken apart: decodes chosen columns only, on the calling thread, into given memory.

pyarrow decodes whole messages into fresh memory on a thread pool of its own. Here the message's buffers are
decompressed one by one: unread columns cost nothing, and the values of a column can land where they are wanted.
The layout is that of Arrow's columnar format specification, version 1.5, "Serialization and interprocess communication"
and its Message.fbs; types not known here are left to pyarrow.
"""

import struct
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard

Bytes = npt.NDArray[np.uint8]

_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3
_ZSTD = 1
# A buffer may claim to inflate to this many times its size; zstd's real limit on zeros is about 10,000.
_MOST_INFLATION = 100_000


class UnknownLayoutError(Exception):
    """The message has something that only pyarrow decodes."""


@dataclass(frozen=True, slots=True)
class RecordBatchMessage:
    """Where in the bytes of a message each buffer of its record batch lies."""

    num_rows: int
    nodes: npt.NDArray[np.int64]
    """(nodes, 2): length and null count of each field, depth first."""
    buffers: npt.NDArray[np.int64]
    """(buffers, 2): offset in the body and stored length."""
    is_compressed: bool
    body: memoryview

    @classmethod
    def parse(cls, data: bytes | memoryview) -> "RecordBatchMessage":
        """Raises ValueError for bytes that are no record-batch message, UnknownLayoutError for one of another kind."""
        view = memoryview(data).cast("B")
        try:
            continuation, metadata_size = struct.unpack_from("<Ii", view)
            if continuation != _CONTINUATION:
                raise ValueError(f"begins with {continuation:#x}")
            return cls._from_metadata(view[8 : 8 + metadata_size], view[8 + metadata_size :])
        except (struct.error, IndexError) as error:
            raise ValueError(f"message metadata: {error}") from None

    @classmethod
    def _from_metadata(cls, metadata: memoryview, body: memoryview) -> "RecordBatchMessage":
        message = _Table.root(metadata)
        if message.scalar(1, "B") != _RECORD_BATCH or (batch := message.table(2)) is None:
            raise UnknownLayoutError("not a record batch")
        compression = batch.table(3)
        if compression is not None and compression.scalar(0, "b") != _ZSTD:
            raise UnknownLayoutError("not compressed with zstd")
        if batch.has(4):
            raise UnknownLayoutError("has view columns")
        buffers = batch.struct_pairs(2)
        if len(buffers) and (buffers.min() < 0 or int(buffers.sum(axis=1).max()) > len(body)):
            raise ValueError(f"names bytes outside its body of {len(body)}")
        return cls(
            num_rows=batch.scalar(0, "q"),
            nodes=batch.struct_pairs(1),
            buffers=buffers,
            is_compressed=compression is not None,
            body=body,
        )


def decode_columns(
    message: RecordBatchMessage,
    schema: pa.Schema,
    *,
    columns: Collection[str] | None = None,
    out: Mapping[str, Bytes] | None = None,
) -> pa.RecordBatch:
    """The record batch's columns, or those named, in the schema's order.

    The values of a column named in `out` are decompressed into that memory if they are of fixed width and fit; the
    column then refers to it. Raises ValueError for damaged bytes, UnknownLayoutError for types that are not handled.
    """
    cursor = _Cursor(message)
    arrays, fields = [], []
    for field in schema:
        if columns is None or field.name in columns:
            arrays.append(cursor.array(field.type, None if out is None else out.get(field.name)))
            fields.append(field)
        else:
            cursor.skip(field.type)
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    batch.validate()
    return batch


class _Cursor:
    """Walks fields, nodes and buffers together, depth first."""

    def __init__(self, message: RecordBatchMessage) -> None:
        self._message = message
        self._nodes: Iterator[tuple[int, int]] = iter(message.nodes.tolist())
        self._buffers: Iterator[tuple[int, int]] = iter(message.buffers.tolist())

    def array(self, kind: pa.DataType, out: Bytes | None) -> pa.Array:
        if not _is_known(kind):  # before a buffer is taken: a null or union column has no validity
            raise UnknownLayoutError(f"column of type {kind}")
        length, null_count = self._next(self._nodes)
        stored_validity = self._buffer(None)
        validity = stored_validity if null_count else None
        if pa.types.is_fixed_size_list(kind):
            child = self.array(kind.value_type, out)
            return pa.Array.from_buffers(kind, length, [validity], null_count, children=[child])
        if pa.types.is_struct(kind):
            children = [self.array(field.type, None) for field in kind]
            return pa.Array.from_buffers(kind, length, [validity], null_count, children=children)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            offsets = self._buffer(None)
            child = self.array(kind.value_type, None)
            return pa.Array.from_buffers(kind, length, [validity, offsets], null_count, children=[child])
        if _has_offsets(kind):
            buffers = [validity, self._buffer(None), self._buffer(None)]
            return pa.Array.from_buffers(kind, length, buffers, null_count)
        return pa.Array.from_buffers(kind, length, [validity, self._buffer(out)], null_count)

    def skip(self, kind: pa.DataType) -> None:
        self._next(self._nodes)
        if pa.types.is_fixed_size_list(kind):
            num_buffers, children = 1, [kind.value_type]
        elif pa.types.is_struct(kind):
            num_buffers, children = 1, [field.type for field in kind]
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            num_buffers, children = 2, [kind.value_type]
        elif _has_offsets(kind) or _is_fixed_width(kind):
            num_buffers, children = 3 if _has_offsets(kind) else 2, []
        else:
            raise UnknownLayoutError(f"column of type {kind}")
        for _ in range(num_buffers):
            self._next(self._buffers)
        for child in children:
            self.skip(child)

    def _buffer(self, out: Bytes | None) -> pa.Buffer:
        offset, stored = self._next(self._buffers)
        if stored == 0:
            return pa.py_buffer(b"")
        data = self._message.body[offset : offset + stored]
        if not self._message.is_compressed:
            return pa.py_buffer(data)
        (size,) = struct.unpack_from("<q", data)
        if size == -1:  # stored as it is, since compressing would not have made it smaller
            return pa.py_buffer(data[8:])
        if not 0 <= size <= _MOST_INFLATION * stored:
            raise ValueError(f"a buffer of {stored} bytes claims to inflate to {size}")
        target = out if out is not None and size <= out.size else np.empty(size, np.uint8)
        _inflate(data[8:], target[:size])
        return pa.py_buffer(target[:size])

    @staticmethod
    def _next(items: Iterator[tuple[int, int]]) -> tuple[int, int]:
        try:
            return next(items)
        except StopIteration:
            raise ValueError("has fewer columns than its schema") from None


@cache
def _is_known(kind: pa.DataType) -> bool:
    nested = (pa.types.is_fixed_size_list, pa.types.is_struct, pa.types.is_list, pa.types.is_large_list)
    return any(is_kind(kind) for is_kind in nested) or _has_offsets(kind) or _is_fixed_width(kind)


def _is_fixed_width(kind: pa.DataType) -> bool:
    return pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)


@cache
def _has_offsets(kind: pa.DataType) -> bool:
    known = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return any(is_kind(kind) for is_kind in known)


class _Decompressors(threading.local):
    """One zstd context per thread: making one costs more than inflating a small buffer."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_decompressors = _Decompressors()


def _inflate(data: memoryview, out: Bytes) -> None:
    """Fills `out` with what the frame holds. Raises ValueError if that is not exactly as much."""
    view = memoryview(out.data)
    filled = 0
    try:
        with _decompressors.zstd.stream_reader(data) as reader:
            # With room for the whole frame, zstd writes straight into `out`.
            while filled < len(view) and (count := reader.readinto(view[filled:])):
                filled += count
            longer = bool(reader.read(1))
    except zstandard.ZstdError as error:
        raise ValueError(f"a buffer does not decompress: {error}") from None
    if filled < len(view) or longer:
        raise ValueError(f"a buffer inflates to {'more than' if longer else filled} of {len(view)} bytes")


class _Table:
    """A flatbuffers table: just what a Message needs."""

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._position = position
        (back,) = struct.unpack_from("<i", data, position)
        self._vtable = position - back
        if self._vtable < 0:
            raise IndexError("offset before the start")
        (self._vtable_size,) = struct.unpack_from("<H", data, self._vtable)

    @classmethod
    def root(cls, data: memoryview) -> "_Table":
        (position,) = struct.unpack_from("<I", data)
        return cls(data, position)

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def scalar(self, field: int, code: str) -> int:
        """0, the default of all the fields read here, where it is absent."""
        place = self._place(field)
        return 0 if place is None else int(struct.unpack_from(f"<{code}", self._data, place)[0])

    def table(self, field: int) -> "_Table | None":
        place = self._place(field)
        return None if place is None else _Table(self._data, self._target(place))

    def struct_pairs(self, field: int) -> npt.NDArray[np.int64]:
        """A vector of structs of two int64, shape (count, 2)."""
        place = self._place(field)
        if place is None:
            return np.empty((0, 2), np.int64)
        start = self._target(place)
        (count,) = struct.unpack_from("<I", self._data, start)
        raw = self._data[start + 4 : start + 4 + 16 * count]
        if len(raw) != 16 * count:
            raise IndexError(f"vector of {count} structs is cut")
        return np.frombuffer(raw, "<i8").reshape(count, 2)

    def _place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot + 2 > self._vtable_size:
            return None
        (offset,) = struct.unpack_from("<H", self._data, self._vtable + slot)
        return self._position + offset if offset else None

    def _target(self, place: int) -> int:
        (offset,) = struct.unpack_from("<I", self._data, place)
        return place + int(offset)

"""The native shard: a standard Arrow IPC file whose record-batch messages are the blocks.

pyarrow, polars, DuckDB or R open the file without this package; this package reads any message without the footer.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataplane.errors import CorruptBlockError
from dataplane.formats.arrow_message import RecordBatchMessage, UnknownLayoutError, decode_columns
from dataplane.plan import Block
from dataplane.storage import digest_of

# An IPC file begins with "ARROW1" and two bytes of padding, then the schema's message; it ends with "ARROW1".
_MAGIC = b"ARROW1\0\0"


class ArrowFormat:
    """Blocks are encapsulated record-batch messages, buffers compressed as the message says."""

    name = "arrow"
    suffix = ".arrow"

    def index(self, data: bytes | memoryview, shard: str) -> tuple[pa.Schema, list[Block]]:
        # The stream of messages in the file is read without its footer, as any block is later.
        if bytes(data[: len(_MAGIC)]) != _MAGIC:
            raise CorruptBlockError(f"{shard}: not an Arrow IPC file, it does not begin with ARROW1")
        reader = pa.BufferReader(data)
        reader.seek(len(_MAGIC))
        blocks: list[Block] = []
        try:
            schema = pa.ipc.read_schema(reader)
            while True:
                offset = reader.tell()
                try:
                    message = pa.ipc.read_message(reader)
                except EOFError:
                    break
                if message.type != "record batch":
                    raise CorruptBlockError(
                        f"{shard}: holds a {message.type} message at {offset}; dictionary-encoded columns are not "
                        "supported, cast them to their value type"
                    )
                batch = pa.ipc.read_record_batch(message, schema)
                stop = reader.tell()
                blocks.append(_block(shard, offset, data[offset:stop], batch))
            # A file that was cut between two messages looks complete but for its footer.
            promised = pa.ipc.open_file(pa.py_buffer(data)).num_record_batches
        except (pa.ArrowException, EOFError, OSError) as error:
            raise CorruptBlockError(f"{shard}: {error}") from error
        if promised != len(blocks):
            raise CorruptBlockError(f"{shard}: holds {len(blocks)} record batches, its footer names {promised}")
        return schema, blocks

    def decode(
        self,
        data: bytes | memoryview,
        schema: pa.Schema,
        *,
        columns: Collection[str] | None = None,
        out: Mapping[str, npt.NDArray[np.uint8]] | None = None,
    ) -> pa.RecordBatch:
        try:
            try:
                return decode_columns(RecordBatchMessage.parse(data), schema, columns=columns, out=out)
            except UnknownLayoutError:
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), schema)
                batch.validate()
                return batch.select([name for name in schema.names if columns is None or name in columns])
        except (pa.ArrowException, ValueError, EOFError, OSError) as error:
            raise CorruptBlockError(f"block does not decode as Arrow: {error}") from error


class ShardBuilder:
    """Collects record batches into the bytes of one shard. Each batch becomes a block."""

    def __init__(self, schema: pa.Schema, *, codec: str = "zstd", level: int | None = 3) -> None:
        """`codec` is "zstd", "lz4" or "none"; `level` is zstd's.

        Raises ValueError for columns of a type whose blocks would not decode on their own.
        """
        for field in schema:
            if _any_within(field.type, pa.types.is_dictionary):
                raise ValueError(
                    f"column {field.name!r} has type {field.type}; dictionary-encoded columns are not supported, "
                    "cast it to its value type"
                )
            if _any_within(field.type, _is_view):
                raise ValueError(
                    f"column {field.name!r} has type {field.type}; view columns are not supported, since their rows "
                    "cannot be gathered; cast it to string, binary or list"
                )
        compression: Any = None  # Any: pyarrow's stubs do not know that a Codec may be None
        if codec == "lz4":
            compression = pa.Codec("lz4")
        elif codec == "zstd":
            compression = pa.Codec("zstd", compression_level=level)
        elif codec != "none":
            raise ValueError(f"codec must be zstd, lz4 or none, got {codec!r}")
        self._schema = schema
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_file(self._sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression))
        # The schema is written with the first batch; its message has this many bytes.
        self._start = len(_MAGIC) + schema.serialize().size
        self._spans: list[tuple[int, int, int, int]] = []

    @property
    def num_bytes(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell())

    @property
    def num_blocks(self) -> int:
        return len(self._spans)

    def add(self, batch: pa.RecordBatch) -> None:
        start = self.num_bytes or self._start
        self._writer.write_batch(batch)
        self._spans.append((start, self.num_bytes, batch.num_rows, batch.nbytes))

    def finish(self) -> tuple[pa.Buffer, list[Block]]:
        """The shard's bytes, and its blocks with `shard` left empty until it has a name."""
        self._writer.close()
        data = self._sink.getvalue()
        view = memoryview(data)
        return data, [
            Block(
                shard="",
                offset=start,
                num_bytes=stop - start,
                num_rows=num_rows,
                raw_bytes=raw_bytes,
                digest=digest_of(view[start:stop]),
            )
            for start, stop, num_rows, raw_bytes in self._spans
        ]


def _block(shard: str, offset: int, data: bytes | memoryview, batch: pa.RecordBatch) -> Block:
    return Block(
        shard=shard,
        offset=offset,
        num_bytes=len(data),
        num_rows=batch.num_rows,
        raw_bytes=batch.nbytes,
        digest=digest_of(data),
    )


def _any_within(kind: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type, or one that it is made of, is wanted."""
    if isinstance(kind, pa.BaseExtensionType):
        return _any_within(kind.storage_type, is_wanted)
    return is_wanted(kind) or any(_any_within(kind.field(number).type, is_wanted) for number in range(kind.num_fields))


def _is_view(kind: pa.DataType) -> bool:
    known = (pa.types.is_string_view, pa.types.is_binary_view, pa.types.is_list_view, pa.types.is_large_list_view)
    return any(is_kind(kind) for is_kind in known)

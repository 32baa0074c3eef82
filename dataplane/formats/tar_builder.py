"""Writing WebDataset tars, which the webdataset library reads: plain, or with a zstd frame for each block."""

import tarfile
from io import BytesIO

import pyarrow as pa
import zstandard

from dataplane.formats.tar import KEY, key_and_field
from dataplane.formats.tar_fields import Field, field_of
from dataplane.plan import Block
from dataplane.storage import digest_of

_END = bytes(2 * tarfile.BLOCKSIZE)
# Members whose names begin like this may be passed over by webdataset.
_META = "__"


class TarShardBuilder:
    """Collects rows into the bytes of one tar, a member for each value that is not null. Each batch becomes a block.

    The key of a sample is its `__key__`, a column of strings, else the row's number. Headers carry no time, user or
    mode of this machine: equal rows make equal bytes.
    """

    def __init__(self, schema: pa.Schema, *, first_row: int = 0, level: int | None = None) -> None:
        """`first_row` is the number of the first row; `level` is zstd's, None leaves the tar plain.

        Raises ValueError naming a column that webdataset would not give back under its name.
        """
        self._fields = [_checked(field) for field in schema if field.name != KEY]
        names = [field.name for field in self._fields]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two columns would be the field {repeated[0]!r} of a tar; rename one")
        if not self._fields:
            raise ValueError(f"a tar needs a column besides {KEY!r}, the schema has {schema.names}")
        if KEY in schema.names and not pa.types.is_string(schema.field(KEY).type):
            raise ValueError(f"column {KEY!r} has type {schema.field(KEY).type}; keys are strings, cast it")
        self._next_row = first_row
        self._compressor = None if level is None else zstandard.ZstdCompressor(level=level)
        self._sink = BytesIO()
        self._keys: set[str] = set()
        self._spans: list[tuple[int, int, int, int, bytes]] = []

    @property
    def num_bytes(self) -> int:
        """Bytes written so far."""
        return self._sink.tell()

    @property
    def num_blocks(self) -> int:
        return len(self._spans)

    def add(self, batch: pa.RecordBatch) -> None:
        """Raises ValueError naming a key or row that a tar cannot hold; then the batch is not in it."""
        keys = self._keys_of(batch)
        columns = [field.encode(batch.column(field.column)) for field in self._fields]
        members = BytesIO()
        for number, (key, *values) in enumerate(zip(keys, *columns, strict=True)):
            if all(value is None for value in values):
                raise ValueError(
                    f"the sample {key!r} (row {number} of its block) has no value in any column, and a tar "
                    "has no place for it; drop it, fill a column, or write arrow"
                )
            for field, value in zip(self._fields, values, strict=True):
                if value is not None:
                    _add_member(members, f"{key}.{field.name}", value)
        data = members.getvalue()
        if self._compressor is not None:
            data = self._compressor.compress(data)
        start = self.num_bytes
        self._sink.write(data)
        self._spans.append((start, self.num_bytes, batch.num_rows, batch.nbytes, digest_of(data)))
        self._keys.update(keys)
        self._next_row += batch.num_rows

    def finish(self) -> tuple[memoryview, list[Block]]:
        """The shard's bytes, and its blocks with `shard` left empty until it has a name."""
        self._sink.write(_END if self._compressor is None else self._compressor.compress(_END))
        return self._sink.getbuffer(), [
            Block(
                shard="",
                offset=start,
                num_bytes=stop - start,
                num_rows=num_rows,
                raw_bytes=raw_bytes,
                digest=digest,
            )
            for start, stop, num_rows, raw_bytes, digest in self._spans
        ]

    def _keys_of(self, batch: pa.RecordBatch) -> list[str]:
        if KEY not in batch.schema.names:
            return [f"{row:012d}" for row in range(self._next_row, self._next_row + batch.num_rows)]
        keys = batch.column(KEY).to_pylist()
        seen = set(self._keys)
        for number, key in enumerate(keys):
            if key is None or key in seen:
                state = "has no key" if key is None else f"has the key {key!r} of an earlier one"
                raise ValueError(f"row {number} of a block {state}; the keys of a tar must be there and differ")
            name = f"{key}.{self._fields[0].name}"
            if "\0" in key or key.startswith(_META) or key_and_field(name) != (key, self._fields[0].name):
                raise ValueError(
                    f"the key {key!r} would not come back from a tar: webdataset ends a key at the first dot after its "
                    "last slash, and passes over names like __this__; replace these in column '__key__', or write arrow"
                )
            seen.add(key)
        return keys


def _checked(field: pa.Field) -> Field:
    kept = field_of(field)
    if kept.name != kept.name.lower():
        raise ValueError(f"column {field.name!r} has capitals, and webdataset reads names in lower case; rename it")
    if key_and_field(f"key.{kept.name}") != ("key", kept.name) or kept.name.startswith(_META) or "\0" in kept.name:
        raise ValueError(
            f"column {field.name!r} cannot be a field of a tar, without slash, line break or leading '__'; rename it"
        )
    return kept


def _add_member(sink: BytesIO, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o444
    sink.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
    sink.write(data)
    sink.write(bytes(-len(data) % tarfile.BLOCKSIZE))

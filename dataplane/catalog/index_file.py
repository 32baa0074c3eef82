"""The index of blocks as an Arrow file: a row per block, readable by any Arrow reader."""

import numpy as np
import pyarrow as pa

from dataplane.catalog.version import inside_root
from dataplane.errors import DatasetError
from dataplane.plan import BlockIndex
from dataplane.plan.blocks import DIGEST_BYTES

# Far above what a writer makes; no arithmetic on it overflows.
_MOST = 1 << 48

_SCHEMA = pa.schema(
    [
        pa.field("shard", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("num_bytes", pa.int64(), nullable=False),
        pa.field("num_rows", pa.int64(), nullable=False),
        pa.field("raw_bytes", pa.int64(), nullable=False),
        pa.field("digest", pa.binary(DIGEST_BYTES), nullable=False),
    ]
)


def encode_index(index: BlockIndex) -> pa.Buffer:
    """The bytes of an index part."""
    digests = pa.py_buffer(np.ascontiguousarray(index.digest))
    batch = pa.record_batch(
        [
            pa.DictionaryArray.from_arrays(pa.array(index.shard), pa.array(index.shards, pa.string())),
            pa.array(index.offset),
            pa.array(index.num_bytes),
            pa.array(index.num_rows),
            pa.array(index.raw_bytes),
            pa.FixedSizeBinaryArray.from_buffers(pa.binary(DIGEST_BYTES), len(index), [None, digests]),
        ],
        schema=_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, _SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def decode_index(data: bytes, where: str) -> BlockIndex:
    """Raises DatasetError naming `where` if the file is not an index, or names files outside the dataset."""
    try:
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        if table.schema != _SCHEMA:
            raise DatasetError(f"{where} is not an index of blocks: its columns are {table.schema.names}")
        batch = table.combine_chunks().to_batches()[0] if table.num_rows else None
        if batch is None:
            return BlockIndex.from_blocks([])
        batch.validate(full=True)
        if empty := [name for name in batch.schema.names if batch[name].null_count]:
            raise DatasetError(f"{where} is not an index of blocks: column {empty[0]} has no value in some rows")
        shards = [inside_root(path) for path in batch["shard"].dictionary.to_pylist()]
    except (pa.ArrowException, ValueError, OSError) as error:
        raise DatasetError(f"{where} is not a readable index of blocks: {error}") from error
    index = BlockIndex(
        shards,
        batch["shard"].indices.to_numpy(),
        batch["offset"].to_numpy(),
        batch["num_bytes"].to_numpy(),
        batch["num_rows"].to_numpy(),
        batch["raw_bytes"].to_numpy(),
        np.frombuffer(batch["digest"].buffers()[1], np.uint8).reshape(-1, DIGEST_BYTES)[: len(batch)],
    )
    for name in ("offset", "num_bytes", "num_rows", "raw_bytes"):
        if (column := getattr(index, name)).min() < 0:
            raise DatasetError(f"{where}: column {name} holds the negative value {column.min()}")
        if column.max() > _MOST:
            raise DatasetError(
                f"{where}: column {name} holds {column.max()}, more than the {_MOST} that a block may have"
            )
    if index.shard.max() >= len(shards) or index.shard.min() < 0:
        raise DatasetError(f"{where}: names shard {index.shard.max()} of {len(shards)}")
    return index

"""Small real datasets, written by the real writer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dataplane.catalog import DatasetWriter, Encoding
from dataplane.storage import open_store

SAMPLE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tokens", pa.list_(pa.field("item", pa.uint16(), nullable=False), 8), nullable=False),
        pa.field("starts", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("text", pa.string()),
    ]
)


def sample_rows(ids: Sequence[int], *, salt: int = 0) -> pa.RecordBatch:
    """Rows whose every column follows from the id: `expected_*` below say how."""
    tokens = (np.repeat(np.array(ids), 8) + salt).astype(np.uint16)
    columns = [
        pa.array(ids, pa.int64()),
        pa.FixedSizeListArray.from_arrays(pa.array(tokens), type=SAMPLE_SCHEMA.field("tokens").type),
        pa.array([expected_starts(number) for number in ids], SAMPLE_SCHEMA.field("starts").type),
        pa.array([expected_text(number) for number in ids], pa.string()),
    ]
    return pa.record_batch(columns, schema=SAMPLE_SCHEMA)


def expected_starts(number: int) -> list[int]:
    return list(range(number % 4))


def expected_text(number: int) -> str | None:
    return None if number % 5 == 0 else f"sample {number}"


def write_samples(
    url: str,
    block_rows: Sequence[int],
    *,
    options: Mapping[str, Any] | None = None,
    shard_bytes: int = 4_000,
    salt: int = 0,
    first_id: int = 0,
) -> str:
    """A dataset of blocks with so many rows each, ids counted from `first_id`; its URL."""
    writer = DatasetWriter(open_store(url, options), SAMPLE_SCHEMA, Encoding(shard_bytes=shard_bytes))
    first = first_id
    for num_rows in block_rows:
        writer.write(sample_rows(range(first, first + num_rows), salt=salt))
        first += num_rows
    writer.commit(metadata={})
    return url

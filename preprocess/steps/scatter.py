"""The first half of a global shuffle: rows to buckets, by random keys.

A bucket holds the rows whose keys lie in one range; the buckets in order, each sorted by key, are all rows in the order
of their keys. What a task holds in memory is bounded; what it cannot hold goes into the work folder, bucket by bucket.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataplane.errors import InputError
from dataplane.formats import ShardBuilder
from dataplane.metrics import Metrics
from dataplane.plan import Block
from preprocess.engines import Running
from preprocess.steps.job import Job, StepRunner
from preprocess.steps.rows import Rows
from preprocess.tasks import Task

KEY_COLUMN = "__shuffle_key__"
# Rows held by a task before they are written to their buckets, in memory bytes.
_HELD_BYTES = 64 << 20
# A bucket is sorted in memory; inputs are assumed to unpack to this many times their size.
_BUCKET_BYTES = 256 << 20
_UNPACKED = 4


Segment = Mapping[str, Any]  # Any: JSON
"""A run of rows of one bucket: its number, and the block of the work folder that holds it."""


@dataclass(frozen=True)
class ScatterStep:
    """Tasks: pieces of the inputs. Each says where in the work folder its rows are, by bucket."""

    job: Job
    log2_buckets: int
    name: str = "scatter"

    def open(self) -> Running:
        metrics = Metrics()
        rows = Rows(self.job, metrics)
        work = self.job.work()
        shuffle = self.job.recipe.shuffle
        assert shuffle is not None
        if KEY_COLUMN in rows.schema.names:
            raise ValueError(f"column {KEY_COLUMN!r} is named like the column of shuffle keys; rename it")

        def make(task: Task) -> Mapping[str, Any]:  # Any: JSON
            segments: list[Segment] = []
            held: list[pa.RecordBatch] = []
            row = number = 0

            def flush() -> None:
                nonlocal number
                if held:
                    path = work.path(self.name, task.number, f"{number:04d}.arrow")
                    data, found = self._segments(held, path)
                    work.store.write(path, data)
                    segments.extend(found)
                    held.clear()
                    number += 1

            for batch in rows.of(task):
                keys = shuffle.keys(task.number, row, batch.num_rows)
                row += batch.num_rows
                held.append(batch.append_column(KEY_COLUMN, pa.array(keys)))
                if sum(each.nbytes for each in held) >= _HELD_BYTES:
                    flush()
            flush()
            return {"segments": segments}

        return StepRunner(self.name, work, metrics, make)

    def _segments(self, held: list[pa.RecordBatch], path: str) -> tuple[memoryview, list[Segment]]:
        """The bytes of a file of the rows by bucket, and what is where in it."""
        (batch,) = pa.Table.from_batches(held).combine_chunks().to_batches()
        builder = ShardBuilder(batch.schema, codec="lz4")
        buckets = []
        for bucket, rows in _by_bucket(batch, self.log2_buckets):
            builder.add(rows)
            buckets.append(bucket)
        data, blocks = builder.finish()
        found: list[Segment] = [
            {"bucket": bucket, **block_json(replace(block, shard=path))}
            for bucket, block in zip(buckets, blocks, strict=True)
        ]
        return memoryview(data).cast("B"), found


def log2_buckets_for(input_bytes: int) -> int:
    """How many buckets, as a power of two, keep each small enough to be sorted in memory."""
    buckets = -(-input_bytes * _UNPACKED // _BUCKET_BYTES)
    return max(0, (buckets - 1).bit_length())


def bucket_of(keys: npt.NDArray[np.uint64], log2_buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each key: its highest bits."""
    if log2_buckets == 0:
        return np.zeros(len(keys), np.int64)
    return (keys >> np.uint64(64 - log2_buckets)).astype(np.int64)


def block_json(block: Block) -> dict[str, Any]:  # Any: JSON
    """A block as an outcome has it."""
    return {
        "shard": block.shard,
        "offset": block.offset,
        "num_bytes": block.num_bytes,
        "num_rows": block.num_rows,
        "raw_bytes": block.raw_bytes,
        "digest": block.digest.hex(),
    }


def block_from_json(record: Mapping[str, Any]) -> Block:  # Any: JSON
    """The same block again."""
    return Block(
        shard=record["shard"],
        offset=record["offset"],
        num_bytes=record["num_bytes"],
        num_rows=record["num_rows"],
        raw_bytes=record["raw_bytes"],
        digest=bytes.fromhex(record["digest"]),
    )


def _by_bucket(batch: pa.RecordBatch, log2_buckets: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each bucket that has some; within a bucket they keep their order."""
    buckets = bucket_of(batch.column(KEY_COLUMN).to_numpy(), log2_buckets)
    order = np.argsort(buckets, kind="stable")
    try:
        ordered = batch.take(pa.array(order))
    except pa.ArrowInvalid as error:
        raise InputError(f"rows cannot be shuffled: {error}") from error
    found, starts = np.unique(buckets[order], return_index=True)
    for bucket, start, stop in zip(found, starts, [*starts[1:], len(order)], strict=True):
        yield int(bucket), ordered.slice(start, stop - start)

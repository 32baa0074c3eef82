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

from dataplane.catalog import Shard
from dataplane.errors import InputError
from dataplane.formats import ShardBuilder
from dataplane.metrics import Metrics
from preprocess.engines import Running
from preprocess.steps.job import Job, StepRunner
from preprocess.steps.rows import Rows
from preprocess.tasks import Task
from preprocess.work import Work

KEY_COLUMN = "__shuffle_key__"
# Rows held by a task before they are written to their buckets, in memory bytes.
_HELD_BYTES = 64 << 20
# A bucket is sorted in memory; inputs are assumed to unpack to this many times their size.
_BUCKET_BYTES = 256 << 20
_UNPACKED = 4


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
            scattered = _Scattered(work, self.name, task.number, self.log2_buckets)
            row = 0
            for batch in rows.of(task):
                keys = shuffle.keys(task.number, row, batch.num_rows)
                row += batch.num_rows
                scattered.add(batch.append_column(KEY_COLUMN, pa.array(keys)))
            return {"files": scattered.finish()}

        return StepRunner(self.name, work, metrics, make)


class _Scattered:
    """The rows of a task on their way to their buckets."""

    def __init__(self, work: Work, step: str, task: int, log2_buckets: int) -> None:
        self._work = work
        self._step = step
        self._task = task
        self._log2_buckets = log2_buckets
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._files: list[Mapping[str, Any]] = []  # Any: JSON

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes rows with their keys."""
        if not batch.num_rows:
            return  # a filter dropped all of them
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self._flush()

    def finish(self) -> list[Mapping[str, Any]]:  # Any: JSON
        """The files written, each with the bucket of each of its blocks; all of it is durable."""
        if self._held:
            self._flush()
        return self._files

    def _flush(self) -> None:
        (batch,) = pa.Table.from_batches(self._held).combine_chunks().to_batches()
        self._held, self._held_bytes = [], 0
        builder = ShardBuilder(batch.schema, codec="lz4")
        buckets = []
        for bucket, rows in _by_bucket(batch, self._log2_buckets):
            builder.add(rows)
            buckets.append(bucket)
        data, blocks = builder.finish()
        path = self._work.path(self._step, self._task, f"{len(self._files):04d}.arrow")
        self._work.store.write(path, memoryview(data).cast("B"))
        file = Shard(path=path, num_bytes=len(data), blocks=tuple(replace(block, shard=path) for block in blocks))
        self._files.append({"buckets": buckets, "file": file.to_json()})


def log2_buckets_for(input_bytes: int) -> int:
    """How many buckets, as a power of two, keep each small enough to be sorted in memory."""
    buckets = -(-input_bytes * _UNPACKED // _BUCKET_BYTES)
    return max(0, (buckets - 1).bit_length())


def bucket_of(keys: npt.NDArray[np.uint64], log2_buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each key: its highest bits."""
    if log2_buckets == 0:
        return np.zeros(len(keys), np.int64)
    return (keys >> np.uint64(64 - log2_buckets)).astype(np.int64)


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

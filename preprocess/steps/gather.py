"""The second half of a global shuffle: a bucket's rows, sorted by their keys, to shards."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dataplane.catalog import Shard
from dataplane.formats import ArrowFormat
from dataplane.metrics import Metrics
from dataplane.plan import Block
from dataplane.storage import BlockSource
from preprocess.engines import Outcome, Running
from preprocess.steps.job import Job, StepRunner
from preprocess.steps.rows import Rows
from preprocess.steps.scatter import KEY_COLUMN
from preprocess.steps.sinks import Sinks
from preprocess.steps.write import write_rows

# Rows that are put in order at a time.
_ROWS = 1 << 12


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where the rows of a bucket are, in the order of the inputs."""

    number: int
    segments: tuple[Block, ...]
    num_bytes: int
    """Its share of the inputs."""

    def __str__(self) -> str:
        return f"bucket {self.number} of the shuffle"


@dataclass(frozen=True)
class GatherStep:
    """Tasks: buckets. Each writes the shards of its rows, in the order of their keys."""

    job: Job
    name: str = "gather"

    def open(self) -> Running:
        metrics = Metrics()
        schema = Rows(self.job, metrics).schema
        keyed = schema.append(pa.field(KEY_COLUMN, pa.uint64()))
        sinks = Sinks(self.job, metrics)
        source = BlockSource(self.job.work().store, None, Metrics())

        def make(bucket: Bucket) -> Mapping[str, Any]:  # Any: JSON
            shards = write_rows(self.job, sinks, bucket.number, _sorted_rows(bucket, source, keyed))
            metrics.add(input_bytes=bucket.num_bytes)
            return shards

        return StepRunner(self.name, self.job.work(), metrics, make)


def buckets_of(scattered: Sequence[Outcome], input_bytes: int) -> list[Bucket]:
    """All buckets that have rows, given the outcomes of scattering in the order of the inputs."""
    found: dict[int, list[Block]] = defaultdict(list)
    for outcome in scattered:
        for record in outcome.result["files"]:
            for bucket, block in zip(record["buckets"], Shard.from_json(record["file"]).blocks, strict=True):
                found[bucket].append(block)
    share = input_bytes // max(1, len(found))
    return [Bucket(number, tuple(found[number]), share) for number in sorted(found)]


def _sorted_rows(bucket: Bucket, source: BlockSource, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    decode = ArrowFormat().decode
    table = pa.Table.from_batches([decode(source.read(block), schema) for block in bucket.segments], schema)
    order = np.argsort(table.column(KEY_COLUMN).to_numpy(), kind="stable")
    rows = table.drop_columns([KEY_COLUMN])
    for start in range(0, len(order), _ROWS):
        yield from rows.take(pa.array(order[start : start + _ROWS])).combine_chunks().to_batches()

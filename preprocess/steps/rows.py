"""The rows of a task: read, changed by the recipe's operations, and without those that a global filter removed."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataplane.errors import InputError
from dataplane.metrics import Metrics
from preprocess.operations import Bound, Drops, GlobalFilter, Pipeline, stages
from preprocess.report import DROPPED
from preprocess.steps.job import Job
from preprocess.tasks import Task
from preprocess.work import Work


class Rows:
    """Gives the rows of tasks. With `filters`, only as far as before the global filter of that number."""

    def __init__(self, job: Job, metrics: Metrics, filters: int | None = None) -> None:
        assert job.schema is not None
        self._read_schema = schema = job.schema.value
        self._metrics = metrics
        self._readers = job.readers(metrics)
        self._work = job.work()
        self._stages: list[Bound | _Kept] = []
        found = 0
        for stage in stages(job.recipe.operations):
            if isinstance(stage, Pipeline):
                bound = stage.bind(schema)
                schema = bound.schema
                self._stages.append(bound)
            elif found == filters:
                break
            else:
                self._stages.append(_Kept(found, stage.reason))
                found += 1
        self.schema = schema
        """Of the rows it gives."""

    def of(self, task: Task) -> Iterator[pa.RecordBatch]:
        """In order; counts the dropped ones."""
        batches = self._read(task)
        for stage in self._stages:
            if isinstance(stage, _Kept):
                batches = self._masked(batches, stage, task)
            else:
                batches = self._changed(batches, stage, task)
        return batches

    def _read(self, task: Task) -> Iterator[pa.RecordBatch]:
        for piece in task.pieces:
            for batch in self._readers[piece.file.form].batches(piece, self._read_schema):
                if not self._read_schema.names:
                    raise InputError(f"{piece.file}: its rows have no columns")
                yield batch

    def _changed(self, batches: Iterator[pa.RecordBatch], bound: Bound, task: Task) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                result, drops = bound(batch)
            except InputError as error:
                error.add_note(f"in {task}")
                raise
            self._drop(drops)
            yield result

    def _masked(self, batches: Iterator[pa.RecordBatch], kept: "_Kept", task: Task) -> Iterator[pa.RecordBatch]:
        mask = kept.read(self._work, task.number)
        row = 0
        for batch in batches:
            part = mask[row : row + batch.num_rows]
            row += batch.num_rows
            if not part.all():
                self._drop({kept.reason: len(part) - int(part.sum())})
                batch = batch.filter(pa.array(part))
            yield batch

    def _drop(self, drops: Drops) -> None:
        self._metrics.add(**{f"{DROPPED}{reason}": count for reason, count in drops.items()})


class _Kept:
    """The decision of a global filter, task by task."""

    def __init__(self, number: int, reason: str) -> None:
        self.number = number
        self.reason = reason

    def read(self, work: Work, task: int) -> npt.NDArray[np.bool_]:
        return decode_mask(work.store.read(work.path(mask_step(self.number), task, "bits")))


def mask_step(number: int) -> str:
    """The folder of a global filter's decisions."""
    return f"kept-{number}"


def encode_mask(mask: npt.NDArray[np.bool_]) -> bytes:
    """A count and a bit for each row."""
    return len(mask).to_bytes(8, "little") + np.packbits(mask).tobytes()


def decode_mask(data: bytes) -> npt.NDArray[np.bool_]:
    """The rows to keep."""
    count = int.from_bytes(data[:8], "little")
    return np.unpackbits(np.frombuffer(data, np.uint8, offset=8), count=count).astype(bool)


def global_filters(job: Job) -> Sequence[GlobalFilter]:
    """Those of the recipe, in order."""
    return [stage for stage in stages(job.recipe.operations) if not isinstance(stage, Pipeline)]

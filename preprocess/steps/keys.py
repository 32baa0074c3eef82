"""Global filters: the keys of all rows are found by tasks, then one place decides which rows stay."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from dataplane.metrics import Metrics
from preprocess.engines import Outcome, Running
from preprocess.steps.job import Job, StepRunner
from preprocess.steps.rows import Rows, encode_mask, global_filters, mask_step
from preprocess.tasks import Task
from preprocess.work import Work


@dataclass(frozen=True)
class KeysStep:
    """Tasks: pieces of the inputs. Each keeps the keys of its rows for the global filter of this number."""

    job: Job
    number: int

    @property
    def name(self) -> str:
        return f"keys-{self.number}"

    def open(self) -> Running:
        metrics = Metrics()
        rows = Rows(self.job, metrics, filters=self.number)
        keys = global_filters(self.job)[self.number].bind(rows.schema)
        work = self.job.work()

        def make(task: Task) -> Mapping[str, Any]:  # Any: JSON
            sink = io.BytesIO()
            with pa.ipc.new_file(sink, keys.schema) as writer:
                for batch in rows.of(task):
                    writer.write_batch(keys(batch))
            work.store.write(work.path(self.name, task.number, "arrow"), sink.getbuffer())
            return {}

        return StepRunner(self.name, work, metrics, make)


def decide(job: Job, number: int, tasks: Sequence[Task]) -> None:
    """Writes down which rows of each task the global filter of this number keeps."""
    work, name = job.work(), KeysStep(job, number).name
    if work.outcomes(mask_step(number)):
        return  # an earlier run did
    parts: list[Callable[[], pa.Table]] = [partial(_keys_of, work, name, task.number) for task in tasks]
    masks = global_filters(job)[number].keep(parts)
    for task, mask in zip(tasks, masks, strict=True):
        work.store.write(work.path(mask_step(number), task.number, "bits"), encode_mask(mask))
    work.finish(mask_step(number), 0, Outcome({}, {}))


def _keys_of(work: Work, step: str, task: int) -> pa.Table:
    with pa.ipc.open_file(pa.py_buffer(work.store.read(work.path(step, task, "arrow")))) as reader:
        return reader.read_all()

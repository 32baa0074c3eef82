"""The step that makes shards of the rows of the inputs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dataplane.metrics import Metrics
from preprocess.engines import Running
from preprocess.recipe import Recipe
from preprocess.split import Split
from preprocess.steps.job import Job, StepRunner
from preprocess.steps.rows import Rows
from preprocess.steps.sinks import Sink, Sinks, TokenSink, shards_json
from preprocess.tasks import Task


@dataclass(frozen=True)
class WriteStep:
    """Tasks: pieces of the inputs. Each writes the shards of its rows, in order."""

    job: Job
    name: str = "write"

    def open(self) -> Running:
        metrics = Metrics()
        if reads_texts_only(self.job.recipe):
            return StepRunner(self.name, self.job.work(), metrics, self._texts(metrics))
        rows = Rows(self.job, metrics)
        sinks = Sinks(self.job, metrics)

        def make(task: Task) -> Mapping[str, Any]:  # Any: JSON
            return write_rows(self.job, sinks, task.number, rows.of(task))

        return StepRunner(self.name, self.job.work(), metrics, make)

    def _texts(self, metrics: Metrics) -> Any:  # Any: a function from a task to JSON
        """Straight from the readers' texts to tokens, without columns between them."""
        readers = self.job.readers(metrics)
        sinks = Sinks(self.job, metrics)

        def make(task: Task) -> Mapping[str, Any]:  # Any: JSON
            (output,) = self.job.outputs
            sink = sinks.open(output, task.number)
            assert isinstance(sink, TokenSink)
            for piece in task.pieces:
                for texts in readers[piece.file.form].texts(piece):
                    sink.add_texts(texts)
            return shards_json({output: sink.finish()})

        return make


def reads_texts_only(recipe: Recipe) -> bool:
    """Whether nothing but the text of each record counts; then no columns have to be found out."""
    return recipe.packing is not None and not recipe.operations and recipe.split is None and recipe.shuffle is None


def write_rows(job: Job, sinks: Sinks, task: int, batches: Iterable[pa.RecordBatch]) -> Mapping[str, Any]:  # Any: JSON
    """Writes rows to the outputs that they belong to; says which shards each got."""
    opened: dict[str, Sink] = {output: sinks.open(output, task) for output in job.outputs}
    for batch in batches:
        for output, rows in _shared_out(batch, job.recipe.split):
            if rows.num_rows:
                opened[output].add(rows)
    return shards_json({output: sink.finish() for output, sink in opened.items()})


def _shared_out(batch: pa.RecordBatch, split: Split | None) -> Iterable[tuple[str, pa.RecordBatch]]:
    if split is None:
        return [("", batch)]
    parts = split.assign(batch)
    return [(name, batch.filter(pa.array(parts == number))) for number, name in enumerate(split.names)]

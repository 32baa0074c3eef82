"""What all steps of a run share, and how one of their tasks is carried out."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dataplane.metrics import Metrics
from dataplane.storage import Store, open_store
from preprocess.engines import Counts, Outcome
from preprocess.recipe import Recipe
from preprocess.sources import Form, Reader, reader_for
from preprocess.work import Work


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run. A value that travels to the workers, so that all of them make the same of it."""

    recipe: Recipe
    destination: str
    storage_options: Mapping[str, Any] | None  # Any: as the stores' own options
    fingerprint: str
    """Of everything that decides the bytes of the result."""
    known: "PortableSchema | None"
    """Of the dataset that rows are appended to; says what empty lists hold."""
    first_task: int
    """Tasks of the versions before; with a task's own number it makes the ids of packed rows."""
    schema: "PortableSchema | None" = None
    """Of the rows as they are read, once a survey has found it; None where only texts are read."""
    block_schema: "PortableSchema | None" = None
    """Of the blocks to write, once it is known."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Folders of the datasets that are made, relative to the destination; "" is the destination itself."""
        return self.recipe.split.names if self.recipe.split else ("",)

    def url(self, output: str) -> str:
        """Where an output is written."""
        return f"{self.destination.rstrip('/')}/{output}" if output else self.destination

    def store(self, output: str) -> Store:
        """The folder of an output."""
        return open_store(self.url(output), self.storage_options)

    def work(self) -> Work:
        """What is finished; it lies with the first output."""
        return Work(self.store(self.outputs[0]), self.fingerprint)

    def readers(self, metrics: Metrics) -> dict[Form, Reader]:
        """One for each form of input."""
        return {form: reader_for(form, self.recipe.reading, metrics) for form in Form}


@dataclass(frozen=True, slots=True)
class PortableSchema:
    """A schema whose shards have the same bytes in every process; a pickled `pa.Schema` comes out spelled otherwise."""

    message: bytes
    """As Arrow's IPC has it."""

    @classmethod
    def of(cls, schema: pa.Schema) -> "PortableSchema":
        return cls(schema.serialize().to_pybytes())

    @property
    def value(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.message))


Make = Callable[[Any], Mapping[str, Any]]  # Any: the step's own kind of task; JSON


class StepRunner:
    """Runs the tasks of a step in this process; what one made is remembered when it is durable."""

    def __init__(self, step: str, work: Work, metrics: Metrics, make: Make) -> None:
        """`make` does a task, counting in `metrics`."""
        self._step = step
        self._work = work
        self._metrics = metrics
        self._make = make
        self._before: Counts = {}

    def run(self, task: Any) -> Outcome:  # Any: the step's own kind of task
        """What the task made."""
        self._before = self._metrics.snapshot()
        outcome = Outcome(self._make(task), self.counts(), peak_bytes())
        self._work.finish(self._step, task.number, outcome)
        return outcome

    def counts(self) -> Counts:
        """What the task has counted so far."""
        before = self._before
        return {
            name: value - before.get(name, 0)
            for name, value in self._metrics.snapshot().items()
            if value != before.get(name, 0)
        }


def peak_bytes() -> int:
    """Most memory that this process ever held; 0 where the system does not say."""
    try:
        # Unlike getrusage's, this is not that of the process which started this one.
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0

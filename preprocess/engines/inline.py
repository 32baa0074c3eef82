"""The engine of one: tasks run here, in order."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from preprocess.engines.base import OnCounts, Outcome, Running, Session, Step, Task
from preprocess.engines.ticker import ticking


class Inline:
    """Runs tasks in this process. Native code uses as many threads as it likes."""

    @contextmanager
    def session(self) -> Iterator[Session]:
        yield self

    def run(self, step: Step, tasks: Sequence[Task], on_counts: OnCounts) -> Iterator[tuple[int, Outcome]]:
        if not tasks:
            return
        running = step.open()
        for task in tasks:
            with ticking(partial(_report, on_counts, task.number, running)):
                outcome = running.run(task)
            yield task.number, outcome


def _report(on_counts: OnCounts, number: int, running: Running) -> None:
    on_counts(number, running.counts())

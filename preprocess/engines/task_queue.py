"""The order in which tasks are handed out, and which of several failures is told."""

from collections import deque
from collections.abc import Sequence

from preprocess.engines.base import Task
from preprocess.engines.worker import Failed, WorkerTraceback


class TaskQueue:
    """Tasks in order; after a failure only those before it, since whichever fails first on the clock, the first in
    order is reported."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._waiting = deque(tasks)
        self._failures: dict[int, Exception] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> Task:
        """The next one."""
        return self._waiting.popleft()

    def fail(self, task: Task, failed: Failed) -> None:
        """Notes that a task raised, wherever it ran."""
        failed.error.__cause__ = WorkerTraceback(failed.traceback)
        self._failures[task.number] = failed.error
        self._waiting = deque(each for each in self._waiting if each.number < task.number)

    def check(self) -> None:
        """Raises what the first task in order raised, if any did."""
        if self._failures:
            raise self._failures[min(self._failures)]

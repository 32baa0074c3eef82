"""Threads that do what they are given, in the order given."""

import queue
import threading
from collections.abc import Callable


class WorkerPool:
    """A few daemon threads with one queue; its owner bounds what it submits.

    Unlike concurrent.futures, closing drops what has not begun, and an interpreter that exits without closing does not
    first finish the queue.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"dataplane-{name}-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        """`task` reports its own result and errors; it must not raise."""
        self._tasks.put(task)

    def close(self) -> None:
        """Returns when the tasks under way have ended."""
        self._closed = True
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not self._closed:
                task()

"""Threads that do what they are given, in the order given."""

import queue
import threading
import time
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

    def close(self, patience_seconds: float | None = None) -> bool:
        """Drops what has not begun and waits for the tasks under way, by default for ever. Whether all have ended.

        A thread of the pool may call it, as a garbage collection there does: it does not wait for itself.
        """
        self._closed = True
        for _ in self._threads:
            self._tasks.put(None)
        deadline = None if patience_seconds is None else time.monotonic() + patience_seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not self._closed:
                task()

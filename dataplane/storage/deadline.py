"""Calls with a deadline, for clients that may not come back from one for minutes."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Inbox = SimpleQueue[tuple[Callable[[], Any], Future[Any]]]  # Any: whatever the call returns


class DeadlineThreads:
    """Daemon threads that make calls for others. One that hangs is left behind, and does not hold up the process's end.

    Belongs to the process that made it. There are as many threads as calls were ever under way at once.
    """

    def __init__(self) -> None:
        self._idle: deque[_Inbox] = deque()

    def call(self, function: Callable[[], T], timeout_seconds: float) -> T:
        """What `function` returns; raises what it raises, or TimeoutError while it goes on by itself."""
        answer: Future[T] = Future()
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            threading.Thread(target=self._work, args=[inbox], name="dataplane-deadline", daemon=True).start()
        inbox.put((function, answer))
        return answer.result(timeout_seconds)

    def _work(self, inbox: _Inbox) -> None:
        while True:
            function, answer = inbox.get()
            try:
                result, error = function(), None
            except BaseException as raised:  # whatever it is, the caller waits for it
                result, error = None, raised
            self._idle.append(inbox)
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)
            del function, answer, result, error  # what is idle keeps nothing alive

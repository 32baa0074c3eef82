"""A thread that reports now and then while a task runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Often enough for a bar that moves, seldom enough to cost nothing.
SECONDS_BETWEEN_TICKS = 0.2


@contextmanager
def ticking(tick: Callable[[], None], seconds: float = SECONDS_BETWEEN_TICKS) -> Iterator[None]:
    """Calls `tick` again and again from a thread of its own until the block ends."""
    done = threading.Event()

    def loop() -> None:
        while not done.wait(seconds):
            tick()

    thread = threading.Thread(target=loop, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

"""Counters and clocks of the stages. They never print or log; whoever wants numbers takes a snapshot."""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar
from weakref import WeakSet


class Metrics:
    """Named sums, safe to add to from any thread.

    Names end in their unit: `fetched_bytes`, `decode_seconds`; counts have none: `cache_hits`.
    """

    _all: ClassVar["WeakSet[Metrics]"] = WeakSet()

    def __init__(self) -> None:
        self._all.add(self)
        self._lock = threading.Lock()
        self._sums: defaultdict[str, float] = defaultdict(float)

    def __reduce__(self) -> tuple[type["Metrics"], tuple[()]]:
        """In another process it counts from zero."""
        return type(self), ()

    def add(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    def show(self, **values: float) -> None:
        """Sets what is no sum but a level, such as `request_limit`."""
        with self._lock:
            self._sums.update(values)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the wall time of the block to `<stage>_seconds`, whether or not it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(**{f"{stage}_seconds": time.perf_counter() - start})

    def snapshot(self) -> dict[str, float]:
        """All sums since the start and the last levels, at one moment."""
        with self._lock:
            return dict(self._sums)

    @classmethod
    def _unlock_all(cls) -> None:
        """In a forked child: a thread of the parent's may have been counting, and is not here to let go."""
        for each in cls._all:
            each._lock = threading.Lock()


os.register_at_fork(after_in_child=Metrics._unlock_all)

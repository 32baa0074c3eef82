"""Ends a rank that hangs: in a collective whose peer is gone, in a decoder, on a store that never answers."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from training.errors import HangError

# How long after its time a rank still waits where only other ranks can be at fault: they end first, and say more.
GRACE_SECONDS = 2.0


class Watchdog:
    """Ends the process, with the stacks of all threads on stderr, when `beat` is not called for too long.

    A hung thread cannot be interrupted; ending its process is all that helps. The connections of the
    rank break with it, which ends the others. Watches while its block runs, from a thread of its own.
    """

    def __init__(
        self,
        timeout_seconds: float,
        *,
        rank: int,
        report: Callable[[BaseException], None],
        end: Callable[[int], object] = os._exit,
        dump: Callable[[], object] = faulthandler.dump_traceback,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._rank = rank
        self._report = report
        self._end = end
        self._dump = dump
        self._doing = "starting"
        self._deadline = 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self, doing: str, *, needs_others: bool = False) -> None:
        """Note progress, and what comes next."""
        self._doing = doing
        self._deadline = time.monotonic() + self._timeout_seconds + (GRACE_SECONDS if needs_others else 0)

    def __enter__(self) -> Self:
        self.beat("starting", needs_others=True)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closing.wait(max(self._deadline - time.monotonic(), 0.01)):
            if time.monotonic() < self._deadline:
                continue
            self._dump()
            self._report(
                HangError(
                    f"rank {self._rank} made no progress for timeout_seconds={self._timeout_seconds:g} "
                    f"while {self._doing}; the stacks of its threads are on stderr"
                )
            )
            sys.stderr.flush()
            self._end(1)
            return

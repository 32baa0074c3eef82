"""Asking a run to stop: the signals are noted here, and acted upon between two steps."""

import ctypes
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Self

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h


class StopRequest:
    """Notes SIGTERM and SIGINT while its block runs; a second signal acts as it always did.

    Elsewhere than in the main thread, which alone may install handlers, nothing is noted.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """The signal that arrived, if any."""
        self._former: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal() returned
        self._former.clear()


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone (on Linux only).

    A rank whose launcher was killed would otherwise train on, and write into its successor's folder.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

"""How far a long run is: one bar on a terminal, else a plain line now and then. Never more than that."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_MEGA = 1_000_000

# Few enough lines for a log of days, and a sign of life for whoever watches it.
SECONDS_BETWEEN_LINES = 10.0


class Display(Protocol):
    """Shows how far a run is."""

    def update(self, done_bytes: int, note: Callable[[], str]) -> None:
        """Says how many bytes are done; `note` is called only if something is shown."""
        ...


class Silent:
    """Shows nothing."""

    def update(self, done_bytes: int, note: Callable[[], str]) -> None:
        return


class Lines:
    """A plain line each ten seconds at most, and one at the end."""

    def __init__(
        self,
        title: str,
        total_bytes: int,
        stream: TextIO,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._total = total_bytes
        self._stream = stream
        self._now = now
        self._start = self._last = now()
        self._note: Callable[[], str] = str

    def update(self, done_bytes: int, note: Callable[[], str]) -> None:
        self._note = note
        if self._now() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = self._now()
            speed = done_bytes / (self._last - self._start)
            left = f"{(self._total - done_bytes) / speed:.0f} s left" if done_bytes else "time left unknown"
            self._print(
                f"{done_bytes / _MEGA:.1f} of {self._total / _MEGA:.1f} MB, {speed / _MEGA:.1f} MB/s, {left}, {note()}"
            )

    def finish(self) -> None:
        """Prints the line of the end."""
        self._print(f"{self._total / _MEGA:.1f} MB in {self._now() - self._start:.1f} s, {self._note()}")

    def _print(self, line: str) -> None:
        print(f"{self._title}: {line}", file=self._stream, flush=True)


class Bar:
    """One bar with bytes, speed, time left and the note."""

    def __init__(self, bar: Progress, title: str, total_bytes: int) -> None:
        self._bar = bar
        self._task = bar.add_task(title, total=total_bytes, note="")
        self._last = 0.0

    def update(self, done_bytes: int, note: Callable[[], str]) -> None:
        if time.monotonic() - self._last >= 0.1:
            self._last = time.monotonic()
            self._bar.update(self._task, completed=done_bytes, note=note())


Show = Callable[[str, int], AbstractContextManager[Display]]
"""Title and total bytes of a run to its display."""


@contextmanager
def silent(title: str, total_bytes: int) -> Iterator[Display]:
    """Shows nothing."""
    yield Silent()


def display_on(stream: TextIO) -> Show:
    """A bar if the stream is a terminal, else lines."""

    @contextmanager
    def show(title: str, total_bytes: int) -> Iterator[Display]:
        if not stream.isatty():
            lines = Lines(title, total_bytes, stream)
            yield lines
            lines.finish()
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=Console(file=stream), transient=True) as bar:
            yield Bar(bar, title, total_bytes)

    return show

"""What all tasks of a run have counted, wherever they run, shown as it grows."""

import threading
from collections import Counter
from collections.abc import Mapping

from preprocess.engines import Counts, Outcome
from preprocess.progress import Display
from preprocess.report import dropped_of

_MEGA = 1_000_000


class Tracker:
    """Sums up. Reported to from any thread."""

    def __init__(self, display: Display | None) -> None:
        self._display = display
        self._lock = threading.Lock()
        self._finished: Counter[str] = Counter()  # of the final steps
        self._running: dict[int, Counts] = {}
        self._done_bytes = 0.0  # of inputs, in all steps so far
        self._step = ""
        self._final = False
        self.num_resumed = 0
        """Tasks of the final steps that earlier runs had finished."""
        self.peak_bytes = 0
        """Most memory that any process held which ran a task."""

    def begin(self, step: str, done: Mapping[int, Outcome], *, final: bool) -> None:
        """A step starts with what earlier runs did of it. Only what `final` steps count is in `counts`."""
        with self._lock:
            self._step, self._final = step, final
            self._running = {}
            self.num_resumed += len(done) if final else 0
        for outcome in done.values():
            self._add(outcome)

    def update(self, task: int, counts: Counts) -> None:
        """A task says what it has counted so far."""
        with self._lock:
            self._running[task] = counts
        self._show()

    def finish(self, task: int, outcome: Outcome) -> None:
        """A task is done."""
        with self._lock:
            self._running.pop(task, None)
        self._add(outcome)
        self._show()

    def counts(self) -> Counts:
        """Of the finished tasks."""
        with self._lock:
            return dict(self._finished)

    def _add(self, outcome: Outcome) -> None:
        with self._lock:
            self.peak_bytes = max(self.peak_bytes, outcome.peak_bytes)
            self._done_bytes += outcome.counts.get("input_bytes", 0)
            if self._final:
                self._finished.update({n: v for n, v in outcome.counts.items() if n != "input_bytes"})

    def _show(self) -> None:
        if self._display is None:
            return
        with self._lock:
            done = self._done_bytes + sum(counts.get("input_bytes", 0) for counts in self._running.values())
        self._display.update(int(done), self._note)

    def _note(self) -> str:
        with self._lock:
            counts = Counter(self._finished)
            if self._final:
                for running in self._running.values():
                    counts.update(running)
            step = self._step
        if not counts.get("rows"):
            return _WORDS.get(step.split("-")[0], step)
        ratio = counts["raw_bytes"] / max(1, counts["written_bytes"])
        dropped = sum(dropped_of(counts).values())
        left_out = f", {dropped:,} dropped" if dropped else ""
        return (
            f"{int(counts['rows']):,} rows, {counts['written_bytes'] / _MEGA:.1f} MB out, ratio {ratio:.2f}{left_out}"
        )


_WORDS = {
    "survey": "finding the columns",
    "keys": "finding duplicates",
    "scatter": "shuffling",
    "write": "no rows yet",
    "gather": "no rows yet",
}

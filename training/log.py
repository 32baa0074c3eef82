"""What a run says: every step as a line of JSON, and a short line for people now and then."""

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

MIN_SECONDS_BETWEEN_LINES = 2.0  # where lines pile up: at most 30 a minute


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetrics:
    """One line of metrics.jsonl: what one update did, over all ranks."""

    step: int
    """Updates made so far, this one included; a skipped update does not count."""

    loss: float
    """Mean per counted token, in nats."""

    lr: float
    grad_norm: float
    """Global norm before clipping."""

    tokens: int
    """Tokens counted in this update."""

    tokens_per_second: float
    data_wait: float
    """Share of this rank's step spent waiting for data, from 0 to 1."""

    epoch: int
    consumed: int
    """Samples of the epoch that all ranks together have consumed."""

    skipped: int
    """Updates skipped so far because a scaled gradient overflowed."""

    loss_scale: float
    checkpoint: int | None
    """Step of the newest complete checkpoint."""


class StepLog:
    """Writes metrics.jsonl (line-buffered) and lines for people; only rank 0 has one.

    A terminal shows one line that changes; anything else gets a line every `every_steps` steps, and
    never more than 30 a minute.
    """

    def __init__(
        self,
        path: Path,
        *,
        console: Console,
        every_steps: int,
        num_steps: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._console = console
        self._every_steps = every_steps
        self._num_steps = num_steps
        self._now = now
        self._next_line_at = -math.inf
        self._file: TextIO | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a", buffering=1)
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._file is not None:
            self._file.close()

    def write(self, metrics: StepMetrics) -> None:
        """Write one step's line, and show it if it is due."""
        assert self._file is not None
        # JSON has no infinities: the gradient norm of a skipped step is null.
        values = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(metrics).items()
        }
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        line = self._line(metrics)
        if self._live is not None:
            self._live.update(Text(line, no_wrap=True))
        elif self._due(metrics.step):
            self.say(line)

    def say(self, line: str) -> None:
        """Show a line of its own."""
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _due(self, step: int) -> bool:
        if step == self._num_steps:
            return True
        if step % self._every_steps or self._now() < self._next_line_at:
            return False
        self._next_line_at = self._now() + MIN_SECONDS_BETWEEN_LINES
        return True

    def _line(self, metrics: StepMetrics) -> str:
        line = (
            f"step {metrics.step}/{self._num_steps}  loss {metrics.loss:.4f}  "
            f"lr {metrics.lr:.2e}  norm {metrics.grad_norm:.2f}  "
            f"{metrics.tokens_per_second:,.0f} tokens/s  data wait {metrics.data_wait:.1%}  "
            f"epoch {metrics.epoch}"
        )
        return f"{line}  skipped {metrics.skipped}" if metrics.skipped else line


def forget_after(path: Path, step: int) -> None:
    """Drop the lines of later steps, and one cut short: a resumed run makes these steps again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n") or json.loads(line)["step"] > step:
            break
        kept.append(line)
    shorter = path.with_suffix(".partial")
    shorter.write_text("".join(kept))
    os.replace(shorter, path)

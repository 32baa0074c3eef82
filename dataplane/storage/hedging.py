"""When to ask a second time for what is late. Decides from what it is told; knows no clock, thread or store."""

from collections import deque

# Second requests, as a share of the first ones: the load that hedging may add.
BUDGET = 0.05
# Second requests saved up for one bad moment.
_MOST_SAVED = 16.0
# A request is late at two and a half times what 90 of 100 take: the tail beyond may be slow without hiding itself.
_TAIL, _LATENESS = 0.9, 2.5
# Below this, being late is the scheduler's noise.
_LEAST_SECONDS = 0.02
# Requests that the tail is estimated from, and without which there is no estimate.
_REMEMBERED, _LEAST_KNOWN = 256, 16
_ENDED_BETWEEN_ESTIMATES = 16


class Hedging:
    """Knows how long requests take, and keeps the budget. Not safe for threads by itself."""

    def __init__(self, *, budget: float = BUDGET) -> None:
        self._budget = budget
        self._saved = 0.0
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._num_bytes: deque[int] = deque(maxlen=_REMEMBERED)
        self._since_estimate = 0
        self._late_seconds: float | None = None
        self._usual_bytes = 1.0

    def started(self) -> None:
        """A first request was sent; it earns its share of a second one."""
        self._saved = min(_MOST_SAVED, self._saved + self._budget)

    def ended(self, *, seconds: float, num_bytes: int) -> None:
        """A request brought bytes in so many seconds."""
        self._seconds.append(seconds)
        self._num_bytes.append(num_bytes)
        self._since_estimate += 1
        if len(self._seconds) >= _LEAST_KNOWN and (
            self._late_seconds is None or self._since_estimate >= _ENDED_BETWEEN_ESTIMATES
        ):
            self._since_estimate = 0
            tail = sorted(self._seconds)[int(_TAIL * len(self._seconds))]
            self._late_seconds = max(_LEAST_SECONDS, _LATENESS * tail)
            self._usual_bytes = max(1.0, sum(self._num_bytes) / len(self._num_bytes))

    def late_after(self, num_bytes: int) -> float | None:
        """Seconds after which a request of so many bytes is late; None while too little is known."""
        if self._late_seconds is None:
            return None
        return self._late_seconds * max(1.0, num_bytes / self._usual_bytes)

    def spend(self) -> bool:
        """Whether a second request may be sent; if so, it is paid for."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True

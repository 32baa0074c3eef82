"""How many requests to keep in flight. Decides from what it is told; knows no clock, thread or store.

More requests in flight bring more bytes a second until the link, the server or this machine is full; from there on they
only wait for each other. So the limit climbs while climbing pays: it doubles as long as the rate grows with it; then it
tries, again and again, a quarter more and a quarter less, and keeps what is faster, or as fast with fewer. A store that
refuses (429, 503, a timeout) cuts it at once, and from there it climbs by steps only.
"""

from dataclasses import dataclass

# As many as a first batch needs at once, whatever is known later.
INITIAL_REQUESTS = 16
# At 30 ms and 0.5 MB a request these bring 2 GB/s, more than one process verifies and decodes.
MOST_REQUESTS = 128
# Doubling goes on while it brings at least this much more; an empty link would bring 2.
_WORTH_DOUBLING = 1.2
# A step up stays if it brings this much more, a step down if it costs no more than this.
_WORTH_MORE, _WORTH_FEWER = 1.03, 0.98
_STEP = 0.25
# A refusal leaves this share of the limit: with ranks that all do so, the store's load falls by as much.
_AFTER_REFUSAL = 0.7
# Requests over which a rate is measured, at least; and measurements between two tries, which the tries are compared to.
_LEAST_MEASURED = 32
_ROUNDS_BETWEEN_TRIES = 4


@dataclass(slots=True)
class _Round:
    """What was seen since the limit last changed, or since the last rate was taken."""

    unsettled: int
    """Requests still to end that began under another limit."""
    start: float | None = None
    num_bytes: int = 0
    ended: int = 0
    waited: int = 0


class ConcurrencyLimit:
    """The number of requests that may be in flight: `limit`. Not safe for threads by itself."""

    def __init__(self, *, initial: int = INITIAL_REQUESTS, most: int = MOST_REQUESTS) -> None:
        self.most = most
        self.limit = max(1, min(initial, most))
        self._doubling = True
        self._rates: list[float] = []  # measured under the limit that is to be compared with
        self._tried_from: int | None = None
        self._up_next = True
        self.cut_at = float("-inf")
        """When a refusal last cut it."""
        self._round = _Round(unsettled=0)

    def ended(self, *, now: float, num_bytes: int, others_wait: bool) -> None:
        """A request brought bytes. `others_wait`: whether requests wait for the limit, without which its rate says
        nothing about the limit."""
        seen = self._round
        if seen.unsettled > 0:
            seen.unsettled -= 1
            return
        if seen.start is None:
            seen.start = now
            return
        seen.num_bytes += num_bytes
        seen.ended += 1
        seen.waited += others_wait
        if seen.ended >= max(_LEAST_MEASURED, 2 * self.limit):
            self._round = _Round(unsettled=0, start=now)
            # A few at the end of a round may find nobody waiting; the rate is still that of a full pipe.
            if seen.waited >= 0.9 * seen.ended and now > seen.start:
                self._decide(seen.num_bytes / (now - seen.start))

    def refused(self, *, started: float, now: float) -> bool:
        """The store refused a request, or did not answer it. Whether that cuts the limit: of the requests that were in
        flight at a cut, no other cuts it again."""
        if started <= self.cut_at:
            return False
        self.cut_at = now
        self._doubling, self._tried_from = False, None
        self._change(int(self.limit * _AFTER_REFUSAL))
        return True

    def _decide(self, rate: float) -> None:
        if self._doubling:
            self._double(rate)
        elif self._tried_from is None:
            self._rates.append(rate)
            if len(self._rates) >= _ROUNDS_BETWEEN_TRIES:
                self._try()
        else:
            self._judge(rate)

    def _double(self, rate: float) -> None:
        if self._rates and rate < _WORTH_DOUBLING * self._rates[-1]:
            self._doubling = False
            self._change(self.limit // 2)
        elif self.limit == self.most:
            self._doubling = False
        else:
            self._change(2 * self.limit)
            self._rates = [rate]

    def _try(self) -> None:
        self._tried_from = self.limit
        step = max(1, int(self.limit * _STEP))
        up = self._up_next and self.limit < self.most
        self._up_next = not up
        before = self._rates
        self._change(self.limit + step if up else self.limit - step)
        self._rates = before

    def _judge(self, rate: float) -> None:
        assert self._tried_from is not None
        tried_from, self._tried_from = self._tried_from, None
        gain = rate / (sum(self._rates) / len(self._rates))
        if gain >= (_WORTH_MORE if self.limit > tried_from else _WORTH_FEWER):
            self._rates = [rate]
        else:
            self._change(tried_from)

    def _change(self, limit: int) -> None:
        before, self.limit = self.limit, max(1, min(limit, self.most))
        self._rates = []
        self._round = _Round(unsettled=max(before, self.limit))

"""The step account: the wall time of a training loop, split into parts that add up to it.

A step is a row of marks; the time between two neighbouring marks is charged to one part. On the
host a mark is a reading of the clock; on a device it is an event in the queue of launched work
(`dataplane.profile.device`). Either way neighbouring spans share a mark, so nothing is lost or
counted twice, and a wait for data counts only as far as the clock's own timeline stood still.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

PARTS: Final = (
    "data_wait",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "checkpoint",
    "other",
)
"""Every part of a step, in the order of a report; `other` is what no phase covered."""

PHASES: Final = PARTS[1:-1]
"""The parts that a loop opens itself; data_wait and other follow from where steps begin and end."""

NUM_RECENT_STEPS: Final = 10_000  # percentiles look back this far: 0.6 MB, whatever the run's length

SCHEMA: Final = 1  # of the JSON form; a reader refuses what it does not know

Mark = Any  # opaque: an integer on the host, an event on a device; only its own clock looks inside

T = TypeVar("T")


class Clock(Protocol):
    """Sets marks on a timeline and measures between them."""

    def mark(self) -> Mark:
        """A mark at the timeline's present end; never waits."""
        ...

    def reached(self, mark: Mark) -> bool:
        """Whether the timeline has come as far as `mark`; never waits."""
        ...

    def elapsed_ns(self, start: Mark, stop: Mark) -> int:
        """Nanoseconds between two marks; waits until `stop` is reached."""
        ...


class HostClock:
    """The host's monotonic clock: a mark is reached as soon as it is set."""

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.mark = now  # no method around it: a mark is set a dozen times a step

    def reached(self, mark: Mark) -> bool:
        return True

    def elapsed_ns(self, start: Mark, stop: Mark) -> int:
        return int(stop - start)


@dataclass(frozen=True, kw_only=True, slots=True)
class PartTime:
    """Time spent in one part: in all, and per step (median and 95th percentile of recent steps)."""

    total_ns: int
    p50_ns: int
    p95_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """One rank's time, by part. The totals of the parts add up to the total of `wall` exactly.

    On several ranks a step begins together: while another rank waits for its data, this one waits for
    it in the first exchange of the step, which lands in `other`. `JobAccount` therefore names the
    rank that waited most.
    """

    rank: int
    num_steps: int
    wall: PartTime
    parts: Mapping[str, PartTime]

    def __post_init__(self) -> None:
        if tuple(self.parts) != PARTS:
            raise ValueError(f"an account has the parts {PARTS}, got {tuple(self.parts)}")

    def share(self, part: str) -> float:
        """The share of the wall time spent in `part`, from 0 to 1."""
        return self.parts[part].total_ns / max(self.wall.total_ns, 1)

    def to_dict(self) -> dict[str, Any]:  # Any: nested JSON values
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:  # Any: nested JSON values
        """The account that `to_dict` wrote.

        Raises:
            ValueError: the values have another schema, or lack a part.
        """
        if values.get("schema") != SCHEMA:
            raise ValueError(f"account has schema {values.get('schema')!r}, this version reads {SCHEMA}")
        return cls(
            rank=values["rank"],
            num_steps=values["num_steps"],
            wall=PartTime(**values["wall"]),
            parts={part: PartTime(**times) for part, times in values["parts"].items()},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class JobAccount:
    """The accounts of all ranks of one job, ordered by rank."""

    ranks: tuple[Account, ...]

    @classmethod
    def merge(cls, accounts: Iterable[Account]) -> Self:
        """Every rank's account in one.

        Raises:
            ValueError: there is no account, or two of them are of the same rank.
        """
        ranks = tuple(sorted(accounts, key=lambda account: account.rank))
        if not ranks:
            raise ValueError("there is no account to merge; was the run profiled?")
        numbers = [account.rank for account in ranks]
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"each rank has one account, got ranks {numbers}")
        return cls(ranks=ranks)

    def share(self, part: str) -> float:
        """The share of the wall time spent in `part`, averaged over ranks."""
        return sum(account.share(part) for account in self.ranks) / len(self.ranks)

    def worst(self, part: str) -> Account:
        """The account of the rank that spent the largest share in `part`."""
        return max(self.ranks, key=lambda account: account.share(part))

    def to_dict(self) -> dict[str, Any]:  # Any: nested JSON values
        return {
            "schema": SCHEMA,
            "mean_shares": {part: self.share(part) for part in PARTS},
            "worst_ranks": {part: self.worst(part).rank for part in PARTS},
            "ranks": [account.to_dict() for account in self.ranks],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


class StepAccount:
    """Charges the time of each step of a loop to its parts.

    ```python
    account = StepAccount()
    for batch in account.steps(loader):
        with account.phase("forward"):
            loss = model(batch)
    print_report(JobAccount.merge([account.summary()]))
    ```

    A step lasts from asking for its batch to asking for the next one. Belongs to one thread. Costs
    under 1 us per mark on the host, which is far below 1 % of any step that trains something.
    """

    def __init__(self, *, clock: Clock | None = None, rank: int = 0) -> None:
        self._clock = clock or HostClock()
        self._rank = rank
        self._phases = {part: _Phase(self, part) for part in PHASES}
        self._open: _Step | None = None
        self._unreached: deque[_Step] = deque()  # closed on the host, not yet reached by the device
        self._totals = dict.fromkeys(PARTS, 0)
        self._num_steps = 0
        self._recent: deque[tuple[int, ...]] = deque(maxlen=NUM_RECENT_STEPS)

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """The batches, each one the start of a step; waiting for them is charged to data_wait.

        Raises:
            ValueError: another loop over this account's steps is still open.
        """
        if self._open is not None:
            raise ValueError("steps are already being counted; one loop at a time per account")
        mark = self._clock.mark()
        try:
            self._open = _Step(marks=[mark], parts=["data_wait"])
            for batch in batches:
                self._open.received = True
                self._switch("other")
                yield batch
                mark = self._close()
                self._open = _Step(marks=[mark], parts=["data_wait"])
        finally:
            self._close()

    def phase(self, part: str) -> "_Phase":
        """A context whose time is charged to `part`, one of `PHASES`.

        Raises:
            ValueError: the part is unknown; on entering, another phase is open, or no step is.
        """
        if part not in self._phases:
            raise ValueError(f"phase must be one of {', '.join(PHASES)}, got {part!r}")
        return self._phases[part]

    def progress(self) -> dict[str, int]:
        """Nanoseconds per part of the open step, as far as the timeline has come; never waits."""
        if self._open is None:
            return dict.fromkeys(PARTS, 0)
        marks = [*self._open.marks, self._clock.mark()]
        while marks and not self._clock.reached(marks[-1]):
            marks.pop()
        return self._measure(_Step(marks=marks, parts=self._open.parts))

    def summary(self) -> Account:
        """The account of all steps so far, the open one included; waits for the device."""
        totals, num_steps, recent = dict(self._totals), self._num_steps, list(self._recent)
        unsettled = list(self._unreached)
        if self._open is not None:
            unsettled.append(self._open.closed(self._clock.mark()))
        for step in unsettled:
            times = self._measure(step)
            totals = {part: totals[part] + times[part] for part in PARTS}
            if step.received:
                num_steps += 1
                recent.append(tuple(times.values()))
        columns = list(zip(*recent, strict=True)) or [()] * len(PARTS)
        return Account(
            rank=self._rank,
            num_steps=num_steps,
            wall=_part_time(sum(totals.values()), [sum(times) for times in recent]),
            parts={part: _part_time(totals[part], column) for part, column in zip(PARTS, columns, strict=True)},
        )

    def _switch(self, part: str) -> None:
        assert self._open is not None
        self._open.marks.append(self._clock.mark())
        self._open.parts.append(part)

    def _enter(self, part: str) -> None:
        if self._open is None:
            raise ValueError(f"phase {part!r} is outside a step; loop over account.steps(loader)")
        if self._open.parts[-1] != "other":
            raise ValueError(
                f"phase {part!r} opened inside {self._open.parts[-1]!r}; phases do not nest, close the first one before"
            )
        self._switch(part)

    def _leave(self) -> None:
        if self._open is not None:  # the loop may have been closed inside the phase
            self._switch("other")

    def _close(self) -> Mark:
        assert self._open is not None
        mark = self._clock.mark()
        self._unreached.append(self._open.closed(mark))
        self._open = None
        self._settle()
        return mark

    def _settle(self) -> None:
        """Add up the closed steps that the timeline has passed; never waits."""
        while self._unreached and self._clock.reached(self._unreached[0].marks[-1]):
            step = self._unreached.popleft()
            times = self._measure(step)
            for part, elapsed in times.items():
                self._totals[part] += elapsed
            if step.received:
                self._num_steps += 1
                self._recent.append(tuple(times.values()))

    def _measure(self, step: "_Step") -> dict[str, int]:
        times = dict.fromkeys(PARTS, 0)
        for start, stop, part in zip(step.marks, step.marks[1:], step.parts, strict=False):
            times[part] += self._clock.elapsed_ns(start, stop)
        return times


class _Phase:
    """Charges the time inside a `with` block to one part."""

    __slots__ = ("_account", "_part")

    def __init__(self, account: StepAccount, part: str) -> None:
        self._account = account
        self._part = part

    def __enter__(self) -> None:
        self._account._enter(self._part)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._account._leave()


@dataclass(kw_only=True, slots=True)
class _Step:
    """A step's marks; the time from marks[i] to marks[i + 1] belongs to parts[i]."""

    marks: list[Mark]
    parts: list[str] = field(default_factory=list)
    received: bool = False
    """False for the last wait of a loop, which brought no batch: time, but not a step."""

    def closed(self, mark: Mark) -> "_Step":
        return _Step(marks=[*self.marks, mark], parts=self.parts, received=self.received)


def _part_time(total_ns: int, per_step: Sequence[int]) -> PartTime:
    ordered = sorted(per_step)
    return PartTime(
        total_ns=total_ns,
        p50_ns=_percentile(ordered, 50),
        p95_ns=_percentile(ordered, 95),
    )


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """The smallest value that at least `percent` % of the values do not exceed (nearest rank)."""
    if not ordered:
        return 0
    return ordered[-(-len(ordered) * percent // 100) - 1]

"""How several sources make one sequence: what a pass takes of each, in which proportions, and when it ends.

A mixture decides, for every place of the sequence, the source and the number of the element that the source gives
there. A source's own elements go on from pass to pass and from one of its epochs to the next, as `Lanes` orders them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dataplane.plan.proportions import MOST_PLACES, Proportions

Ints = npt.NDArray[np.int64]

# Weights are met to one part in this many.
_WEIGHT_UNITS = 1 << 32
# The length of a sequence without end: no run reaches it.
NEVER = 1 << 62

Stop = Literal["first_exhausted", "all_exhausted", "never"]
Weight = float | tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What one source gives to a mixture."""

    weight: Weight | None = None
    """Part of the samples, in proportion to the other weights; or a schedule of (sample of the run from which it holds,
    weight), the first from sample 0. None for all sources: each in proportion to what it gives to a pass."""
    repeat: float = 1.0
    """How often a pass takes the source's rows; 0.5 takes half of them, the next pass the other half."""
    choose: int | None = None
    """How many rows a pass takes, instead of `repeat`; the next pass goes on after them."""

    def __post_init__(self) -> None:
        weights = [weight for _, weight in self.schedule]
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
            raise ValueError(f"weights must be finite and not negative, got {self.weight}")
        starts = [start for start, _ in self.schedule]
        if starts and (starts[0] != 0 or any(a >= b for a, b in pairwise(starts))):
            raise ValueError(f"a schedule of weights begins at sample 0 and ascends, got samples {starts}")
        if not (math.isfinite(self.repeat) and self.repeat > 0):
            raise ValueError(f"repeat must be positive, got {self.repeat}")
        if self.choose is not None and (self.choose < 1 or self.repeat != 1.0):
            raise ValueError(f"choose must be at least 1 and without repeat, got choose={self.choose}, {self.repeat=}")

    @property
    def schedule(self) -> tuple[tuple[int, float], ...]:
        """(first sample, weight); empty if there is no weight."""
        if self.weight is None:
            return ()
        return self.weight if isinstance(self.weight, tuple) else ((0, self.weight),)

    @property
    def is_whole(self) -> bool:
        """Whether a pass takes the source as it is."""
        return self.repeat == 1.0 and self.choose is None

    def amount(self, num_rows: int) -> int:
        """Samples that a pass takes if it ends with this source."""
        return (self.choose if num_rows else 0) if self.choose is not None else round(self.repeat * num_rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """Several sources as one. Equal mixtures of equal sources are equal sequences."""

    shares: tuple[Share, ...] = (Share(),)
    stop: Stop | None = None
    """When a pass of weighted sources ends: before the first sample that a source would have to repeat, when every
    source has been used up (others repeat meanwhile), or never. None: "all_exhausted", or "never" if endless."""

    def __post_init__(self) -> None:
        if not self.shares:
            raise ValueError("a mixture needs at least one source")
        if self.stop is not None and self.stop not in get_args(Stop):
            raise ValueError(f"stop must be one of {', '.join(get_args(Stop))}, got {self.stop!r}")
        with_weight = [share.weight is not None for share in self.shares]
        if any(with_weight) and not all(with_weight):
            raise ValueError("either every source has a weight or none has")
        if not any(with_weight) and self.stop not in (None, "all_exhausted"):
            raise ValueError(f"stop={self.stop!r} needs weights: without them all sources end together")

    def sequence(self, num_rows: Sequence[int], *, endless: bool) -> "MixedSequence":
        """The sequence over sources of so many rows. Raises ValueError if a source that takes part has none."""
        return MixedSequence(self, tuple(num_rows), endless)


@dataclass(frozen=True)
class MixedSequence:
    """The places of a mixture, counted from pass 0 on, to elements of its sources and back."""

    mixture: Mixture
    num_rows: tuple[int, ...]
    endless: bool

    def __post_init__(self) -> None:
        if len(self.num_rows) != len(self.mixture.shares):
            raise ValueError(f"a mixture of {len(self.mixture.shares)} sources got {len(self.num_rows)}")
        for number, (share, rows) in enumerate(zip(self.mixture.shares, self.num_rows, strict=True)):
            if any(weight > 0 for _, weight in share.schedule) and rows == 0 and len(self.num_rows) > 1:
                raise ValueError(f"source {number} has a weight and no rows; leave it out")
        if self._is_weighted and not self._is_single:
            if self._stop == "never" and not self.endless:
                raise ValueError('stop="never" needs endless=True')
            if self._stop != "never" and len(self._phases) > 1:
                raise ValueError("a schedule of weights needs endless=True and no other stop: it spans the whole run")

    @cached_property
    def active(self) -> tuple[int, ...]:
        """The sources that take part, as numbers among all."""
        taking = [
            number
            for number, share in enumerate(self.mixture.shares)
            if share.amount(self.num_rows[number]) > 0
            and (share.weight is None or any(weight > 0 for _, weight in share.schedule))
        ]
        return tuple(taking) or (0,)

    @cached_property
    def length(self) -> int:
        """Samples of a pass; NEVER for a sequence that has no end."""
        amounts = [self.mixture.shares[number].amount(self.num_rows[number]) for number in self.active]
        if self._is_single or not self._is_weighted:
            return sum(amounts)
        if self._stop == "never":
            return NEVER
        proportions = self._phases[0].proportions
        if max(amount / part for amount, part in zip(amounts, self.parts, strict=True)) >= MOST_PLACES:
            raise ValueError(
                f"until every source is used up a pass would take more than {MOST_PLACES} samples; raise the weights "
                'of the large sources, or use stop="first_exhausted" or endless=True'
            )
        # Where each source gives its last element, and where it would have to begin again.
        last = [int(proportions.places(kind, np.array(amount - 1))) for kind, amount in enumerate(amounts)]
        again = [int(proportions.places(kind, np.array(amount))) for kind, amount in enumerate(amounts)]
        return min(again) if self._stop == "first_exhausted" else max(last) + 1

    @cached_property
    def taken(self) -> Ints:
        """(active sources,) elements that each gives to a pass."""
        if self.length == NEVER:
            return np.full(len(self.active), NEVER)
        if self._is_single:
            return np.array([self.length])
        return np.array([int(count) for count in self._phases[0].proportions.counts(np.array(self.length))])

    @property
    def num_left_out(self) -> int:
        """Rows of whole sources that take part and that a pass does not reach."""
        if self.length == NEVER:
            return 0
        left = [
            self.num_rows[number] - int(taken)
            for number, taken in zip(self.active, self.taken, strict=True)
            if self.mixture.shares[number].is_whole
        ]
        return sum(rows for rows in left if rows > 0)

    @cached_property
    def stride(self) -> Ints:
        """(active sources,) how many elements further each is in the next pass. A whole one begins an epoch."""
        rows = np.array([max(1, self.num_rows[number]) for number in self.active])
        whole = np.array([self.mixture.shares[number].is_whole for number in self.active])
        if self.length == NEVER:
            return self.taken
        return np.where(whole, -(-self.taken // rows) * rows, self.taken)

    @cached_property
    def parts(self) -> tuple[float, ...]:
        """The part of the samples that each active source gives when it gives most; their sum may exceed 1."""
        if self._is_single:
            return (1.0,)
        return tuple(
            max(phase.proportions.amounts[kind] / sum(phase.proportions.amounts) for phase in self._phases)
            for kind in range(len(self.active))
        )

    def locate(self, places: Ints) -> tuple[Ints, Ints]:
        """The source at each place, as a number among the active, and which of its elements it gives."""
        if self._is_single:
            return np.zeros_like(places), places
        turn, place = np.divmod(places, self.length)
        source, number = np.empty_like(places), np.empty_like(places)
        phase = np.searchsorted([each.start for each in self._phases], place, side="right") - 1
        for which in np.unique(phase):
            inside, each = phase == which, self._phases[which]
            kind, count = each.proportions.locate(place[inside] - each.start)
            source[inside], number[inside] = kind, count + each.before[kind]
        number += turn * self.stride[source]
        return source, number

    def places(self, source: int, numbers: Ints) -> Ints:
        """Where an active source's elements stand in the sequence: the inverse of `locate`."""
        if self._is_single:
            return numbers
        turn, number = np.divmod(numbers, self.stride[source])
        places = np.empty_like(numbers)
        phase = np.searchsorted([each.before[source] for each in self._phases], number, side="right") - 1
        for which in np.unique(phase):
            inside, each = phase == which, self._phases[which]
            count = number[inside] - each.before[source]
            if each.proportions.amounts[source] == 0:  # it gives no more: beyond every place, each in its own
                places[inside] = MOST_PLACES + number[inside] * len(self.active) + source
            else:
                places[inside] = each.proportions.places(source, count) + each.start
        return places + turn * self.length

    @property
    def stop(self) -> Stop | None:
        """What ends a pass; None where nothing but the sources' amounts does."""
        return self._stop if self._is_weighted and not self._is_single else None

    @property
    def _is_single(self) -> bool:
        """One source is itself, whatever its weight."""
        return len(self.active) == 1

    @property
    def _is_weighted(self) -> bool:
        return self.mixture.shares[0].weight is not None

    @property
    def _stop(self) -> Stop:
        return self.mixture.stop or ("never" if self.endless else "all_exhausted")

    @cached_property
    def _phases(self) -> tuple["_Phase", ...]:
        shares = [self.mixture.shares[number] for number in self.active]
        if not self._is_weighted:
            amounts = [share.amount(self.num_rows[number]) for number, share in zip(self.active, shares, strict=True)]
            return (_Phase(0, Proportions(tuple(amounts)), np.zeros(len(amounts), np.int64)),)
        starts = sorted({start for share in shares for start, _ in share.schedule})
        phases: list[_Phase] = []
        for start in starts:
            before = np.zeros(len(shares), np.int64)
            if phases:
                last = phases[-1]
                before = last.before + np.array(last.proportions.counts(np.array(start - last.start)))
            weights = [[weight for begin, weight in share.schedule if begin <= start][-1] for share in shares]
            phases.append(_Phase(start, Proportions(_units(weights, start)), before))
        return tuple(phases)


@dataclass(frozen=True, slots=True)
class _Phase:
    """A stretch of a schedule in which the weights stay."""

    start: int
    proportions: Proportions
    before: Ints
    """(active sources,) elements that each has given before."""


def _units(weights: Sequence[float], start: int) -> tuple[int, ...]:
    total = math.fsum(weights)
    if total <= 0:
        raise ValueError(f"at least one weight must be positive, got {list(weights)} from sample {start} on")
    return tuple(max(1, round(weight / total * _WEIGHT_UNITS)) if weight > 0 else 0 for weight in weights)

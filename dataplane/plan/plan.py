"""The plan: (indexes, seed, epoch, samples consumed, rank) to the rows of blocks that this rank reads.

A source's sequence is the round robin over the lanes: element g is `lane[g % C][g // C]`. A global batch is the next
B elements; sorted by lane and cut into equal parts, it gives each rank a few whole lanes. So the samples of a global
batch do not depend on how many ranks there are, and any place of any epoch is found by arithmetic.

A mixture says which source gives the next sample. Each source has its part of the lanes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dataplane.plan.blocks import BlockIndex
from dataplane.plan.lanes import Lanes
from dataplane.plan.mixture import NEVER, MixedSequence, Mixture, Share
from dataplane.plan.permutation import derive_key
from dataplane.plan.position import Position
from dataplane.plan.rows import SourceRows, Turns
from dataplane.plan.topology import Topology

# Samples of one rank planned at once: enough to spread the cost of a lane's arithmetic, few enough to plan in
# milliseconds.
SAMPLES_AT_ONCE = 16_384
# Samples of all ranks sorted at once where a mixture needs it: some MB of memory.
SORTED_AT_ONCE = 1 << 18
# Lanes cost memory (each keeps a window of blocks decoded); more of them than this mix no better.
MOST_LANES = 512
# Blocks among which rows are mixed at any time, over all lanes: 128 of 256 packed rows are 32,768 samples.
MIXED_BLOCKS = 128

# What a source's seed is derived for; `lanes` has the other purposes.
_SOURCE = 4
# Samples of a lane after which a lane that several ranks share moves to the next: 2 to this power.
_STAY_BITS = 12
_GOLDEN = 0x9E3779B9  # 2^32 by the golden ratio: its multiples spread evenly

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What decides the order of samples besides the data: equal orders give equal sequences."""

    seed: int
    shuffle: bool
    num_lanes: int
    window_blocks: int
    """Blocks of a lane among which rows are mixed."""

    def __post_init__(self) -> None:
        if self.num_lanes < 1 or self.window_blocks < 1:
            raise ValueError(f"num_lanes and window_blocks must be at least 1, got {self}")

    @classmethod
    def suited(
        cls,
        *,
        seed: int,
        shuffle: bool,
        global_batch_size: int,
        num_lanes: int | None = None,
        window_blocks: int | None = None,
    ) -> "Order":
        """The order with good defaults for a global batch size.

        Shuffled, there is a lane for each sample of a global batch (up to 512), so every rank owns whole lanes and a
        batch draws on as many blocks as it has samples. In order, there is one lane: the writing order itself.
        """
        if num_lanes is None:
            num_lanes = 1
            if shuffle:
                candidates = range(min(global_batch_size, MOST_LANES), 0, -1)
                num_lanes = next(n for n in candidates if global_batch_size % n == 0)
        if window_blocks is None:
            window_blocks = max(1, -(-MIXED_BLOCKS // num_lanes)) if shuffle else 1
        return cls(seed=seed, shuffle=shuffle, num_lanes=num_lanes, window_blocks=window_blocks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reads:
    """The rows that one rank reads in its next steps."""

    start: Ints
    """(steps,) number of each global batch's first element, counted from pass 0 on."""
    epoch: Ints
    consumed: Ints
    """(steps,) the position after each step."""
    block: Ints
    row: Ints
    """(steps, batch size) block and row of every sample, in batch order."""
    last_element: Ints
    """(steps, batch size) no later element of this window reads the sample's block again."""
    num_filler: int = 0
    """How many of the last samples of the (only) step repeat others to give all ranks equal steps."""

    def __len__(self) -> int:
        return len(self.start)

    def positions(self, steps: range) -> list[Position]:
        """Where the run stands after each of some steps."""
        chosen = slice(steps.start, steps.stop)
        return list(map(Position, self.epoch[chosen].tolist(), self.consumed[chosen].tolist()))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who reads what, in which order. `reads` is all of it; the rest says how long it is."""

    indexes: tuple[BlockIndex, ...]
    """The blocks of each source. `Reads.block` counts through them all, source after source."""
    order: Order
    batch_size: int
    """Samples of one rank in one step, on average over the ranks."""
    topology: Topology
    mixture: Mixture | None = None
    """None: every row of every source once in a pass."""
    drop_last: bool = False
    endless: bool = False
    """Batches cross the borders of passes and never end; otherwise a pass ends with its epoch."""
    shares: tuple[float, ...] | None = None
    """(world size,) how the ranks divide a global batch; None for equal parts."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.endless and self.sequence.length == 0:
            raise ValueError("endless needs a dataset with at least one row, got none")
        if self.shares is not None:
            self._check_shares(self.shares)

    def _check_shares(self, shares: tuple[float, ...]) -> None:
        if len(shares) != self.topology.world_size or not all(math.isfinite(s) and s > 0 for s in shares):
            raise ValueError(f"shares must be {self.topology.world_size} positive numbers, one for each rank: {shares}")
        sizes = np.diff(_bounds(self.global_batch_size, shares))
        if sizes.min() < 1:
            raise ValueError(
                f"shares {shares} of a global batch of {self.global_batch_size} leave rank {int(sizes.argmin())} "
                "without a sample; raise batch_size or the rank's share"
            )

    @cached_property
    def sequence(self) -> MixedSequence:
        """The mixture over the sources' rows."""
        mixture = self.mixture or Mixture(shares=(Share(),) * len(self.indexes))
        return mixture.sequence([index.total_rows for index in self.indexes], endless=self.endless)

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.topology.world_size

    @property
    def rank_batch_size(self) -> int:
        """Samples of this rank in a whole step."""
        return self._part(self.global_batch_size)[1]

    @cached_property
    def lanes(self) -> tuple[int, ...]:
        """Lanes of each source that takes part: a source's part of all lanes, and at least one."""
        return tuple(max(1, round(part * self.order.num_lanes)) for part in self.sequence.parts)

    @cached_property
    def windows(self) -> tuple[int, ...]:
        """Blocks of a lane of each source among which rows are mixed."""
        window = self.order.window_blocks
        if not self.order.shuffle:
            return (window,) * len(self.lanes)
        # A source of few lanes would hardly be mixed; it mixes an eighth of the blocks that all lanes together mix.
        return tuple(max(window, -(-self.order.num_lanes * window // (8 * lanes))) for lanes in self.lanes)

    def lanes_of_rank(self, lanes: int) -> int:
        """The most of a source's lanes of which one rank reads rows in any stretch of steps."""
        world_size, batch = self.topology.world_size, self.global_batch_size
        if batch % self.order.num_lanes and self.order.num_lanes % batch:
            return lanes
        if len(self.lanes) == 1 and self.shares is None:
            return min(lanes, -(-lanes // world_size) + (lanes % world_size > 0))
        # The border between two ranks moves by some samples from step to step, by up to three for each source.
        moved = -(-3 * len(self.lanes) * lanes // batch) if len(self.lanes) > 1 else 0
        return min(lanes, -(-lanes * self.rank_batch_size // batch) + 2 + 2 * moved)

    @property
    def most_blocks_at_once(self) -> int:
        """No step of one rank needs more blocks in memory: a window of each of its lanes, and, where windows change
        within the step, a block for each further sample."""
        held = (self.lanes_of_rank(lanes) * window for lanes, window in zip(self.lanes, self.windows, strict=True))
        return sum(held) + self.rank_batch_size

    @cached_property
    def _steps_at_once(self) -> int:
        rows = [max(1, self.indexes[each].total_rows) for each in self.sequence.active]
        # Each epoch of a lane that a plan touches costs as well, and a small source of a mixture has many.
        epochs = sum(
            part * min(lanes / total, 1)
            for part, lanes, total in zip(self.sequence.parts, self.lanes, rows, strict=True)
        )
        size = self.global_batch_size
        most = min(SAMPLES_AT_ONCE // self.batch_size, sum(rows) // size, int(MOST_LANES / (epochs * size)))
        if self._sorts:
            most = min(most, SORTED_AT_ONCE // size)
        return max(1, most)

    @cached_property
    def _sorts(self) -> bool:
        return len(self.lanes) > 1 and max(self.lanes) > 1

    def num_steps(self, position: Position = Position()) -> int:  # noqa: B008  a frozen value
        """Steps from a position to the end of its epoch, alike on all ranks."""
        left = self.sequence.length - position.consumed
        size = self.global_batch_size
        return max(0, left // size if self.drop_last else -(-left // size))

    def num_dropped(self, position: Position = Position()) -> int:  # noqa: B008  a frozen value
        """Samples from a position to its epoch's end that are left out because they do not fill a global batch."""
        return (self.sequence.length - position.consumed) % self.global_batch_size if self.drop_last else 0

    def reads(self, position: Position, *, first: int = 0, stride: int = 1) -> Iterator[Reads]:
        """This rank's rows from a position on, some thousand samples at a time.

        Of the steps after `position` only `first`, `first + stride`, ... are planned, so that several workers can share
        a rank. A finite plan ends with the epoch of `position`, an endless one never.
        """
        if self.sequence.length == NEVER and position.epoch:
            raise ValueError(f"a mixture without end has one epoch, number 0, got {position.epoch}")
        rows = [self._rows(kind) for kind in range(len(self.lanes))]
        steps = self._endless_steps(position, first, stride) if self.endless else None
        for starts, count in steps or self._epoch_steps(position, first, stride):
            yield self._reads_of(starts, count, rows)

    def _endless_steps(self, position: Position, first: int, stride: int) -> Iterator[tuple[Ints, int]]:
        size = self.global_batch_size
        start = position.epoch * self.sequence.length + position.consumed + first * size
        while True:
            yield start + np.arange(self._steps_at_once) * (size * stride), size
            start += self._steps_at_once * size * stride

    def _epoch_steps(self, position: Position, first: int, stride: int) -> Iterator[tuple[Ints, int]]:
        size, length = self.global_batch_size, self.sequence.length
        start, stop = position.epoch * length + position.consumed, (position.epoch + 1) * length
        steps = range(first, self.num_steps(position), stride)
        short = len(steps) > 0 and start + steps[-1] * size + size > stop
        whole = steps[: len(steps) - short]
        for begin in range(0, len(whole), self._steps_at_once):
            chosen = whole[begin : begin + self._steps_at_once]
            yield start + np.arange(chosen.start, chosen.stop, chosen.step) * size, size
        if short:
            last = start + steps[-1] * size
            yield np.array([last]), stop - last

    def _reads_of(self, starts: Ints, count: int, rows: list[SourceRows]) -> Reads:
        first, size, num_filler = self._part(count)
        elements = self._elements(starts, count, (first + np.arange(size)) % count)
        block, row, last_element = self._find(elements, rows)
        length = self.sequence.length
        epoch, consumed = np.divmod(starts + count, length)
        if not self.endless:
            # What is left of the epoch is too little for a global batch: the next position is a new epoch.
            left = length - consumed
            over = (left < self.global_batch_size) & self.drop_last & (consumed > 0)
            epoch, consumed = epoch + over, np.where(over, 0, consumed)
        return Reads(
            start=starts,
            epoch=epoch,
            consumed=consumed,
            block=block,
            row=row,
            last_element=last_element,
            num_filler=num_filler,
        )

    def _part(self, count: int) -> tuple[int, int, int]:
        """First place, size and filler of this rank's part of `count` sorted samples; never empty."""
        world_size, rank = self.topology.world_size, self.topology.rank
        if self.shares is None:
            share = -(-count // world_size)
            return rank * share, share, int(np.clip((rank + 1) * share - count, 0, share))
        bounds = _bounds(count, self.shares)
        first, stop = int(bounds[rank]), int(bounds[rank + 1])
        return (first, stop - first, 0) if stop > first else (first, 1, 1)

    def _elements(self, starts: Ints, count: int, place: Ints) -> Ints:
        """Which places of the sequence this rank takes in each step, (steps, places)."""
        if len(self.lanes) == 1:
            total = self.indexes[self.sequence.active[0]].total_rows
            return batch_elements(starts, count, place, total=total, num_lanes=self.order.num_lanes)
        if not self._sorts:
            return starts[:, None] + place
        everything = starts[:, None] + np.arange(count)
        by_lane = np.argsort(self._lane_keys(everything), axis=1, kind="stable")
        return starts[:, None] + by_lane[:, place]

    def _lane_keys(self, elements: Ints) -> Ints:
        """Where on the circle of ranks each sample belongs: the lanes of every source are laid evenly round it, so that
        a rank reads its own lanes of every source and, since batches vary by some samples, few of its neighbours'."""
        source, number = self.sequence.locate(elements)
        total = np.array([max(1, self.indexes[each].total_rows) for each in self.sequence.active])[source]
        lanes = np.array(self.lanes)[source]
        epoch, number = np.divmod(number, total)
        place, lane = np.divmod(number, lanes)
        # A lane wider than a rank moves on from rank to rank, seldom enough to be read by one of them for a while.
        within = ((place >> _STAY_BITS) + epoch) * _GOLDEN & 0xFFFFFFFF
        return ((lane << 32) + within) // lanes

    def _find(self, elements: Ints, rows: list[SourceRows]) -> tuple[Ints, Ints, Ints]:
        """Block, row and last element that uses the block, each of the shape of `elements`."""
        source, number = self.sequence.locate(elements)
        block, row, last_element = (np.empty_like(elements) for _ in range(3))
        for kind, found in enumerate(rows):
            mine = source == kind
            if not mine.any():
                continue
            blocks, row[mine], last = found.find(number[mine])
            block[mine] = blocks + self._first_block(kind)
            last_element[mine] = self.sequence.places(kind, last)
        return block, row, last_element

    def _first_block(self, kind: int) -> int:
        return sum(len(index) for index in self.indexes[: self.sequence.active[kind]])

    def _rows(self, kind: int) -> SourceRows:
        index, sequence = self.indexes[self.sequence.active[kind]], self.sequence
        lanes = Lanes(
            index.num_rows,
            num_lanes=self.lanes[kind],
            # The first source is ordered as it would be alone.
            seed=derive_key(_SOURCE, self.order.seed, kind) if kind else self.order.seed,
            shuffle=self.order.shuffle,
        )
        stride, taken = int(sequence.stride[kind]), int(sequence.taken[kind])
        turns = Turns(stride=stride, taken=taken) if taken < stride else None
        return SourceRows(lanes, self.windows[kind], turns)


def _bounds(count: int, shares: Sequence[float]) -> Ints:
    """Where each rank's part of `count` samples begins, and the end."""
    ends = np.cumsum([0.0, *shares])
    return np.rint(count * ends / ends[-1]).astype(np.int64)


def batch_elements(starts: Ints, count: int, place: Ints, *, total: int, num_lanes: int) -> Ints:
    """The elements at `place` of each global batch when its elements are sorted by lane.

    `starts` (steps,) are the batches' first elements, counted from epoch 0 on; `count` is their size. Returns (steps,
    places). Within one epoch the lanes of consecutive elements are consecutive too, so the sorted order is arithmetic:
    q = count // C elements of every lane, and one more of the count % C lanes that come first, cyclically, from the
    start's lane on. Only a batch that crosses the border of an epoch is really sorted.
    """
    origin = starts // total * total
    start = starts - origin
    every, extra = divmod(count, num_lanes)
    first_lane = start % num_lanes
    wrapped = np.maximum(first_lane + extra - num_lanes, 0)
    # Lanes in three runs of equal counts: [0, low), [low, high), [high, C); a wrapped batch has its extra at both ends.
    low = np.where(wrapped > 0, wrapped, first_lane)[:, None]
    high = np.where(wrapped > 0, first_lane, first_lane + extra)[:, None]
    outer = every + (wrapped > 0)[:, None]
    inner = every + ((wrapped == 0) & (extra > 0))[:, None]
    before_inner, before_last = low * outer, low * outer + (high - low) * inner
    in_first, in_last = place < before_inner, place >= before_last
    size = np.maximum(np.where(in_first | in_last, outer, inner), 1)
    offset = np.where(in_first, place, np.where(in_last, place - before_last, place - before_inner))
    lane = np.where(in_first, 0, np.where(in_last, high, low)) + offset // size
    turn = offset % size
    elements = starts[:, None] + (lane - start[:, None]) % num_lanes + turn * num_lanes
    for step in np.flatnonzero(start + count > total):
        whole = starts[step] + np.arange(count)
        by_lane = np.argsort(whole % total % num_lanes, kind="stable")
        elements[step] = whole[by_lane][place]
    return elements

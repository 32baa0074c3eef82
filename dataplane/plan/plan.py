"""The plan: (index, seed, epoch, samples consumed, rank) to the rows of blocks that this rank reads.

The epoch's sequence is the round robin over the lanes: element g is `lane[g % C][g // C]`. A global batch is the next
B elements; sorted by lane and cut into equal parts, it gives each rank a few whole lanes. So the samples of a global
batch do not depend on how many ranks there are, and any place of any epoch is found by arithmetic.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataplane.plan.blocks import BlockIndex
from dataplane.plan.lanes import LaneEpoch, Lanes
from dataplane.plan.position import Position
from dataplane.plan.topology import Topology

# Samples of one rank planned at once: enough to spread the cost of a lane's arithmetic, few enough to plan in
# milliseconds.
SAMPLES_AT_ONCE = 16_384
# Lanes cost memory (each keeps a window of blocks decoded); more of them than this mix no better.
MOST_LANES = 512
# Blocks among which rows are mixed at any time, over all lanes: 128 of 256 packed rows are 32,768 samples.
MIXED_BLOCKS = 128

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
    """(steps,) number of each global batch's first element, counted from epoch 0 on."""
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

    index: BlockIndex
    order: Order
    batch_size: int
    """Samples of one rank in one step."""
    topology: Topology
    drop_last: bool = False
    endless: bool = False
    """Batches cross the borders of epochs and never end; otherwise a pass ends with its epoch."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.endless and self.index.total_rows == 0:
            raise ValueError("endless needs a dataset with at least one row, got none")

    @property
    def global_batch_size(self) -> int:
        return self.batch_size * self.topology.world_size

    @property
    def lanes_per_rank(self) -> int:
        """The most lanes of which one rank reads rows in any stretch of steps."""
        lanes, batch = self.order.num_lanes, self.global_batch_size
        if batch % lanes == 0 or lanes % batch == 0:
            return min(
                lanes,
                -(-lanes // self.topology.world_size) + (lanes % self.topology.world_size > 0),
            )
        return lanes

    @property
    def most_blocks_at_once(self) -> int:
        """No step of one rank needs more blocks in memory: a window of each of its lanes, and, where windows change
        within the step, a block for each further sample."""
        return self.lanes_per_rank * self.order.window_blocks + self.batch_size

    @property
    def _steps_at_once(self) -> int:
        epoch = self.index.total_rows // self.global_batch_size  # each epoch that a plan touches costs as well
        return max(1, min(epoch, SAMPLES_AT_ONCE // self.batch_size))

    def num_steps(self, position: Position = Position()) -> int:  # noqa: B008  a frozen value
        """Steps from a position to the end of its epoch, alike on all ranks."""
        left = self.index.total_rows - position.consumed
        size = self.global_batch_size
        return max(0, left // size if self.drop_last else -(-left // size))

    def num_dropped(self, position: Position = Position()) -> int:  # noqa: B008  a frozen value
        """Samples from a position to its epoch's end that are left out because they do not fill a global batch."""
        return (self.index.total_rows - position.consumed) % self.global_batch_size if self.drop_last else 0

    def reads(self, position: Position, *, first: int = 0, stride: int = 1) -> Iterator[Reads]:
        """This rank's rows from a position on, some thousand samples at a time.

        Of the steps after `position` only `first`, `first + stride`, ... are planned, so that several workers can share
        a rank. A finite plan ends with the epoch of `position`, an endless one never.
        """
        rows = _RowFinder(self.index, self.order)
        steps = self._endless_steps(position, first, stride) if self.endless else None
        for starts, count in steps or self._epoch_steps(position, first, stride):
            yield self._reads_of(starts, count, rows)

    def _endless_steps(self, position: Position, first: int, stride: int) -> Iterator[tuple[Ints, int]]:
        size = self.global_batch_size
        start = position.epoch * self.index.total_rows + position.consumed + first * size
        while True:
            yield start + np.arange(self._steps_at_once) * (size * stride), size
            start += self._steps_at_once * size * stride

    def _epoch_steps(self, position: Position, first: int, stride: int) -> Iterator[tuple[Ints, int]]:
        size, total = self.global_batch_size, self.index.total_rows
        start, stop = position.epoch * total + position.consumed, (position.epoch + 1) * total
        steps = range(first, self.num_steps(position), stride)
        short = len(steps) > 0 and start + steps[-1] * size + size > stop
        whole = steps[: len(steps) - short]
        for begin in range(0, len(whole), self._steps_at_once):
            chosen = whole[begin : begin + self._steps_at_once]
            yield start + np.arange(chosen.start, chosen.stop, chosen.step) * size, size
        if short:
            last = start + steps[-1] * size
            yield np.array([last]), stop - last

    def _reads_of(self, starts: Ints, count: int, rows: "_RowFinder") -> Reads:
        world_size, rank = self.topology.world_size, self.topology.rank
        share = -(-count // world_size)
        place = np.arange(rank * share, (rank + 1) * share)
        num_filler = int(np.clip((rank + 1) * share - count, 0, share))
        elements = batch_elements(
            starts,
            count,
            place % count,
            total=self.index.total_rows,
            num_lanes=self.order.num_lanes,
        )
        block, row, last_element = rows.find(elements)
        epoch, consumed = np.divmod(starts + count, self.index.total_rows)
        if not self.endless:
            # What is left of the epoch is too little for a global batch: the next position is a new epoch.
            left = self.index.total_rows - consumed
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


class _RowFinder:
    """Element numbers to (block, row); keeps the windows that are being read."""

    def __init__(self, index: BlockIndex, order: Order) -> None:
        self._lanes = Lanes(index.num_rows, num_lanes=order.num_lanes, seed=order.seed, shuffle=order.shuffle)
        self._window_blocks = order.window_blocks
        self._lane_epochs: dict[tuple[int, int], LaneEpoch] = {}

    def find(self, elements: Ints) -> tuple[Ints, Ints, Ints]:
        """Block, row and last element that uses the block, each of the shape of `elements`."""
        num_lanes, total = self._lanes.num_lanes, self._lanes.total_rows
        flat = elements.ravel()
        epoch, number = np.divmod(flat, total)
        place, lane = np.divmod(number, num_lanes)
        block, row, last_element = np.empty_like(flat), np.empty_like(flat), np.empty_like(flat)
        # Elements of one lane and epoch stand together and in order of their place.
        order = np.lexsort((place, lane, epoch))
        change = np.flatnonzero((np.diff(epoch[order]) != 0) | (np.diff(lane[order]) != 0)) + 1
        for group in np.split(order, change):
            group_lane, group_epoch = int(lane[group[0]]), int(epoch[group[0]])
            lane_epoch = self._lane_epoch(group_lane, group_epoch)
            places = place[group]
            begin = 0
            while begin < len(places):
                window = lane_epoch.window_at(int(places[begin]))
                stop = int(np.searchsorted(places, window.stop))
                inside = places[begin:stop] - window.start
                chosen = group[begin:stop]
                block[chosen] = window.block[inside]
                row[chosen] = window.row[inside]
                last_element[chosen] = window.last_use[inside] * num_lanes + group_lane + group_epoch * total
                begin = stop
        self._forget_before(int(epoch[order[0]]))
        shape = elements.shape
        return block.reshape(shape), row.reshape(shape), last_element.reshape(shape)

    def _lane_epoch(self, lane: int, epoch: int) -> LaneEpoch:
        key = (epoch, lane)
        if key not in self._lane_epochs:
            self._lane_epochs[key] = self._lanes.epoch(lane, epoch, window_blocks=self._window_blocks)
        return self._lane_epochs[key]

    def _forget_before(self, epoch: int) -> None:
        for key in [key for key in self._lane_epochs if key[0] < epoch]:
            del self._lane_epochs[key]

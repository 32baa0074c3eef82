"""The row space, cut into lanes; and the order of a lane's rows in one epoch.

Blocks, in an order that the seed decides once for all epochs, lay their rows end to end; C lanes of equal length (to
one row) cut that line. A lane keeps its blocks for ever, so whoever owns it keeps a useful cache.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dataplane.plan.permutation import derive_key, permutation

# What a key is for: the first part of every derived key, so that no two uses share a stream.
_BLOCKS, _SEGMENTS, _ROWS = 1, 2, 3

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The rows of a few neighbouring segments of a lane, in the order of this epoch."""

    start: int
    stop: int
    """Places in the lane, half open."""
    block: Ints
    row: Ints
    """For each place: the block, and the row within it."""
    last_use: Ints
    """For each place: the last place of this window that reads the same block."""


class Lanes:
    """All lanes of a dataset."""

    def __init__(self, num_rows: Ints, *, num_lanes: int, seed: int, shuffle: bool) -> None:
        self.num_lanes = num_lanes
        self.total_rows = int(num_rows.sum())
        self.seed = seed
        self.shuffle = shuffle
        key = derive_key(_BLOCKS, seed)
        self._blocks = permutation(len(num_rows), key) if shuffle else np.arange(len(num_rows))
        self._starts = np.concatenate([[0], np.cumsum(num_rows[self._blocks])])

    def bounds(self, lane: int) -> tuple[int, int]:
        """The rows of a lane in the row space, half open; the first lanes may have one row more."""
        length, longer = divmod(self.total_rows, self.num_lanes)
        return lane * length + min(lane, longer), (lane + 1) * length + min(lane + 1, longer)

    def segments(self, lane: int) -> tuple[Ints, Ints, Ints]:
        """The lane's pieces of blocks in the row space's order: block, first row, number of rows."""
        start, stop = self.bounds(lane)
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop, side="left"))
        place = self._starts[first : last + 1]
        low = np.maximum(place[:-1], start)
        high = np.minimum(place[1:], stop)
        kept = high > low  # blocks without rows take no part
        return self._blocks[first:last][kept], (low - place[:-1])[kept], (high - low)[kept]

    def epoch(self, lane: int, epoch: int, *, window_blocks: int, num_read: int | None = None) -> "LaneEpoch":
        """`num_read`: only so many of its places are ever read; None for all."""
        return LaneEpoch(self, lane, epoch, window_blocks, num_read)


class LaneEpoch:
    """One lane in one epoch: its segments permuted, grouped into windows, the rows of each permuted."""

    def __init__(self, lanes: Lanes, lane: int, epoch: int, window_blocks: int, num_read: int | None) -> None:
        self._lanes, self._lane, self._epoch = lanes, lane, epoch
        self._window_blocks = window_blocks
        self._num_read = num_read
        self._window: Window | None = None

    @cached_property
    def _segments(self) -> tuple[Ints, Ints, Ints]:
        block, first_row, count = self._lanes.segments(self._lane)
        if not self._lanes.shuffle:
            return block, first_row, count
        order = permutation(len(block), self._key(_SEGMENTS))
        return block[order], first_row[order], count[order]

    @cached_property
    def _ends(self) -> Ints:
        """Place in the lane at which each segment ends."""
        return np.cumsum(self._segments[2])

    def window_at(self, place: int) -> Window:
        """The window that holds a place of the lane."""
        if self._window is None or not self._window.start <= place < self._window.stop:
            segment = int(np.searchsorted(self._ends, place, side="right"))
            self._window = self._make_window(segment // self._window_blocks)
        return self._window

    def _make_window(self, number: int) -> Window:
        first = number * self._window_blocks
        chosen = slice(first, first + self._window_blocks)
        block, first_row, count = (column[chosen] for column in self._segments)
        segment = np.repeat(np.arange(len(block)), count)
        ends = np.cumsum(count)
        row = np.arange(len(segment)) - (ends - count)[segment] + first_row[segment]
        if self._lanes.shuffle:
            order = permutation(len(segment), self._key(_ROWS, number))
            segment, row = segment[order], row[order]
        start = int(self._ends[first] - count[0])
        if self._num_read is not None:
            segment, row = segment[: self._num_read - start], row[: self._num_read - start]
        last_use = np.zeros(len(block), np.int64)
        np.maximum.at(last_use, segment, np.arange(len(segment)))
        return Window(
            start=start,
            stop=start + len(segment),
            block=block[segment],
            row=row,
            last_use=last_use[segment] + start,
        )

    def _key(self, purpose: int, *parts: int) -> int:
        return derive_key(purpose, self._lanes.seed, self._epoch, self._lane, *parts)

"""From the elements of one source, numbered through all its epochs, to rows of its blocks."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dataplane.plan.lanes import LaneEpoch, Lanes

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """Which elements of a source are read: of every `stride` the first `taken`."""

    stride: int
    taken: int


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Finds rows; keeps the windows that are being read, so it belongs to one thread."""

    lanes: Lanes
    window_blocks: int
    turns: Turns | None = None
    """None if every element is read."""
    _lane_epochs: dict[tuple[int, int], LaneEpoch] = field(default_factory=dict)

    def find(self, elements: Ints) -> tuple[Ints, Ints, Ints]:
        """Block, row and last element of the window that reads the block, each of the shape of `elements`."""
        num_lanes, total = self.lanes.num_lanes, self.lanes.total_rows
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
            self._lane_epochs[key] = self.lanes.epoch(
                lane, epoch, window_blocks=self.window_blocks, num_read=self._num_read(lane, epoch)
            )
        return self._lane_epochs[key]

    def _num_read(self, lane: int, epoch: int) -> int | None:
        if self.turns is None:
            return None
        # A turn is whole epochs; only its last may be read in part.
        read = self.turns.taken - epoch * self.lanes.total_rows % self.turns.stride
        return max(0, -(-(read - lane) // self.lanes.num_lanes))

    def _forget_before(self, epoch: int) -> None:
        for key in [key for key in self._lane_epochs if key[0] < epoch]:
            del self._lane_epochs[key]

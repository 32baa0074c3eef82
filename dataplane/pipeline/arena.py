"""Where decoded blocks lie until the plan is past them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataplane.pipeline.layout import Layout

Array = npt.NDArray[np.generic]
Ints = npt.NDArray[np.int64]


class Arena:
    """Decoded blocks, each in a slot. Fixed columns lie in one array per column, so that one native call gathers rows
    from any blocks; ragged columns stay in Arrow. Pages are touched, and thus cost memory, only when a slot is used."""

    def __init__(self, layout: Layout, *, rows_per_slot: int, num_slots: int) -> None:
        self._layout = layout
        self.num_slots = num_slots
        self._rows_per_slot = rows_per_slot
        self._arrays = {
            column.name: np.empty((num_slots * rows_per_slot, *column.shape), column.dtype) for column in layout.fixed
        }
        self._ragged: list[pa.RecordBatch | None] = [None] * num_slots

    def memory(self, slot: int) -> dict[str, npt.NDArray[np.uint8]]:
        """The bytes of a slot by column, for whoever can decode straight into them. Booleans are bits in Arrow and
        bytes here, so they are not offered."""
        return {
            column.name: self._rows(column.name, slot).reshape(-1).view(np.uint8)
            for column in self._layout.fixed
            if column.dtype != np.bool_
        }

    def fill(self, slot: int, batch: pa.RecordBatch) -> None:
        """Puts a block's columns into a slot, except those that were decoded there.

        Raises ValueError where a column holds what a tensor cannot.
        """
        for column in self._layout.fixed:
            values = column.to_numpy(batch.column(column.name))
            rows = self._rows(column.name, slot)
            if values.__array_interface__["data"][0] != rows.__array_interface__["data"][0]:
                rows[: batch.num_rows] = values
        if self._layout.ragged:
            # Columns without their fields: sources may differ in what they say of nulls, and pieces are concatenated.
            names = list(self._layout.ragged)
            self._ragged[slot] = pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=names)

    def _rows(self, name: str, slot: int) -> Array:
        return self._arrays[name][slot * self._rows_per_slot : (slot + 1) * self._rows_per_slot]

    def clear(self, slot: int) -> None:
        self._ragged[slot] = None

    def gather_fixed(self, name: str, slot: Ints, row: Ints, out: Array) -> None:
        """Writes the rows, in order, into `out`, shape (rows, *shape)."""
        places = slot * self._rows_per_slot + row
        # mode="clip" spares a buffered copy; the plan never names a row that is not there.
        np.take(self._arrays[name], places, axis=0, out=out, mode="clip")

    def gather_ragged(self, slot: Ints, row: Ints) -> pa.RecordBatch:
        """The rows' ragged columns, in order."""
        order = np.argsort(slot, kind="stable")
        change = np.flatnonzero(np.diff(slot[order])) + 1
        pieces = [_taken(self._ragged[slot[group[0]]], row[group]) for group in np.split(order, change)]
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        return _concatenated(pieces).take(pa.array(inverse))


def _taken(batch: pa.RecordBatch | None, rows: Ints) -> pa.RecordBatch:
    assert batch is not None, "a slot is read only between fill and clear"
    return batch.take(pa.array(rows))


def _concatenated(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)

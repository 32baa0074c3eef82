"""Gathered columns to batches of tensors."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from dataplane.buffers import BufferPool
from dataplane.pipeline.layout import NULLS_HINT, FixedColumn, Layout, is_number_list
from dataplane.plan import Position, Reads

FILLER_KEY = "is_filler"


class Ragged(NamedTuple):
    """Rows of different lengths: row i is `values[offsets[i]:offsets[i + 1]]`."""

    values: torch.Tensor
    """(sum of lengths,)"""
    offsets: torch.Tensor
    """(rows + 1,) int64"""

    def rows(self) -> list[torch.Tensor]:
        """A view for each row."""
        bounds = self.offsets.tolist()
        return [self.values[start:stop] for start, stop in pairwise(bounds)]

    def to_nested(self) -> torch.Tensor:
        """The same as a jagged nested tensor, which costs torch some 0.1 ms to make."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)


class Batch(dict[str, Any]):  # Any: tensors, Ragged, or lists of Python values
    """What one rank trains on in one step, by column: tensors for columns of fixed shape, `Ragged` for lists of
    numbers, Python lists for strings and the rest."""

    position: Position
    """Where the run stands once this batch is consumed."""
    num_filler: int
    """How many of the last samples repeat others, to give all ranks equal steps; they are marked in `is_filler` too."""
    origin: Mapping[str, Any]  # Any: JSON values
    """What the position is a position in: the loader's state without it."""

    def state_dict(self) -> dict[str, Any]:  # Any: JSON values
        """The state of a run that has consumed this batch, for `load_state_dict`."""
        return {**self.origin, **asdict(self.position)}


class BatchMemory:
    """One piece of memory for the fixed columns of several batches, each seen as an array or as a tensor."""

    # Columns begin at multiples of a cache line.
    _ALIGNMENT = 64

    def __init__(self, layout: Layout, num_rows: int, buffers: BufferPool | None) -> None:
        """From a pool; or, without one, page-locked by torch, whose allocator does not lend memory again before the
        copies to the GPU that read it are done (which only a GPU can check)."""
        self.layout, self._num_rows = layout, num_rows
        self._starts: dict[str, int] = {}
        end = 0
        for column in layout.fixed:
            self._starts[column.name] = end
            end += -(-num_rows * column.row_bytes // self._ALIGNMENT) * self._ALIGNMENT
        if buffers is None:
            self._flat = torch.empty(end, dtype=torch.uint8, pin_memory=True)
        else:
            self._flat = torch.from_numpy(buffers.take(end))

    def array(self, column: FixedColumn) -> npt.NDArray[np.generic]:
        """Shape (rows, *shape), to be written."""
        return self._bytes(column).numpy().view(column.dtype).reshape(self._num_rows, *column.shape)

    def tensors(self, column: FixedColumn, num_steps: int) -> tuple[torch.Tensor, ...]:
        """A view for each step, shape (batch size, *shape)."""
        kind = torch.from_numpy(np.empty(0, column.dtype)).dtype
        shape = (num_steps, self._num_rows // num_steps, *column.shape)
        return self._bytes(column).view(kind).view(shape).unbind(0)

    def _bytes(self, column: FixedColumn) -> torch.Tensor:
        start = self._starts[column.name]
        return self._flat[start : start + self._num_rows * column.row_bytes]


def to_batches(
    reads: Reads,
    steps: range,
    memory: BatchMemory,
    ragged: pa.RecordBatch | None,
    *,
    mark_filler: bool,
) -> Iterator[Batch]:
    """The batches of some steps; `memory` and `ragged` have steps * batch size rows."""
    batch_size = reads.block.shape[1]
    fixed = memory.layout.fixed
    names = [column.name for column in fixed]
    views = [memory.tensors(column, len(steps)) for column in fixed]
    for number, position in enumerate(reads.positions(steps)):
        batch = Batch(zip(names, [tensors[number] for tensors in views], strict=True))
        if ragged is not None:
            rows = ragged.slice(number * batch_size, batch_size)
            batch.update(
                (name, _ragged(name, column)) for name, column in zip(rows.schema.names, rows.columns, strict=True)
            )
        if mark_filler:
            batch[FILLER_KEY] = torch.arange(batch_size) >= batch_size - reads.num_filler
        batch.position = position
        batch.num_filler = reads.num_filler
        yield batch


def _ragged(name: str, column: pa.Array) -> Ragged | list[Any]:  # Any: as the column's Python values
    if not is_number_list(column.type):
        try:
            return column.to_pylist()
        except ValueError:  # Python's times have no nanoseconds
            return list(column.to_numpy(zero_copy_only=False))
    if column.null_count:
        raise ValueError(f"column {name!r} holds {column.null_count} null lists; {NULLS_HINT}")
    offsets = column.offsets.to_numpy().astype(np.int64)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if values.null_count and not pa.types.is_floating(values.type):
        raise ValueError(f"column {name!r} holds {values.null_count} nulls in lists of {values.type}; {NULLS_HINT}")
    # Copied: Arrow's memory is read-only and shared by the whole stretch of batches.
    array = np.array(values.to_numpy(zero_copy_only=False))
    return Ragged(torch.from_numpy(array), torch.from_numpy(offsets - offsets[0]))

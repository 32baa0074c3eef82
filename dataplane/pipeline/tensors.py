"""Gathered columns to batches of tensors."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

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


def allocate_pinned(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Page-locked memory, from which a copy to a GPU does not block. Needs CUDA."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()


def to_batches(
    reads: Reads,
    steps: range,
    fixed: Mapping[str, npt.NDArray[np.generic]],
    ragged: pa.RecordBatch | None,
    *,
    mark_filler: bool,
) -> Iterator[Batch]:
    """The batches of some steps; `fixed` have shape (steps, batch size, ...), `ragged` steps * batch size rows."""
    batch_size = reads.block.shape[1]
    views = [torch.from_numpy(array).unbind(0) for array in fixed.values()]
    for number, position in enumerate(reads.positions(steps)):
        batch = Batch(zip(fixed, [tensors[number] for tensors in views], strict=True))
        if ragged is not None:
            rows = ragged.slice(number * batch_size, batch_size)
            batch.update(zip(rows.schema.names, map(_ragged, rows.columns), strict=True))
        if mark_filler:
            batch[FILLER_KEY] = torch.arange(batch_size) >= batch_size - reads.num_filler
        batch.position = position
        batch.num_filler = reads.num_filler
        yield batch


def _ragged(column: pa.Array) -> Ragged | list[Any]:  # Any: as the column's Python values
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or column.null_count or not _is_number(kind.value_type):
        return column.to_pylist()
    offsets = column.offsets.to_numpy().astype(np.int64)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if values.null_count:
        return column.to_pylist()
    # Copied: Arrow's memory is read-only and shared by the whole stretch of batches.
    array = np.array(values.to_numpy(zero_copy_only=False))
    return Ragged(torch.from_numpy(array), torch.from_numpy(offsets - offsets[0]))


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)

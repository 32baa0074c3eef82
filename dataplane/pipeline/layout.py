"""Which columns become tensors of fixed shape, and which are ragged."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# What to do about nulls that a tensor cannot hold.
NULLS_HINT = "fill them in preprocessing, or leave the column out with columns=[...]"


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedColumn:
    """A column whose every row has the same shape and a numeric type."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    """Of one row; () for a scalar."""

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape)

    def to_numpy(self, column: pa.Array) -> npt.NDArray[np.generic]:
        """The column's values, shape (rows, *shape). Nulls become NaN in floats and raise ValueError elsewhere."""
        num_rows = len(column)
        while pa.types.is_fixed_size_list(column.type):
            self._refuse_nulls(column)
            size = column.type.list_size
            # Not flatten(), which copies.
            column = column.values.slice(column.offset * size, len(column) * size)
        if not pa.types.is_floating(column.type):
            self._refuse_nulls(column)
        # Only nulls and bit-packed booleans are copied here.
        return column.to_numpy(zero_copy_only=False).reshape(num_rows, *self.shape)

    def _refuse_nulls(self, column: pa.Array) -> None:
        if column.null_count:
            raise ValueError(
                f"column {self.name!r} holds {column.null_count} nulls, which a tensor of {column.type} cannot; "
                f"{NULLS_HINT}"
            )


@dataclass(frozen=True, slots=True)
class Layout:
    """How the chosen columns of a schema travel."""

    fixed: tuple[FixedColumn, ...]
    ragged: tuple[str, ...]
    """Strings, binary, lists and everything else without a fixed shape."""

    @classmethod
    def of(cls, schema: pa.Schema, columns: Sequence[str] | None = None) -> "Layout":
        """Raises ValueError naming a column that the schema does not have."""
        names = schema.names if columns is None else list(columns)
        if unknown := [name for name in names if name not in schema.names]:
            raise ValueError(
                f"no column {', '.join(map(repr, unknown))} in the dataset; it has {', '.join(schema.names)}"
            )
        fixed = {name: _fixed(name, schema.field(name).type) for name in names}
        return cls(
            fixed=tuple(column for column in fixed.values() if column is not None),
            ragged=tuple(name for name, column in fixed.items() if column is None),
        )

    @property
    def names(self) -> tuple[str, ...]:
        return (*(column.name for column in self.fixed), *self.ragged)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's fixed columns."""
        return sum(column.row_bytes for column in self.fixed)


def is_number_list(kind: pa.DataType) -> bool:
    """Whether rows are lists of numbers of any length, which travel as `Ragged`."""
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_number(kind.value_type)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _fixed(name: str, kind: pa.DataType) -> FixedColumn | None:
    shape: list[int] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if not _is_number(kind):
        return None
    return FixedColumn(name=name, dtype=np.dtype(kind.to_pandas_dtype()), shape=tuple(shape))

"""Floats in fewer bits, with a bound of the error.

float16   |x' - x| <= 2^-11 |x|, and 2^-25 near zero; beyond 65,504 refused
bfloat16  |x' - x| <= 2^-8 |x|, of doubles after rounding to float32; kept as uint16, the upper half of a float32
int8      |x' - x| <= 0.501 scale, where x' = scale * int8; infinities and NaN refused
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from dataplane.errors import InputError
from preprocess.operations.base import NO_DROPS, Bound, Drops, Settings
from preprocess.operations.columns import Names
from preprocess.operations.refusals import require_columns

METADATA = b"dataplane.quantized"
"""Key in the metadata of a field, with `bfloat16`, `int8 row` or `int8 SCALE`."""

_TYPES = {"float16": pa.float16(), "bfloat16": pa.uint16(), "int8": pa.int8()}


class Quantize(Settings):
    """Keeps columns of floats, or of lists and tensors of floats, in fewer bits. Nulls and shapes stay."""

    name: ClassVar[str] = "quantize"
    shorthand: ClassVar[str | None] = None

    columns: Names
    to: Literal["float16", "bfloat16", "int8"]
    scale: Literal["row"] | Annotated[float, Field(gt=0, allow_inf_nan=False)] = "row"
    """Of int8: `row` makes the largest of each row 127 and writes the scale to a column `NAME_scale` (float32); a
    number is the scale of the whole column, and what it cannot hold is refused."""

    @model_validator(mode="after")
    def _scale_is_of_int8(self) -> "Quantize":
        if self.to != "int8" and self.scale != "row":
            raise ValueError(f"scale goes with int8, not with {self.to}")
        return self

    def bind(self, schema: pa.Schema) -> Bound:
        require_columns(self.columns, schema, self)
        for name in self.columns:
            field = schema.field(name)
            if not pa.types.is_floating(_leaf_type(field.type)):
                raise ValueError(f"{self}: column {name!r} is of type {field.type}, not of floats")
            if self._scaled_by_row and f"{name}_scale" in schema.names:
                raise ValueError(f"{self}: there is a column {name + '_scale'!r} already; rename it")
            place = schema.get_field_index(name)
            metadata = {**(field.metadata or {}), METADATA: self._said().encode()}
            made = pa.field(name, _with_leaf(field.type, _TYPES[self.to]), field.nullable, metadata)
            schema = schema.set(place, made)
        if self._scaled_by_row:
            for name in self.columns:
                schema = schema.append(pa.field(f"{name}_scale", pa.float32(), nullable=False))
        return _BoundQuantize(schema, self)

    @property
    def _scaled_by_row(self) -> bool:
        return self.to == "int8" and self.scale == "row"

    def _said(self) -> str:
        return f"int8 {self.scale}" if self.to == "int8" else self.to

    def quantized(self, column: pa.Array) -> tuple[pa.Array, npt.NDArray[np.float32]]:
        """The column in fewer bits, and the scale of each row. Raises _RefusedRowError for what does not fit."""
        leaf, counts = _leaves(column)
        values = pc.fill_null(leaf, pa.scalar(0.0, leaf.type)).to_numpy(zero_copy_only=False)
        scales = np.zeros(len(counts), np.float32)
        if self.to == "float16":
            with np.errstate(over="ignore"):
                made = values.astype(np.float16)
            self._require(
                np.isinf(made) <= np.isinf(values), values, counts, "is beyond float16, whose largest is 65504"
            )
        elif self.to == "bfloat16":
            made = to_bfloat16(values)
            overflown = np.isinf(from_bfloat16(made)) & ~np.isinf(values)
            self._require(~overflown, values, counts, "is beyond bfloat16, whose largest is 3.39e38")
        else:
            self._require(np.isfinite(values), values, counts, "is not finite, and int8 has no such value")
            if self.scale == "row":
                scales = _row_scales(values, counts)
                each = np.repeat(scales, counts)
            else:
                each = np.full(len(values), self.scale)
            wide = values.astype(np.float64)
            rounded = np.rint(np.divide(wide, each, out=np.zeros_like(wide), where=each > 0))
            self._require(np.abs(rounded) <= 127, values, counts, f"is beyond 127 times the scale {self.scale}")
            made = rounded.astype(np.int8)
        mask = leaf.is_null().to_numpy(zero_copy_only=False) if leaf.null_count else None
        return _rebuilt(column, pa.array(made, _TYPES[self.to], mask=mask)), scales

    def _require(
        self, fits: npt.NDArray[np.bool_], values: npt.NDArray[Any], counts: npt.NDArray[np.int64], message: str
    ) -> None:
        if not fits.all():
            place = int(np.argmin(fits))
            raise _RefusedRowError(int(np.searchsorted(np.cumsum(counts), place, side="right")), values[place], message)


class _RefusedRowError(Exception):
    def __init__(self, row: int, value: object, message: str) -> None:
        super().__init__(f"holds {value} in row {row} of the batch, which {message}")


@dataclass(frozen=True)
class _BoundQuantize:
    schema: pa.Schema
    _settings: Quantize

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Drops]:
        made: dict[str, pa.Array] = {}
        for name in self._settings.columns:
            try:
                column, scales = self._settings.quantized(batch.column(name))
            except _RefusedRowError as refusal:
                raise InputError(f"{self._settings}: column {name!r} {refusal}") from None
            made |= {name: column, f"{name}_scale": pa.array(scales)}
        columns = [made[name] if name in made else batch.column(name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), NO_DROPS


def to_bfloat16(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """The nearest bfloat16 of each float, ties to even, as the upper half of a float32; NaN stays NaN."""
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(values, np.float32)
    words = single.view(np.uint32)
    rounded = (words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (words >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(single), quiet, rounded).astype(np.uint16)


def from_bfloat16(words: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The floats that they stand for."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def dequantized(column: pa.Array, field: pa.Field, scales: pa.Array | None = None) -> pa.Array:
    """float32 again of a column that a `Quantize` made, by its field's metadata and the column of scales."""
    kind, _, scale = (field.metadata or {})[METADATA].decode().partition(" ")
    leaf, counts = _leaves(column)
    numbers = pc.fill_null(leaf.cast(pa.float32()) if kind == "float16" else leaf, 0).to_numpy(zero_copy_only=False)
    if kind == "float16":
        values = numbers
    elif kind == "bfloat16":
        values = from_bfloat16(numbers)
    else:
        each = np.repeat(scales.to_numpy(), counts) if scale == "row" and scales is not None else np.float64(scale)
        values = (numbers * each).astype(np.float32)
    mask = leaf.is_null().to_numpy(zero_copy_only=False) if leaf.null_count else None
    return _rebuilt(column, pa.array(values.astype(np.float32), mask=mask))


def _row_scales(values: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """The largest magnitude of each row / 127, rounded so that no value lies beyond 127 of it."""
    largest = np.zeros(len(counts))
    np.maximum.at(largest, np.repeat(np.arange(len(counts)), counts), np.abs(values.astype(np.float64)))
    scales = (largest / 127).astype(np.float32)
    # A scale below float32's smallest would make the row zeros.
    return np.where((scales == 0) & (largest > 0), np.finfo(np.float32).smallest_subnormal, scales)


def _is_nested(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _leaf_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind.value_type
    return _leaf_type(kind.value_type) if _is_nested(kind) else kind


def _with_leaf(kind: pa.DataType, leaf: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.fixed_shape_tensor(leaf, kind.shape, dim_names=kind.dim_names, permutation=kind.permutation)
    if not _is_nested(kind):
        return leaf
    item = kind.value_field.with_type(_with_leaf(kind.value_type, leaf))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)


def _leaves(column: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The numbers in a column, one after the other, and how many each row has."""
    if isinstance(column, pa.ExtensionArray):
        return _leaves(column.storage)
    if not _is_nested(column.type):
        return column, np.ones(len(column), np.int64)
    leaf, below = _leaves(column.flatten())
    lengths = _lengths(column)
    totals, ends = np.concatenate(([0], np.cumsum(below))), np.cumsum(lengths)
    return leaf, totals[ends] - totals[ends - lengths]


def _rebuilt(column: pa.Array, leaf: pa.Array) -> pa.Array:
    """The column with other numbers in it."""
    kind = _with_leaf(column.type, leaf.type)
    if isinstance(column, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, _rebuilt(column.storage, leaf))
    if not _is_nested(column.type):
        return leaf
    items = _rebuilt(column.flatten(), leaf)
    mask = column.is_null() if column.null_count else None
    if pa.types.is_fixed_size_list(column.type):
        if mask is not None:  # a null row has places too
            filled = np.repeat(column.is_valid().to_numpy(zero_copy_only=False), kind.list_size)
            places = np.cumsum(filled) - 1
            items = items.take(pa.array(places, mask=~filled)) if len(items) else pa.nulls(len(filled), items.type)
        if kind.list_size == 0:
            return pa.array([None if not ok else [] for ok in column.is_valid().to_pylist()], kind)
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=mask)
    offsets = np.concatenate(([0], np.cumsum(_lengths(column))))
    if pa.types.is_large_list(column.type):
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items, type=kind, mask=mask)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=kind, mask=mask)


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)

"""Columns as fields of a WebDataset sample: under which name each is kept, and as what bytes.

What webdataset's own decoder makes of a field goes by the last part of its name, so that decides here too: bytes stay
bytes under the column's name; strings are UTF-8 (`.txt`, unless the name says text already), numbers, structs and lists
of these JSON (`.json`; integers named like classes plain text), lists of numbers NumPy arrays (`.npy`).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

_TEXTS = frozenset(["txt", "text", "transcript", "json", "jsn"])
_INTEGERS = frozenset(["cls", "cls2", "index", "inx", "id"])
_JSON = frozenset(["json", "jsn"])

Value = bytes | memoryview | None
"""A field's bytes; None where a sample lacks the field."""


@dataclass(frozen=True, slots=True)
class Field:
    """How a column is kept."""

    column: str
    name: str
    """What follows the key and a dot in the member's name."""
    encode: Callable[[pa.Array], list[bytes | None]]
    """The field's bytes in each row; None for null. Raises ValueError for a value that it cannot keep."""
    decode: Callable[[Sequence[Value]], pa.Array]
    """The column again. Raises ValueError for other bytes."""


def field_of(field: pa.Field) -> Field:
    """Raises ValueError naming a column whose type a tar cannot keep."""
    kind, name = field.type, field.name
    ending = name.rpartition(".")[2]
    if _is_binary(kind):
        return Field(name, name, _bytes_of, partial(_binary, kind))
    if _is_text(kind):
        return Field(name, name if ending in _TEXTS else f"{name}.txt", _utf8_of, partial(_text, kind))
    if pa.types.is_integer(kind) and ending in _INTEGERS:
        return Field(name, name, _json_of, partial(_from_json, kind))
    if (shape := _array_shape(kind)) is not None:
        under = name if ending == "npy" else f"{name}.npy"
        return Field(name, under, partial(_npy_of, name, shape), partial(_from_npy, kind, shape))
    if _is_plain(kind):
        return Field(name, name if ending in _JSON else f"{name}.json", _json_of, partial(_from_json, kind))
    raise ValueError(
        f"column {name!r} has type {kind}; a tar keeps bytes, strings, numbers, and lists and structs of "
        "these; cast it, for example to a string, or write arrow"
    )


def _bytes_of(column: pa.Array) -> list[bytes | None]:
    return column.to_pylist()


def _utf8_of(column: pa.Array) -> list[bytes | None]:
    return column.cast(pa.large_binary()).to_pylist()


def _json_of(column: pa.Array) -> list[bytes | None]:
    return [
        None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        for value in _python_values(column)
    ]


def _npy_of(name: str, shape: tuple[int, ...], column: pa.Array) -> list[bytes | None]:
    return [None if row is None else _npy_bytes(row) for row in _numpy_rows(name, shape, column)]


def _npy_bytes(array: np.ndarray[Any, Any]) -> bytes:
    sink = BytesIO()
    np.lib.format.write_array(sink, array, allow_pickle=False)
    return sink.getvalue()


def _numpy_rows(name: str, shape: tuple[int, ...], column: pa.Array) -> list[np.ndarray[Any, Any] | None]:
    """Each row's numbers, shape (length, *shape) for lists of any length and `shape` for others; None for null."""
    rows: list[np.ndarray[Any, Any] | None] = []
    for number, present in enumerate(column.is_valid().to_pylist()):
        if not present:
            rows.append(None)
            continue
        inner = column.slice(number, 1).flatten()
        while pa.types.is_fixed_size_list(inner.type):
            if inner.null_count:
                break
            inner = inner.flatten()
        if inner.null_count:
            raise ValueError(
                f"column {name!r} holds a null within row {number} of its block, which .npy cannot; fill it"
            )
        values = np.ascontiguousarray(inner.to_numpy(zero_copy_only=False))
        rows.append(values.reshape(_row_shape(column.type, shape, len(values))))
    return rows


def _row_shape(kind: pa.DataType, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    if pa.types.is_fixed_size_list(kind):
        return shape
    return (count // int(np.prod(shape)), *shape)


def _binary(kind: pa.DataType, values: Sequence[Value]) -> pa.Array:
    return pa.array(values, kind)


def _text(kind: pa.DataType, values: Sequence[Value]) -> pa.Array:
    return pa.array([None if value is None else str(value, "utf-8") for value in values], kind)


def _from_json(kind: pa.DataType, values: Sequence[Value]) -> pa.Array:
    found = [None if value is None else json.loads(bytes(value)) for value in values]
    if pa.types.is_float16(kind):
        return pa.array([None if value is None else np.float16(value) for value in found], kind)
    return pa.array(found, kind)


def _from_npy(kind: pa.DataType, shape: tuple[int, ...], values: Sequence[Value]) -> pa.Array:
    number = _number_of(kind)
    dtype = np.dtype(number.to_pandas_dtype())
    is_fixed = pa.types.is_fixed_size_list(kind)
    absent = np.zeros(shape if is_fixed else (0, *shape), dtype)
    rows = []
    for value in values:
        row = absent if value is None else np.lib.format.read_array(BytesIO(value), allow_pickle=False)
        expected = shape if is_fixed else (len(row), *shape)
        if row.dtype != dtype or row.shape != expected:
            raise ValueError(f"an array of {row.dtype}, shape {row.shape}, expected {dtype}, {expected}")
        rows.append(row)
    flat = np.concatenate([row.reshape(-1) for row in rows]) if rows else np.empty(0, dtype)
    mask = pa.array([value is None for value in values], pa.bool_())
    return _nested(kind, pa.array(flat, number), [len(row) for row in rows] if not is_fixed else None, mask)


def _nested(kind: pa.DataType, flat: pa.Array, lengths: list[int] | None, mask: pa.Array | None) -> pa.Array:
    """The numbers as an array of a list type."""
    if pa.types.is_fixed_size_list(kind):
        inner = _nested(kind.value_type, flat, None, None)
        return pa.FixedSizeListArray.from_arrays(inner, type=kind, mask=mask)
    if lengths is None:
        return flat
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    is_large = pa.types.is_large_list(kind)
    make = pa.LargeListArray if is_large else pa.ListArray
    starts = pa.array(offsets, pa.int64() if is_large else pa.int32())
    return make.from_arrays(starts, _nested(kind.value_type, flat, None, None), type=kind, mask=mask)


def _array_shape(kind: pa.DataType) -> tuple[int, ...] | None:
    """The fixed part of the shape of a list of numbers; None for what is none, or is ragged further in."""
    if not (_is_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    shape = [kind.list_size] if pa.types.is_fixed_size_list(kind) else []
    kind = kind.value_type
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    # Of a size of 0 the values do not say how many there are.
    return tuple(shape) if _is_number(kind) and 0 not in shape else None


def _number_of(kind: pa.DataType) -> pa.DataType:
    while _is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _python_values(column: pa.Array) -> list[Any]:  # Any: JSON values
    if pa.types.is_float16(column.type):  # whose Python value JSON does not know
        return column.cast(pa.float32()).to_pylist()
    return column.to_pylist()


def _is_plain(kind: pa.DataType) -> bool:
    """Whether JSON gives every value back."""
    if pa.types.is_struct(kind):
        return all(_is_plain(child.type) and not pa.types.is_float16(child.type) for child in kind)
    if _is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type) and not pa.types.is_float16(kind.value_type)
    return _is_number(kind) or _is_text(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)

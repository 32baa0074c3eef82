"""Values to arrays of a type, exactly or not at all."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError)


def cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as another type. Raises ValueError or one of pyarrow's errors if one does not fit.

    Only floats may lose digits, to narrower ones.
    """
    if values.type == kind:
        return values
    found = values.cast(kind)
    if pa.types.is_string(values.type) and pa.types.is_floating(kind):
        if pc.any(pc.is_inf(found.filter(pc.match_substring_regex(values, "[0-9]")))).as_py():
            raise ValueError("a number is larger than any float")
    elif _num_infinite(found) != _num_infinite(values):
        raise ValueError("a number is larger than any float of this size")
    return found


def from_json(values: Sequence[Any], kind: pa.DataType) -> pa.Array:  # Any: what JSON holds
    """Values of JSON as a type: numbers as numbers, times and decimals from strings, binary from a string's UTF-8.

    Raises ValueError, TypeError or one of pyarrow's errors if a value does not fit.
    """
    natural = _natural(kind)
    _check_numbers(values, natural)
    return cast(pa.array(values, natural), kind)


def first_misfit(count: int, convert: Callable[[int], object]) -> int | None:
    """The number of the first of `count` values that cannot be converted on its own."""
    for number in range(count):
        try:
            convert(number)
        except _MISFITS:
            return number
    return None


def is_misfit(error: Exception) -> bool:
    """Whether an error says that a value is not of a type."""
    return isinstance(error, _MISFITS)


def _natural(kind: pa.DataType) -> pa.DataType:
    """The type of the same shape that JSON's own values have."""
    types = pa.types
    if types.is_temporal(kind) or types.is_decimal(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return pa.string()
    if types.is_fixed_size_binary(kind):
        return pa.string()
    if types.is_integer(kind):
        return pa.uint64() if kind == pa.uint64() else pa.int64()
    if types.is_floating(kind):
        return pa.float64()
    if types.is_struct(kind):
        return pa.struct([_natural_field(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(_natural(kind.key_type), _natural_field(kind.item_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_natural_field(kind.value_field), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_natural_field(kind.value_field))
    if types.is_list(kind):
        return pa.list_(_natural_field(kind.value_field))
    return kind


def _natural_field(field: pa.Field) -> pa.Field:
    return field.with_type(_natural(field.type))


def _check_numbers(values: Sequence[Any], kind: pa.DataType) -> None:  # Any: what JSON holds
    """Raises ValueError for what pyarrow takes in silence: booleans as floats, and floats as integers."""
    types = pa.types
    if types.is_floating(kind) and bool in set(map(type, values)):
        raise ValueError("a boolean is not a float")
    if types.is_integer(kind) and float in set(map(type, values)):
        if not all(value.is_integer() for value in values if type(value) is float):
            raise ValueError("a fraction is not an integer")
    elif types.is_struct(kind):
        rows = [value for value in values if type(value) is dict]
        for field in (kind.field(i) for i in range(kind.num_fields)):
            _check_numbers([row.get(field.name) for row in rows], field.type)
    elif types.is_map(kind):
        for value in values:
            if type(value) is dict:
                _check_numbers(list(value.values()), kind.item_type)
    elif types.is_nested(kind) and _has_numbers(kind):
        for value in values:
            if type(value) is list:
                _check_numbers(value, kind.value_type)


def _has_numbers(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_numbers(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)


def has_null(values: pa.Array, field: pa.Field) -> bool:
    """Whether a null is where the field, or one in it, has none."""
    if values.null_count and not field.nullable:
        return True
    kind = field.type
    inner = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    if all(child.nullable and not pa.types.is_nested(child.type) for child in inner):
        return False
    if pa.types.is_struct(kind):
        columns = values.drop_null().flatten()
        return any(has_null(column, child) for column, child in zip(columns, inner, strict=True))
    if pa.types.is_map(kind):
        return has_null(values.items, kind.item_field)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return has_null(values.flatten(), inner[0])
    return False


def _num_infinite(values: pa.Array) -> int:
    kind = values.type
    if pa.types.is_floating(kind):
        return int(pc.sum(pc.is_inf(values)).as_py() or 0)
    if pa.types.is_struct(kind):
        return sum(map(_num_infinite, values.flatten()))
    if pa.types.is_map(kind):
        return _num_infinite(values.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _num_infinite(values.flatten())
    return 0

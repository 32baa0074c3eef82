"""One schema for all rows of all inputs, found before anything is written.

A field that a row does not have is null in that row. A field without a null over the whole input is not nullable.
What one type cannot hold exactly is refused: integers and floats become doubles only while every integer is exact.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from dataplane.errors import InputError

# Arrow's IPC format nests 64 levels at most.
_MAX_DEPTH = 60
# Doubles hold every integer up to here.
_EXACT = 2**53

_KINDS = {bool: "boolean", int: "integer", float: "float", str: "string", list: "list", dict: "object"}
_SCALARS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_WIDENING = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    (pa.float16(), pa.float32(), pa.float64()),
)

Place = tuple[object, int]
"""File and line."""


class Survey:
    """The columns and types of rows, as they are added; `schema` at the end."""

    def __init__(self, columns: tuple[str, ...] | None = None, known: pa.Schema | None = None) -> None:
        """Only `columns` are looked at, if given. `known` says what the items of lists are that were all empty."""
        self._columns = columns
        self._known = known or pa.schema([])
        self._rows = _Seen("", 0)
        self._tables: list[tuple[pa.Schema, str]] = []
        self._names: dict[str, None] = {}  # a set that keeps order

    def wants(self, name: str) -> bool:
        return self._columns is None or name in self._columns

    def add_row(self, row: Mapping[str, Any], place: Place) -> None:  # Any: whatever JSON holds
        """Raises InputError if a value does not go with those before it in its column."""
        self._names |= dict.fromkeys(row)
        if self._columns is not None:
            row = {name: row[name] for name in self._columns if name in row}
        self._rows.add(row, place)

    def add_schema(self, schema: pa.Schema, where: str, all_names: Iterable[str] = ()) -> None:
        """Adds the rows of a whole file whose types and nulls are known."""
        self._tables.append((schema, where))
        self._names |= dict.fromkeys(all_names or schema.names)

    def schema(self) -> pa.Schema:
        """Columns in the order in which they were first seen, or in which they were asked for.

        Raises InputError if files disagree on a type, or if a column asked for was in none.
        """
        tables = list(self._tables)
        if self._rows.count:
            tables.insert(0, (pa.schema(self._rows.arrow_fields(list(self._known))), "the JSON inputs"))
        merged = tables[0][0] if tables else pa.schema([])
        for schema, where in tables[1:]:
            try:
                merged = merge_schemas(merged, schema)
            except TypeError as error:
                raise InputError(
                    f"{where}: {error} in the inputs before it; make them agree, or leave the column out with --columns"
                ) from None
        return self._selected(merged)

    def _selected(self, schema: pa.Schema) -> pa.Schema:
        if self._columns is None:
            return schema
        if missing := [name for name in self._columns if name not in self._names]:
            seen = ", ".join(self._names) or "none"
            raise InputError(f"no input has a column {missing[0]!r}; the columns are {seen}")
        return pa.schema([schema.field(name) for name in self._columns])


class _Seen:
    """What the values of one JSON field were so far."""

    __slots__ = ("_depth", "_fields", "_first", "_inexact", "_item", "_name", "_num_items", "count")

    def __init__(self, name: str, depth: int) -> None:
        """`name` is the field's path, for people."""
        self.count = 0  # values that are not null
        self._name = name
        self._depth = depth
        self._first: dict[type, Place] = {}
        self._inexact: Place | None = None  # the first integer that a double cannot hold
        self._fields: dict[str, _Seen] = {}
        self._item: _Seen | None = None
        self._num_items = 0

    def add(self, value: Any, place: Place) -> None:  # Any: whatever JSON holds
        if value is None:
            return
        self.count += 1
        kind = type(value)
        if kind is int and not -_EXACT <= value <= _EXACT:
            self._add_large(value, place)
        if kind not in self._first:
            self._first[kind] = place
            self._check_kinds(place)
        if kind is dict:
            for name, child in value.items():
                if name not in self._fields:
                    self._fields[name] = self._child(f"{self._name}.{name}" if self._name else name, place)
                self._fields[name].add(child, place)
        elif kind is list:
            if self._item is None:
                self._item = self._child(f"{self._name}[]", place)
            self._num_items += len(value)
            for child in value:
                self._item.add(child, place)

    def arrow_fields(self, known: list[pa.Field]) -> list[pa.Field]:
        """The fields of the objects seen; nullable where not every object has a value."""
        fields = {field.name: field for field in known}
        return [seen._arrow_field(name, self.count, fields.get(name)) for name, seen in self._fields.items()]

    def _arrow_field(self, name: str, num_slots: int, known: pa.Field | None) -> pa.Field:
        if not num_slots and known is not None:
            return known
        nullable = self.count < num_slots or not num_slots
        return pa.field(name, self._arrow_type(known.type if known else None), nullable)

    def _arrow_type(self, known: pa.DataType | None) -> pa.DataType:
        if not self._first:
            return pa.null()
        if dict in self._first:
            return pa.struct(self.arrow_fields(_fields_of(known)))
        if self._item is not None:
            item = known.value_field if known and pa.types.is_list(known) else None
            return pa.list_(self._item._arrow_field("item", self._num_items, item))
        return _SCALARS[float if float in self._first else next(iter(self._first))]

    def _child(self, name: str, place: Place) -> "_Seen":
        if self._depth >= _MAX_DEPTH:
            raise InputError(
                f"{_spoken(place)}: column {name.split('.')[0][:40]!r} is nested more than {_MAX_DEPTH} levels deep"
            )
        return _Seen(name, self._depth + 1)

    def _add_large(self, value: int, place: Place) -> None:
        if not -(2**63) <= value < 2**63:
            shown = str(value) if abs(value) < 10**30 else f"an integer of {value.bit_length()} bits"
            raise InputError(
                f"{_spoken(place)}: column {self._name!r} holds {shown}, outside of int64; "
                "make it a string or a float in the input"
            )
        if self._inexact is None:
            self._inexact = place
            self._check_kinds(place)

    def _check_kinds(self, place: Place) -> None:
        others = self._first.keys() - {type(None)}
        if others <= {int, float}:
            if self._inexact is not None and float in others:
                raise InputError(
                    f"{_spoken(place)}: column {self._name!r} has floats (first at {_spoken(self._first[float])}) and "
                    f"an integer that no float holds exactly (at {_spoken(self._inexact)}); make them one type"
                )
        elif len(others) > 1:
            (first, at), *_, (last, _) = self._first.items()
            raise InputError(
                f"{_spoken(place)}: column {self._name!r} is of type {_KINDS[last]}, "
                f"and of type {_KINDS[first]} at {_spoken(at)}; "
                "make them one type, or leave the column out with --columns"
            )


def merge_schemas(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The narrowest schema that holds all rows of both exactly. Raises TypeError naming a column if there is none."""
    return pa.schema(_merge_fields(list(one), list(other), ""))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type with dictionaries replaced by their values, and without metadata, at every level."""
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in _fields_of(kind)])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), _plain_field(kind.item_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field, "item"), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field, "item"))
    if types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field, "item"))
    return kind


def conform(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """The rows under a schema that was merged from theirs. Raises InputError if a null is where none should be."""
    columns = [
        _cast(batch.column(field.name), field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    require_filled(batch, where)
    return batch


def require_filled(batch: pa.RecordBatch, where: str) -> None:
    """Raises InputError if a column that is not nullable has nulls."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if column.null_count and not field.nullable:
            raise InputError(
                f"{where}: column {field.name!r} has nulls though a first look at the file found none; "
                "the file changed, or its statistics are wrong"
            )


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


def _plain_field(field: pa.Field, name: str | None = None) -> pa.Field:
    return pa.field(name or field.name, plain_type(field.type), field.nullable)


def _merge_fields(one: list[pa.Field], other: list[pa.Field], path: str) -> list[pa.Field]:
    theirs = {field.name: field for field in other}
    merged = [
        _merge_field(field, theirs.pop(field.name), path) if field.name in theirs else field.with_nullable(True)
        for field in one
    ]
    return merged + [field.with_nullable(True) for field in theirs.values()]


def _merge_field(one: pa.Field, other: pa.Field, path: str) -> pa.Field:
    name = f"{path}.{one.name}" if path else one.name
    return pa.field(one.name, _merge_types(one.type, other.type, name), one.nullable or other.nullable)


def _merge_types(one: pa.DataType, other: pa.DataType, name: str) -> pa.DataType:
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    for widening in _WIDENING:
        if one in widening and other in widening:
            return max(one, other, key=widening.index)
    if types.is_struct(one) and types.is_struct(other):
        return pa.struct(_merge_fields(_fields_of(one), _fields_of(other), name))
    if types.is_list(one) and types.is_list(other):
        return pa.list_(_merge_field(one.value_field, other.value_field, name))
    raise TypeError(f"column {name!r} is of type {other}, and of type {one}")


def _fields_of(kind: pa.DataType | None) -> list[pa.Field]:
    """The fields of a struct; none of another type."""
    return [kind.field(i) for i in range(kind.num_fields)] if kind and pa.types.is_struct(kind) else []


def _spoken(place: Place) -> str:
    file, line = place
    return f"{file}:{line}"

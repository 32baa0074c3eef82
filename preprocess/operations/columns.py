"""Which columns there are: chosen, renamed, cast, and made from others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from dataplane.errors import InputError
from preprocess.operations.base import NO_DROPS, Bound, Drops, Settings
from preprocess.operations.expressions import BoundExpression, Expression
from preprocess.operations.refusals import first_refused, reason_of, require_columns, shown
from preprocess.type_names import parse_type

Names = Annotated[tuple[str, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Columnwise:
    """Columns to other columns, row for row."""

    schema: pa.Schema
    make: Callable[[pa.RecordBatch], Sequence[pa.Array]]
    """The columns of the schema."""

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Drops]:
        return pa.RecordBatch.from_arrays(self.make(batch), schema=self.schema), NO_DROPS


class Select(Settings):
    """Keeps the columns named, in this order."""

    name: ClassVar[str] = "select"
    shorthand: ClassVar[str | None] = "columns"

    columns: Names

    @field_validator("columns")
    @classmethod
    def _each_once(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(columns)) < len(columns):
            raise ValueError(f"names a column twice: {', '.join(columns)}")
        return columns

    def bind(self, schema: pa.Schema) -> Bound:
        require_columns(self.columns, schema, self)
        chosen = pa.schema([schema.field(name) for name in self.columns])
        return Columnwise(chosen, lambda batch: [batch.column(name) for name in self.columns])


class Drop(Settings):
    """Keeps all columns but those named."""

    name: ClassVar[str] = "drop"
    shorthand: ClassVar[str | None] = "columns"

    columns: Names

    def bind(self, schema: pa.Schema) -> Bound:
        require_columns(self.columns, schema, self)
        kept = tuple(name for name in schema.names if name not in self.columns)
        if not kept:
            raise ValueError(f"{self}: no column would be left of {', '.join(schema.names)}")
        return Select(columns=kept).bind(schema)


class Rename(Settings):
    """Gives columns other names: old to new."""

    name: ClassVar[str] = "rename"
    shorthand: ClassVar[str | None] = "columns"

    columns: Annotated[Mapping[str, str], Field(min_length=1)]

    def bind(self, schema: pa.Schema) -> Bound:
        require_columns(self.columns, schema, self)
        names = [self.columns.get(name, name) for name in schema.names]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{self}: two columns would be named {name!r}")
        renamed = pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])
        return Columnwise(renamed, lambda batch: batch.columns)


class Cast(Settings):
    """Gives columns other types, if that loses no value: column to type.

    Floats may be rounded to the nearest of a narrower type; a number that would become infinite is refused, and so is
    a fraction cast to an integer, or 2 to a boolean. A zone of time is neither dropped nor assumed.
    """

    name: ClassVar[str] = "cast"
    shorthand: ClassVar[str | None] = "columns"

    columns: Annotated[Mapping[str, str], Field(min_length=1)]

    @field_validator("columns")
    @classmethod
    def _are_types(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        for kind in columns.values():
            parse_type(kind)
        return columns

    def bind(self, schema: pa.Schema) -> Bound:
        require_columns(self.columns, schema, self)
        kinds = {name: parse_type(text) for name, text in self.columns.items()}
        for name, kind in kinds.items():
            before = schema.field(name).type
            if pa.types.is_timestamp(before) and pa.types.is_timestamp(kind) and bool(before.tz) != bool(kind.tz):
                raise ValueError(
                    f"{self}: column {name!r} is of type {before}, {kind} has {'a' if kind.tz else 'no'} zone; "
                    "derive it by assume_timezone(t, timezone='UTC') or local_timestamp(t)"
                )
            try:
                pa.nulls(0, schema.field(name).type).cast(kind)
            except pa.ArrowException as error:
                raise ValueError(f"{self}: column {name!r}: {reason_of(error)}") from None
        fields = [field.with_type(kinds.get(field.name, field.type)) for field in schema]
        return Columnwise(pa.schema(fields), lambda batch: [_cast(batch, field) for field in fields])


class Derive(Settings):
    """Makes columns from others: name to expression. Each sees those before it; an existing column is replaced."""

    name: ClassVar[str] = "derive"
    shorthand: ClassVar[str | None] = "columns"

    columns: Annotated[Mapping[str, str], Field(min_length=1)]

    @field_validator("columns")
    @classmethod
    def _are_expressions(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        for text in columns.values():
            Expression(text)
        return columns

    def bind(self, schema: pa.Schema) -> Bound:
        steps: list[tuple[str, BoundExpression]] = []
        for name, text in self.columns.items():
            try:
                bound = Expression(text).bind(schema)
            except ValueError as error:
                raise ValueError(f"{self}: column {name!r}: {error}") from None
            if pa.types.is_null(bound.type):
                raise ValueError(f"{self}: column {name!r}: {text!r} is always null; cast it to a type")
            steps.append((name, bound))
            schema = _with_field(schema, pa.field(name, bound.type))
        return _Derived(schema, steps)


@dataclass(frozen=True)
class _Derived:
    schema: pa.Schema
    _steps: Sequence[tuple[str, BoundExpression]]

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Drops]:
        for name, expression in self._steps:
            column = expression(batch)
            place = batch.schema.get_field_index(name)
            if place < 0:
                batch = batch.append_column(name, column)
            else:
                batch = batch.set_column(place, pa.field(name, column.type), column)
        return batch.cast(self.schema) if batch.schema != self.schema else batch, NO_DROPS


def _with_field(schema: pa.Schema, field: pa.Field) -> pa.Schema:
    place = schema.get_field_index(field.name)
    return schema.append(field) if place < 0 else schema.set(place, field)


def _cast(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    column = batch.column(field.name)
    if column.type == field.type:
        return column
    try:
        return _cast_safely(column, field.type)
    except (pa.ArrowException, OverflowError):
        rows = batch.select([field.name])
        row, reason = first_refused(rows, lambda part: _cast_safely(part.column(0), field.type))
        raise InputError(
            f"cast: column {field.name!r} holds {shown(column[row].as_py())} in row {row} of the batch, "
            f"which is no {field.type}: {reason}"
        ) from None


def _cast_safely(column: pa.Array, kind: pa.DataType) -> pa.Array:
    made = column.cast(kind)
    if pa.types.is_floating(column.type) and pa.types.is_floating(kind):
        overflown = pc.and_(pc.is_inf(made), pc.is_finite(column))
        if pc.any(overflown).as_py():
            raise OverflowError(f"it is beyond the range of {kind}")
    # Arrow's safe cast lets numbers lose something on the way to booleans, and floats to decimals.
    to_bool = pa.types.is_boolean(kind) and not _is_text(column.type)
    to_decimal = pa.types.is_floating(column.type) and pa.types.is_decimal(kind)
    if (to_bool or to_decimal) and not pc.all(pc.equal(made.cast(column.type), column), min_count=0).as_py():
        raise OverflowError("it would not come back")
    return made


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)

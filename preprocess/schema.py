"""One schema for all rows of all inputs, found before anything is written.

A field that a row does not have is null in that row. A field without a null over the whole input is not nullable.
What one type cannot hold exactly is refused: integers and floats become doubles only while every integer is exact.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from dataplane.errors import InputError
from preprocess.seen import Place, Seen, Shift, fields_of, spoken
from preprocess.text_column import TextColumn
from preprocess.values import cast, first_misfit, has_null, is_misfit

_WIDENING = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    (pa.float16(), pa.float32(), pa.float64()),
)


class Survey:
    """The columns and types of rows, as they are added; `schema` at the end.

    Pieces of the inputs may be surveyed each on its own, anywhere: merged in the order of the inputs, the surveys say
    what one survey of everything says, and refuse what it refuses with the same words. To be kept or sent, a survey
    becomes JSON.
    """

    def __init__(self, columns: tuple[str, ...] | None = None, known: pa.Schema | None = None) -> None:
        """Only `columns` are looked at, if given. `known` says what the items of lists are that were all empty."""
        self._columns = columns
        self._known = known or pa.schema([])
        self._rows = Seen()
        self._num_rows = 0
        self._suspects: list[Seen] = []
        self._tables: dict[bytes, tuple[pa.Schema, str]] = {}  # by what they are, in order: each kind of table once
        self._texts: dict[str, TextColumn] = {}
        self._num_text_rows = 0
        self._beside_texts = pa.schema([])
        self._names: dict[str, None] = {}  # a set that keeps order
        self._file: str | None = None
        self._num_lines = 0  # of the file, in the pieces so far

    @property
    def is_refused(self) -> bool:
        """Whether `schema` will refuse the rows added so far; it is of no use to add more."""
        return bool(self._suspects) and self._refusal() is not None

    def wants(self, name: str) -> bool:
        return self._columns is None or name in self._columns

    def add_row(self, row: Mapping[str, Any], file: str, line: int) -> None:  # Any: whatever JSON holds
        """Adds a row of the piece that is being read, by its line in that piece, from 1."""
        self._names |= dict.fromkeys(row)
        if self._columns is not None:
            row = {name: row[name] for name in self._columns if name in row}
        if file == self._file:
            line += self._num_lines
        self._num_rows += 1
        self._rows.add(row, (self._num_rows, file, line), self._suspects)

    def add_lines(self, file: str, num_lines: int) -> None:
        """Ends a piece of so many lines; rows added from now on come after them."""
        self._num_lines = num_lines + (self._num_lines if file == self._file else 0)
        self._file = file

    def add_schema(self, schema: pa.Schema, where: str, all_names: Iterable[str] = ()) -> None:
        """Adds the rows of a whole file whose types and nulls are known."""
        self._tables.setdefault(schema.serialize().to_pybytes(), (schema, where))
        self._names |= dict.fromkeys(all_names or schema.names)

    def add_texts(
        self, columns: Mapping[str, TextColumn], num_rows: int, beside: pa.Schema, all_names: Iterable[str]
    ) -> None:
        """Adds rows of text, whose types follow from all such rows, with columns of known types beside them."""
        for name, column in columns.items():
            self._texts.setdefault(name, TextColumn()).merge(column)
        self._num_text_rows += num_rows
        self._beside_texts = merge_schemas(self._beside_texts, beside) if len(self._beside_texts) else beside
        self._names |= dict.fromkeys(all_names)

    def merge(self, other: "Survey") -> None:
        """Adds what another survey, with the same arguments, found in what comes next of the inputs."""
        if self.is_refused:
            return
        shift = Shift(num_rows=self._num_rows, file=self._file, num_lines=self._num_lines)
        self._rows.merge(other._rows, shift)
        self._suspects = [self._rows]
        self._num_rows += other._num_rows
        self._tables |= {key: table for key, table in other._tables.items() if key not in self._tables}
        if other._texts or other._beside_texts.names:
            self.add_texts(other._texts, other._num_text_rows, other._beside_texts, ())
        self._names |= other._names
        if other._file is not None:
            self.add_lines(other._file, other._num_lines)

    def schema(self) -> pa.Schema:
        """Columns in the order in which they were first seen, or in which they were asked for.

        Raises InputError if the rows of a column are of no one type, if files disagree on a type, or if a column asked
        for was in none.
        """
        if refusal := self._refusal():
            place, reason = refusal
            raise InputError(f"{spoken(place)}: {reason}")
        tables = list(self._tables.values())
        if self._texts or self._beside_texts.names:
            tables.insert(0, (self._text_schema(), "the CSV inputs"))
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

    def to_json(self) -> str:
        """All of it; equal for equal surveys."""
        saved = {
            "columns": self._columns,
            "known": _to_text(self._known),
            "rows": self._rows.to_dict(),
            "num_rows": self._num_rows,
            "tables": [[_to_text(schema), where] for schema, where in self._tables.values()],
            "texts": {name: column.to_dict() for name, column in self._texts.items()},
            "num_text_rows": self._num_text_rows,
            "beside_texts": _to_text(self._beside_texts),
            "names": list(self._names),
            "file": self._file,
            "num_lines": self._num_lines,
        }
        return json.dumps(saved, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Survey":
        """What `to_json` was made of."""
        saved = json.loads(text)
        survey = cls(None if saved["columns"] is None else tuple(saved["columns"]), _from_text(saved["known"]))
        survey._rows = Seen.from_dict(saved["rows"])
        survey._suspects = [survey._rows]
        survey._num_rows = saved["num_rows"]
        survey._names = dict.fromkeys(saved["names"])
        for schema, where in saved["tables"]:
            survey.add_schema(_from_text(schema), where, survey._names)
        survey._texts = {name: TextColumn(**column) for name, column in saved["texts"].items()}
        survey._num_text_rows = saved["num_text_rows"]
        survey._beside_texts = _from_text(saved["beside_texts"])
        survey._file = saved["file"]
        survey._num_lines = saved["num_lines"]
        return survey

    def _text_schema(self) -> pa.Schema:
        known = {field.name: field.type for field in self._known}
        texts = [column.arrow_field(name, self._num_text_rows, known.get(name)) for name, column in self._texts.items()]
        return pa.schema([*self._beside_texts, *texts])

    def _refusal(self) -> tuple[Place, str] | None:
        if not self._suspects:
            return None
        refusal = self._rows.refusal()
        if refusal is None:
            self._suspects.clear()
        return refusal

    def _selected(self, schema: pa.Schema) -> pa.Schema:
        if self._columns is None:
            return schema
        if missing := [name for name in self._columns if name not in self._names]:
            seen = ", ".join(self._names) or "none"
            raise InputError(f"no input has a column {missing[0]!r}; the columns are {seen}")
        return pa.schema([schema.field(name) for name in self._columns])


def merge_schemas(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The narrowest schema that holds all rows of both exactly. Raises TypeError naming a column if there is none."""
    return pa.schema(_merge_fields(list(one), list(other), ""))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type with dictionaries replaced by their values, extensions by their storage, and without metadata."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in fields_of(kind)])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), _plain_field(kind.item_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field, "item"), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field, "item"))
    if types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field, "item"))
    return kind


def plain_schema(schema: pa.Schema, where: str) -> pa.Schema:
    """The columns of a file by their plain types. Raises InputError if there are none, or two of one name."""
    if not schema.names:
        raise InputError(f"{where}: has no columns")
    if len(set(schema.names)) < len(schema.names):
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        raise InputError(f"{where}: has more than one column named {', '.join(twice)}; rename one")
    return pa.schema([pa.field(field.name, plain_type(field.type), field.nullable) for field in schema])


def conform(batch: pa.RecordBatch, schema: pa.Schema, where: str, *, first_row: int = 0) -> pa.RecordBatch:
    """The rows under another schema, null where it has more columns.

    Raises InputError naming the row, the first of which is `first_row`, if a value does not fit, or a null is where
    none should be.
    """
    columns = [
        _cast(batch.column(field.name), field, where, first_row)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    require_filled(batch, lambda row: f"{where}: row {first_row + row} (from 0)")
    return batch


def require_filled(batch: pa.RecordBatch, place: Callable[[int], str]) -> None:
    """Raises InputError if a column that is not nullable has nulls; `place` says where a row of the batch is."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if has_null(column, field):
            row = next(row for row in range(len(column)) if has_null(column.slice(row, 1), field))
            raise InputError(
                f"{place(row)}: column {field.name!r} is null, or holds a null, where its type excludes that; if no "
                "schema was given, the file changed since a first look at it, or its statistics are wrong"
            )


def _cast(column: pa.Array, field: pa.Field, where: str, first_row: int) -> pa.Array:
    try:
        return cast(column, field.type)
    except Exception as error:
        row = first_misfit(len(column), lambda row: cast(column.slice(row, 1), field.type))
        if row is None or not is_misfit(error):
            raise
        raise InputError(
            f"{where}: row {first_row + row} (from 0): column {field.name!r} holds {_shown(column[row])}, "
            f"which does not fit {field.type}"
        ) from None


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())[:100]
    except (ValueError, OverflowError):  # a time that Python does not have
        return str(value)[:100]


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
        return pa.struct(_merge_fields(fields_of(one), fields_of(other), name))
    if types.is_list(one) and types.is_list(other):
        return pa.list_(_merge_field(one.value_field, other.value_field, name))
    raise TypeError(f"column {name!r} is of type {other}, and of type {one}")


def _to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))

"""Rows changed or dropped by a function of the user, which gets and gives whole record batches.

How rows are cut into batches is no part of the recipe: a function has to treat each row by itself.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, JsonValue, field_validator

from dataplane.storage import digest_of
from preprocess.operations.base import NO_DROPS, Bound, Drops, Settings
from preprocess.operations.filters import kept
from preprocess.type_names import parse_type

Function = Callable[..., Any]  # Any: what a user's function takes and gives is checked when it is called


class _OfFunction(Settings):
    function: str
    """`module:function`; the module is importable where the run is."""
    arguments: Mapping[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of each call."""

    @field_validator("function")
    @classmethod
    def _names_function(cls, function: str) -> str:
        module, colon, attribute = function.partition(":")
        if not (colon and attribute and all(part.isidentifier() for part in module.split("."))):
            raise ValueError(f"must read module:function, got {function!r}")
        return function

    def __str__(self) -> str:
        return f"{self.name} {self.function}"

    def depends_on(self) -> Mapping[str, str]:
        """The digest of the file that holds the function. What that file imports is not looked at."""
        module = self.function.partition(":")[0]
        spec = _spec_of(module)
        path = Path(spec.origin) if spec is not None and spec.origin else None
        if path is None or not path.is_file():
            return {}
        return {f"module {module}": digest_of(path.read_bytes()).hex()}

    def _loaded(self) -> Function:
        module, _, attribute = self.function.partition(":")
        if _spec_of(module) is None:
            raise ValueError(f"{self}: there is no module {module!r} on the path of imports")
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            if not hasattr(found, name):
                raise ValueError(f"{self}: module {module!r} has no {attribute!r}")
            found = getattr(found, name)
        if not callable(found):
            raise ValueError(f"{self}: {attribute!r} is a {type(found).__name__}, not a function")
        return found


class MapFunction(_OfFunction):
    """Gives each record batch to the function, which gives back as many rows of any columns.

    A function that makes more or fewer rows gives a pair: the rows, and how many it dropped by reason.
    """

    name: ClassVar[str] = "map"
    shorthand: ClassVar[str | None] = "function"

    schema_: Mapping[str, str] | None = Field(None, alias="schema")
    """Columns and types of what the function gives; without it the function is called once without rows to see."""

    def bind(self, schema: pa.Schema) -> Bound:
        function = self._loaded()
        call = _Call(str(self), function, self.arguments)
        if self.schema_ is not None:
            given = pa.schema([(name, parse_type(text)) for name, text in self.schema_.items()])
        else:
            empty, _ = call.mapped(_empty(schema))
            given = pa.schema([field.with_nullable(True) for field in empty.schema])
        return _BoundMap(given, call)


class FilterFunction(_OfFunction):
    """Asks the function which rows to keep: it gives booleans, or reasons to drop a row and nulls to keep it."""

    name: ClassVar[str] = "filter_function"
    shorthand: ClassVar[str | None] = "function"

    reason: str | None = None
    """What rows are counted under for which the function gives no reason; by default the function's name."""

    def bind(self, schema: pa.Schema) -> Bound:
        return _BoundFilterFunction(
            schema, _Call(str(self), self._loaded(), self.arguments), self.reason or self.function
        )


@dataclass(frozen=True)
class _Call:
    what: str
    function: Function
    arguments: Mapping[str, JsonValue]

    def __call__(self, batch: pa.RecordBatch) -> Any:  # Any: whatever the function gives
        try:
            return self.function(batch, **self.arguments)
        except Exception as error:
            raise ValueError(
                f"{self.what}: raised {type(error).__name__} on a batch of {batch.num_rows} rows: {error}"
            ) from error

    def mapped(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Drops]:
        given = self(batch)
        drops: Drops = NO_DROPS
        counted = isinstance(given, tuple) and len(given) == 2
        if counted:
            given, drops = given[0], dict(given[1])
        if not isinstance(given, pa.RecordBatch):
            raise ValueError(f"{self.what}: must give a pyarrow.RecordBatch, gave {type(given).__name__}")
        if not counted and given.num_rows != batch.num_rows:
            raise ValueError(
                f"{self.what}: made {given.num_rows} rows of {batch.num_rows}; "
                "if that is meant, give a pair: the rows, and how many were dropped by reason"
            )
        return given, drops


@dataclass(frozen=True)
class _BoundMap:
    schema: pa.Schema
    _call: _Call

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Drops]:
        given, drops = self._call.mapped(batch)
        names, before = given.schema.names, self.schema.names
        if names != before:
            raise ValueError(f"{self._call.what}: gave columns {', '.join(names)}, before {', '.join(before)}")
        columns = []
        for field, column in zip(self.schema, given.columns, strict=True):
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowException as error:
                raise ValueError(
                    f"{self._call.what}: column {field.name!r} is of type {column.type}, before {field.type}: {error}; "
                    "say the types with `schema`"
                ) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), drops


@dataclass(frozen=True)
class _BoundFilterFunction:
    schema: pa.Schema
    _call: _Call
    _reason: str

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Drops]:
        given = self._array(self._call(batch))
        if len(given) != batch.num_rows:
            raise ValueError(f"{self._call.what}: gave {len(given)} answers for {batch.num_rows} rows")
        if pa.types.is_boolean(given.type):
            if given.null_count:
                raise ValueError(f"{self._call.what}: gave null, which is neither true nor false")
            return kept(batch, given, self._reason)
        rows = batch.filter(given.is_null())
        counts = pc.value_counts(given.drop_null()).to_pylist()
        return rows, {entry["values"]: entry["counts"] for entry in counts}

    def _array(self, given: Any) -> pa.Array:  # Any: whatever the function gives
        if isinstance(given, pa.ChunkedArray):
            given = given.combine_chunks()
        elif isinstance(given, np.ndarray | list):
            given = pa.array(given, pa.bool_() if len(given) == 0 else None)
        if not isinstance(given, pa.Array):
            raise ValueError(f"{self._call.what}: must give an array, gave {type(given).__name__}")
        if pa.types.is_null(given.type) or pa.types.is_large_string(given.type):
            given = given.cast(pa.string())
        if not (pa.types.is_boolean(given.type) or pa.types.is_string(given.type)):
            raise ValueError(f"{self._call.what}: must give booleans, or reasons and nulls, gave {given.type}")
        return given


def _spec_of(module: str) -> Any:  # Any: importlib's ModuleSpec
    try:
        return importlib.util.find_spec(module)
    except (ModuleNotFoundError, ValueError):
        return None


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)

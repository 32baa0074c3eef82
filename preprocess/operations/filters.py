"""Rows kept by an expression, the others counted by a reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import field_validator, model_validator

from preprocess.operations.base import NO_DROPS, Bound, Drops, Settings
from preprocess.operations.expressions import BoundExpression, Expression


class Filter(Settings):
    """Keeps the rows where the expression is true; where it is false or null they are dropped."""

    name: ClassVar[str] = "filter"
    shorthand: ClassVar[str | None] = "where"

    where: str
    reason: str = ""
    """What the report counts the dropped rows under; by default the expression."""

    @field_validator("where")
    @classmethod
    def _is_expression(cls, where: str) -> str:
        Expression(where)
        return where

    @model_validator(mode="before")
    @classmethod
    def _has_reason(cls, values: Any) -> Any:  # Any: whatever a recipe holds
        if isinstance(values, Mapping) and isinstance(where := values.get("where"), str) and not values.get("reason"):
            return {**values, "reason": f"not {where}"}
        return values

    def bind(self, schema: pa.Schema) -> Bound:
        try:
            where = Expression(self.where).bind(schema)
        except ValueError as error:
            raise ValueError(f"{self}: {error}") from None
        if not pa.types.is_boolean(where.type):
            raise ValueError(f"{self}: {self.where!r} is of type {where.type}, not a condition")
        require_filterable(schema, self)
        return _BoundFilter(schema, where, self.reason)


@dataclass(frozen=True)
class _BoundFilter:
    schema: pa.Schema
    _where: BoundExpression
    _reason: str

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Drops]:
        return kept(batch, pc.fill_null(self._where(batch), False), self._reason)


def kept(batch: pa.RecordBatch, mask: pa.BooleanArray, reason: str) -> tuple[pa.RecordBatch, Drops]:
    """The rows where the mask is true, and the number of others under the reason."""
    rows = batch.filter(mask)
    if rows.num_rows == batch.num_rows:
        return batch, NO_DROPS
    return rows, {reason: batch.num_rows - rows.num_rows}


def require_filterable(schema: pa.Schema, operation: object) -> None:
    """Raises ValueError for a column of a type that Arrow cannot leave rows out of."""
    for field in schema:
        try:
            pa.nulls(1, field.type).filter(pa.array([True]))
        except pa.ArrowException:
            raise ValueError(
                f"{operation}: column {field.name!r} is of type {field.type}, which Arrow cannot filter; cast it first"
            ) from None

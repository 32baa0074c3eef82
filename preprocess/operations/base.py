"""What an operation is: a value of the recipe, and what it becomes where it runs.

Most operations look at one row at a time and are composed by a `Pipeline`. A `GlobalFilter` looks at all rows: first
its keys are computed wherever the rows are, then one place decides which rows stay.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

Drops = Mapping[str, int]
"""Rows dropped, by reason."""

NO_DROPS: Drops = {}


class Settings(BaseModel):
    """A frozen value of the recipe: picklable, made of JSON values, equal if its settings are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str]
    """What the recipe calls the operation."""
    shorthand: ClassVar[str | None] = None
    """The setting that a recipe may give alone, without its name: `select: [a, b]`."""

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict(), sort_keys=True))

    def to_dict(self) -> dict[str, Any]:  # Any: as JSON
        """The operation as a recipe has it, every setting spelled out."""
        return {self.name: self.model_dump(mode="json", by_alias=True)}

    def depends_on(self) -> Mapping[str, str]:
        """Digests of what decides the rows beside the settings, such as the text of a user's function."""
        return {}


class Bound(Protocol):
    """An operation opened for rows of one schema, in the process that runs it."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows it gives."""
        ...

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Drops]:
        """The rows that come of the batch, in order, and those dropped.

        Raises InputError for a row that it cannot take, naming the operation, the column and the row of the batch.
        """
        ...


class Operation(Protocol):
    """Rows to rows, whatever batches they come in."""

    def bind(self, schema: pa.Schema) -> Bound:
        """Raises ValueError, naming the operation and the column, if rows of the schema are not what it needs."""
        ...

    def to_dict(self) -> dict[str, Any]:  # Any: as JSON
        ...

    def depends_on(self) -> Mapping[str, str]: ...


class BoundKeys(Protocol):
    """The first pass of a global filter, opened for rows of one schema."""

    @property
    def schema(self) -> pa.Schema:
        """Of the keys; all of them have a fixed width."""
        ...

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One row of keys for each row."""
        ...


@runtime_checkable
class GlobalFilter(Protocol):
    """Removes rows by looking at all rows; never changes one."""

    @property
    def reason(self) -> str:
        """Why rows are dropped."""
        ...

    def bind(self, schema: pa.Schema) -> BoundKeys:
        """Raises ValueError, naming the operation and the column, if rows of the schema are not what it needs."""
        ...

    def keep(self, parts: Sequence[Callable[[], pa.Table]]) -> Iterator[npt.NDArray[np.bool_]]:
        """Which rows stay, part after part, in input order. Of rows that are equal the first one stays.

        `parts` give the keys of consecutive rows; each may be called more than once.
        """
        ...

    def to_dict(self) -> dict[str, Any]:  # Any: as JSON
        ...

    def depends_on(self) -> Mapping[str, str]: ...


AnyOperation = Operation | GlobalFilter


@dataclass(frozen=True)
class Pipeline:
    """Plain operations one after the other, as one."""

    operations: tuple[Operation, ...]

    def bind(self, schema: pa.Schema) -> Bound:
        """Raises ValueError as the operations do."""
        bound: list[Bound] = []
        for operation in self.operations:
            bound.append(operation.bind(schema))
            schema = bound[-1].schema
        return _BoundPipeline(schema, bound)


@dataclass(frozen=True)
class _BoundPipeline:
    schema: pa.Schema
    _steps: Sequence[Bound]

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Drops]:
        drops: dict[str, int] = {}
        for step in self._steps:
            batch, dropped = step(batch)
            for reason, count in dropped.items():
                drops[reason] = drops.get(reason, 0) + count
        return batch, drops


def stages(operations: Sequence[AnyOperation]) -> list[Pipeline | GlobalFilter]:
    """The operations in order, plain ones that follow each other joined."""
    found: list[Pipeline | GlobalFilter] = []
    for operation in operations:
        if isinstance(operation, GlobalFilter):
            found.append(operation)
        elif found and isinstance(found[-1], Pipeline):
            found[-1] = Pipeline((*found[-1].operations, operation))
        else:
            found.append(Pipeline((operation,)))
    return found

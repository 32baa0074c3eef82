"""Which row of a batch a native call refused: Arrow's errors name a value at best."""

from collections.abc import Callable, Iterable

import pyarrow as pa


def first_refused(batch: pa.RecordBatch, attempt: Callable[[pa.RecordBatch], object]) -> int:
    """The first row that makes `attempt` fail, given that it fails on the batch."""
    start, stop = 0, batch.num_rows
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            attempt(batch.slice(start, middle - start))
        except (pa.ArrowException, OverflowError):
            stop = middle
        else:
            start = middle
    return start


def shown(value: object) -> str:
    """A value for people, in one short line."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def reason_of(error: Exception) -> str:
    """The first line of an error, without what Arrow adds for its developers."""
    return str(error).split("\n", 1)[0].strip().strip("'\"") or type(error).__name__


def require_columns(names: Iterable[str], schema: pa.Schema, operation: object) -> None:
    """Raises ValueError if rows of the schema lack one of the columns."""
    for name in names:
        if name not in schema.names:
            raise ValueError(
                f"{operation}: there is no column {name!r}; the columns are {', '.join(schema.names) or 'none'}"
            )

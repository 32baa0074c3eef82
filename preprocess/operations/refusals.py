"""Which row of a batch a native call refused: Arrow's errors name a value at best."""

from collections.abc import Callable, Iterable

import pyarrow as pa

_REFUSALS = (pa.ArrowException, OverflowError)


def first_refused(batch: pa.RecordBatch, attempt: Callable[[pa.RecordBatch], object]) -> tuple[int, str]:
    """The first row that makes `attempt` fail, given that it fails on the batch, and why it does."""
    start, stop = 0, batch.num_rows
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            attempt(batch.slice(start, middle - start))
        except _REFUSALS:
            stop = middle
        else:
            start = middle
    try:
        attempt(batch.slice(start, 1))
    except _REFUSALS as error:
        return start, reason_of(error)
    raise AssertionError("a batch was refused whose rows are not")


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

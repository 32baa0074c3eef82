"""Documents in lists that are worth a call of the tokenizer."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from dataplane.errors import InputError
from preprocess.sources.input_file import InputFile

# About a quarter of a second of one core's work: enough to fill all cores, little to hold.
_CHARACTERS = 1 << 20
_DOCUMENTS = 8192


def grouped(documents: Iterable[str]) -> Iterator[list[str]]:
    """Lists of at most a million characters; a longer document is a list of its own."""
    group: list[str] = []
    characters = 0
    for document in documents:
        if group and (characters + len(document) > _CHARACTERS or len(group) >= _DOCUMENTS):
            yield group
            group, characters = [], 0
        group.append(document)
        characters += len(document)
    if group:
        yield group


def check_text_column(schema: pa.Schema, column: str, file: InputFile) -> None:
    """Raises InputError if the table has no such column of strings."""
    if column not in schema.names:
        columns = ", ".join(schema.names)
        raise InputError(f"{file}: has no column {column!r}; its columns are {columns}, choose one with --text-column")
    kind = schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(f"{file}: column {column!r} is of type {kind}, not string")


def strings_of(batches: Iterable[pa.RecordBatch], column: str, file: InputFile, *, first_row: int = 0) -> Iterator[str]:
    """The strings of the only column of record batches. Raises InputError at a null."""
    row = first_row
    for batch in batches:
        texts = batch.column(0)
        if texts.null_count:
            place = row + texts.to_pylist().index(None)
            raise InputError(f"{file}: column {column!r} is null in row {place} (from 0)")
        row += len(texts)
        yield from texts.to_pylist()

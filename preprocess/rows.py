"""Rows as they are: found out in a first pass, written in a second."""

from collections.abc import Iterator

import pyarrow as pa

from dataplane.catalog import Dataset, parent_for
from dataplane.errors import InputError
from preprocess.blocks import cut_blocks
from preprocess.corpus import Corpus
from preprocess.schema import Survey, merge_schemas


class RowsJob:
    """Keeps the rows, under one schema for all of them."""

    num_passes = 2

    def __init__(
        self,
        corpus: Corpus,
        *,
        columns: tuple[str, ...] | None,
        block_bytes: int,
        base: Dataset | None,
    ) -> None:
        self._corpus = corpus
        self._columns = columns
        self._block_bytes = block_bytes
        self._base = base
        self._schema: pa.Schema | None = None

    def schema(self) -> pa.Schema:
        if self._schema is None:
            survey = Survey(self._columns, self._base.schema if self._base else None)
            for piece, reader in self._corpus.pieces():
                reader.survey(piece, survey)
            found = survey.schema()
            self._schema = extended_schema(self._base, found) if self._base else found
        return self._schema

    def blocks(self) -> Iterator[pa.RecordBatch]:
        for block in cut_blocks(self._batches(), self._block_bytes):
            self._corpus.metrics.add(documents=block.num_rows)
            yield block

    def metadata(self) -> dict[str, str]:
        return {}

    def _batches(self) -> Iterator[pa.RecordBatch]:
        schema = self.schema()
        for piece, reader in self._corpus.pieces():
            for batch in reader.batches(piece, schema):
                if not schema.names:
                    raise InputError(f"{piece.file}: its rows have no columns")
                yield batch


def extended_schema(base: Dataset, found: pa.Schema) -> pa.Schema:
    """The dataset's own schema, if it can hold rows of the one found. Raises ValueError if it cannot."""
    try:
        if merge_schemas(base.schema, found) == base.schema:
            return base.schema
    except TypeError:
        pass  # said in full below
    parent_for(base, found)
    return base.schema

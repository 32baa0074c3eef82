"""What becomes of rows in the end: blocks of rows as they are, or blocks of packed tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from dataplane.catalog import Shard, ShardWriter
from dataplane.errors import InputError
from dataplane.metrics import Metrics
from preprocess.blocks import BlockCutter
from preprocess.packing import AnyPacker, open_packer, with_end_token
from preprocess.recipe import Packing
from preprocess.report import DROPPED
from preprocess.schema import conform
from preprocess.steps.job import Job
from preprocess.tokenizer import Vocabulary, load_vocabulary

# Tasks of one writing have ids in ranges of so many rows.
IDS_OF_A_TASK = 1 << 32


class Sink(Protocol):
    """Takes the rows of a task for one output. Counts `documents`, `rows` and `raw_bytes`."""

    def add(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> Sequence[Shard]:
        """What was written, once all of it is durable."""
        ...


class Sinks:
    """Opens a sink for each task and output."""

    def __init__(self, job: Job, metrics: Metrics) -> None:
        assert job.block_schema is not None
        self._job = job
        self._schema = job.block_schema.value
        self._metrics = metrics
        self._vocabulary = vocabulary_of(job)

    def open(self, output: str, task: int) -> "RowSink | TokenSink":
        """An empty one."""
        recipe = self._job.recipe
        writer = ShardWriter(self._job.store(output), self._schema, recipe.encoding)
        written = _Written(writer, self._metrics)
        if recipe.packing is None:
            return RowSink(written, self._schema, recipe.block_bytes)
        assert self._vocabulary is not None
        first_id = (self._job.first_task + task) * IDS_OF_A_TASK
        packer = open_packer(recipe.packing.mode, self._schema, block_bytes=recipe.block_bytes, first_id=first_id)
        return TokenSink(written, packer, self._vocabulary, recipe.packing, text_column=recipe.reading.text_column)


class RowSink:
    """Keeps the rows."""

    def __init__(self, written: "_Written", schema: pa.Schema, block_bytes: int) -> None:
        self._written = written
        self._schema = schema
        self._cutter = BlockCutter(block_bytes)

    def add(self, batch: pa.RecordBatch) -> None:
        self._written.metrics.add(documents=batch.num_rows)
        batch = conform(batch, self._schema, "rows to append")
        for block in self._cutter.add(batch):
            self._written.add(block)

    def finish(self) -> Sequence[Shard]:
        for block in self._cutter.finish():
            self._written.add(block)
        return self._written.finish()


class TokenSink:
    """Tokenises the text column and packs it. Documents without a token are dropped and counted."""

    def __init__(
        self, written: "_Written", packer: AnyPacker, vocabulary: Vocabulary, packing: Packing, *, text_column: str
    ) -> None:
        self._written = written
        self._packer = packer
        self._vocabulary = vocabulary
        self._text_column = text_column
        self._end = None if packing.eos_token is None else vocabulary.id_of(packing.eos_token)

    def add(self, batch: pa.RecordBatch) -> None:
        texts = batch.column(self._text_column)
        if texts.null_count:
            row = pc.index(pc.is_null(texts), True).as_py()
            raise InputError(
                f"column {self._text_column!r} is null in row {row} of a batch; drop such rows by a filter"
            )
        self.add_texts(texts.to_pylist())

    def add_texts(self, texts: list[str]) -> None:
        """Takes documents."""
        tokens, lengths = self._vocabulary.encode(texts)
        filled = lengths[lengths > 0]
        metrics = self._written.metrics
        if len(filled) < len(lengths):
            metrics.add(**{f"{DROPPED}no tokens": len(lengths) - len(filled)})
        if self._end is not None:
            tokens, filled = with_end_token(tokens, filled, self._end)
        metrics.add(documents=len(filled), tokens=len(tokens))
        for block in self._packer.add(tokens, filled):
            self._written.add(block)

    def finish(self) -> Sequence[Shard]:
        for block in self._packer.finish():
            self._written.add(block)
        return self._written.finish()


class _Written:
    """Blocks on their way into shards, counted."""

    def __init__(self, writer: ShardWriter, metrics: Metrics) -> None:
        self._writer = writer
        self.metrics = metrics

    def add(self, block: pa.RecordBatch) -> None:
        before = self._writer.num_bytes
        self._writer.write(block)
        self.metrics.add(
            rows=block.num_rows, raw_bytes=block.nbytes, written_bytes=self._writer.num_bytes - before, blocks=1
        )

    def finish(self) -> Sequence[Shard]:
        return self._writer.finish()


def vocabulary_of(job: Job) -> Vocabulary | None:
    """The tokenizer of the recipe, if it packs."""
    packing = job.recipe.packing
    if packing is None:
        return None
    return load_vocabulary(
        packing.tokenizer,
        job.storage_options,
        split_pattern=packing.split_pattern,
        special_tokens=packing.special_tokens,
    )


def check_text(schema: pa.Schema, column: str) -> None:
    """Raises ValueError if rows of the schema have no such column of texts."""
    if column not in schema.names:
        raise ValueError(
            f"after the recipe's operations there is no column {column!r} to tokenise; "
            f"the columns are {', '.join(schema.names)}, choose one with --text-column"
        )
    kind = schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError(f"column {column!r} is of type {kind}, not string; it cannot be tokenised")


def shards_json(shards: Mapping[str, Sequence[Shard]]) -> dict[str, Any]:  # Any: JSON
    """What a task's outcome says of the shards of each output."""
    return {output: [shard.to_json() for shard in each] for output, each in shards.items()}

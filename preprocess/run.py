"""The whole way from sources to a committed version."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dataplane.catalog import (
    Dataset,
    DatasetVersion,
    DatasetWriter,
    open_dataset,
    refuse_existing,
)
from dataplane.errors import InputError
from dataplane.metrics import Metrics
from dataplane.storage import open_store
from preprocess.corpus import Corpus, Job
from preprocess.progress import Display, Show, silent
from preprocess.recipe import Recipe
from preprocess.report import Report
from preprocess.rows import RowsJob
from preprocess.sources import Inputs, find_inputs
from preprocess.tokenizer import load_vocabulary
from preprocess.tokens import TokensJob

_DROPPED = "dropped_"


def preprocess(
    sources: Sequence[str],
    destination: str,
    recipe: Recipe = Recipe(),  # noqa: B008  # frozen
    *,
    append: bool = False,
    storage_options: Mapping[str, Any] | None = None,  # Any: as the stores' own options
    show: Show = silent,
) -> Report:
    """Writes all records of the sources, in order, and commits them as the next version.

    Equal inputs and recipes make byte-identical datasets. Nothing is visible until the version is
    committed; an error or an interruption leaves the dataset as it was. `append` adds the rows after
    those of the newest version.

    Raises:
        InputError: a source is missing or is not what it claims to be, or all of them have no rows.
        DatasetExistsError: there is a version already and `append` was not asked for.
        DatasetNotFoundError: `append` was asked for and there is no version.
        ValueError: the recipe does not go with the inputs, or with the dataset to append to.
        StoreError: a store cannot be reached, or refuses.
    """
    start = time.perf_counter()
    store = open_store(destination, storage_options)
    base = open_dataset(destination, storage_options=storage_options) if append else None
    if base is None:
        refuse_existing(store)
    inputs = find_inputs(sources, format=recipe.reading.format, storage_options=storage_options)
    meter = _Meter()
    job = _job_for(recipe, Corpus(inputs, recipe.reading, meter), base, storage_options)
    with show("preprocess", inputs.num_bytes * job.num_passes) as display:
        meter.display = display
        meter.writer = writer = DatasetWriter(store, job.schema(), recipe.encoding)
        for block in job.blocks():
            writer.write(block)
            meter.add(rows=block.num_rows, raw_bytes=block.nbytes)
        if not meter.snapshot().get("rows"):
            raise InputError(f"nothing to write: {_described(inputs)} without a row in them")
    version = writer.commit(metadata=job.metadata(), parent=base.version if base else None)
    seconds = time.perf_counter() - start
    return _report(destination, inputs, meter.snapshot(), version, base, seconds)


class _Meter(Metrics):
    """Counts, and shows the counts as they grow."""

    display: Display | None = None
    writer: DatasetWriter | None = None

    def add(self, **amounts: float) -> None:
        super().add(**amounts)
        if self.display is not None:
            self.display.update(int(self.snapshot().get("input_bytes", 0)), self._note)

    def _note(self) -> str:
        counts = self.snapshot()
        if self.writer is None or not self.writer.num_bytes:
            return "finding the columns" if self.writer is None else "no rows yet"
        ratio = counts.get("raw_bytes", 0) / self.writer.num_bytes
        return f"{int(counts.get('rows', 0)):,} rows, ratio {ratio:.2f}"


def _job_for(
    recipe: Recipe,
    corpus: Corpus,
    base: Dataset | None,
    storage_options: Mapping[str, Any] | None,  # Any: as the stores' own options
) -> Job:
    if recipe.packing is None:
        return RowsJob(corpus, columns=recipe.columns, block_bytes=recipe.block_bytes, base=base)
    return TokensJob(
        corpus,
        load_vocabulary(recipe.packing.tokenizer, storage_options),
        recipe.packing,
        text_column=recipe.reading.text_column,
        block_bytes=recipe.block_bytes,
        base=base,
    )


def _report(
    destination: str,
    inputs: Inputs,
    counts: Mapping[str, float],
    version: DatasetVersion,
    base: Dataset | None,
    seconds: float,
) -> Report:
    before = base.version if base else None
    return Report(
        destination=destination,
        version=version.number,
        input_files=len(inputs.files) + inputs.num_empty,
        empty_files=inputs.num_empty,
        hidden_files=inputs.num_hidden,
        input_bytes=inputs.num_bytes,
        documents=int(counts["documents"]),
        dropped={
            name.removeprefix(_DROPPED).replace("_", " "): int(count)
            for name, count in sorted(counts.items())
            if name.startswith(_DROPPED)
        },
        tokens=int(counts.get("tokens", 0)),
        rows=version.num_rows - (before.num_rows if before else 0),
        blocks=version.num_blocks - (before.num_blocks if before else 0),
        shards=version.num_shards - (before.num_shards if before else 0),
        raw_bytes=version.raw_bytes - (before.raw_bytes if before else 0),
        compressed_bytes=version.num_bytes - (before.num_bytes if before else 0),
        seconds=round(seconds, 3),
    )


def _described(inputs: Inputs) -> str:
    empty = f" and {inputs.num_empty} empty ones" if inputs.num_empty else ""
    return f"{len(inputs.files)} inputs{empty}"

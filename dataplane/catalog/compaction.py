"""Compaction: runs of small shards become full ones, with the same rows in the same order, as a new version."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa

from dataplane.catalog.commit import put_version, write_index
from dataplane.catalog.dataset import Dataset, list_versions, open_dataset, open_version, read_blocks
from dataplane.catalog.encoding import BLOCK_BYTES, Encoding
from dataplane.catalog.shards import ShardWriter
from dataplane.catalog.version import DatasetVersion
from dataplane.errors import CorruptBlockError, VersionConflictError
from dataplane.plan import Block, BlockIndex
from dataplane.storage import digest_of

# A shard of at least this part of a full one is left alone.
_FULL = 0.5


def compact(
    url: str,
    *,
    encoding: Encoding = Encoding(),  # noqa: B008  # frozen
    block_bytes: int = BLOCK_BYTES,
    storage_options: Mapping[str, Any] | None = None,  # Any: the store's own
) -> DatasetVersion | None:
    """Commits a version whose runs of small shards are merged into full ones; None where there is no such run.

    A shard is small below half of `encoding.shard_bytes`. Blocks of small shards are joined while their rows take no
    more than `block_bytes` in memory, and encoded anew. What was written is read again from the store and compared with
    what it was made of before anything is committed. Equal versions make equal ones. Memory holds one shard and a few
    blocks. The old shards stay for the versions that name them, until garbage is collected. What others append
    meanwhile is kept.

    Raises:
        CorruptBlockError: a block is damaged, before or after; nothing is committed then.
        VersionConflictError: another writer did more than append meanwhile; then nothing changed.
    """
    dataset = open_dataset(url, storage_options=storage_options)
    encoding = replace(encoding, format=dataset.version.block_format)
    runs = small_runs(dataset.index, shard_bytes=encoding.shard_bytes)
    if not any(run.is_small for run in runs):
        return None
    blocks: list[Block] = []
    for run in runs:
        if run.is_small:
            blocks += _merged(dataset, run.blocks, encoding, block_bytes)
        else:
            blocks += [dataset.index[number] for number in run.blocks]
    return _commit(dataset, BlockIndex.from_blocks(blocks))


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring blocks of an index."""

    blocks: range
    is_small: bool
    """Whether they are of two or more small shards, which are worth merging."""


def small_runs(index: BlockIndex, *, shard_bytes: int) -> list[Run]:
    """The index cut into runs, which follow each other."""
    shards: list[tuple[range, bool]] = []
    start = 0
    for _, group in groupby(index.shard.tolist()):
        stop = start + len(list(group))
        size = int(index.num_bytes[start:stop].sum())
        shards.append((range(start, stop), size < _FULL * shard_bytes))
        start = stop
    runs: list[Run] = []
    for are_small, members in groupby(shards, key=lambda shard: shard[1]):
        spans = [span for span, _ in members]
        runs.append(Run(range(spans[0].start, spans[-1].stop), are_small and len(spans) > 1))
    return runs


def joined_blocks(blocks: range, raw_bytes: Sequence[int], *, block_bytes: int) -> Iterator[range]:
    """Neighbouring blocks whose rows fit together in `block_bytes`; a larger block stands alone."""
    start, size = blocks.start, 0
    for number in blocks:
        if number > start and size + raw_bytes[number] > block_bytes:
            yield range(start, number)
            start, size = number, 0
        size += raw_bytes[number]
    if blocks:
        yield range(start, blocks.stop)


def _merged(dataset: Dataset, blocks: range, encoding: Encoding, block_bytes: int) -> list[Block]:
    """New blocks with the same rows, in new shards."""
    first_row = int(dataset.index.num_rows[: blocks.start].sum())
    writer = ShardWriter(dataset.store, dataset.schema, encoding, first_row=first_row)
    batches = dataset.read_blocks(blocks)
    contents: list[bytes] = []
    for joined in joined_blocks(blocks, dataset.index.raw_bytes.tolist(), block_bytes=block_bytes):
        batch = concatenated([next(batches) for _ in joined])
        writer.write(batch)
        contents.append(_content_of(batch))
    written = [block for shard in writer.finish() for block in shard.blocks]
    again = read_blocks(dataset.store, dataset.format, dataset.schema, written)
    for block, batch, expected in zip(written, again, contents, strict=True):
        if _content_of(batch) != expected:
            raise CorruptBlockError(
                f"{dataset.store.url}/{block}: does not give back the rows it was made of; nothing was committed"
            )
    return written


def concatenated(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all batches, at least one, in one."""
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch


def _content_of(batch: pa.RecordBatch) -> bytes:
    """A digest of the rows, wherever in memory they lie."""
    return digest_of(memoryview(batch.serialize()))


def _commit(old: Dataset, index: BlockIndex) -> DatasetVersion:
    store, depth = old.store, len(old.version.index)
    part = write_index(store, index)
    while True:
        newest = open_version(store, list_versions(store)[-1])
        if newest.index[:depth] != old.version.index:
            raise VersionConflictError(
                f"{store.url}: another writer replaced version {old.version.number} meanwhile; "
                "nothing of theirs was changed, run again"
            )
        change = {
            "number": newest.number + 1,
            "parent": newest.number,
            "made_by": f"compaction of version {newest.number}",
            "num_bytes": newest.num_bytes - old.version.num_bytes + int(index.num_bytes.sum()),
            "raw_bytes": newest.raw_bytes - old.version.raw_bytes + int(index.raw_bytes.sum()),
            "num_shards": newest.num_shards - old.version.num_shards + len(index.shards),
            "index": (part, *newest.index[depth:]),
        }
        try:
            return put_version(store, newest.model_copy(update=change))
        except VersionConflictError:
            continue  # someone committed between our look and our put

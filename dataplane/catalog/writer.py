"""Writing: record batches to shards, shards to an index, and at last one version file that makes them visible.

Shards and index files are named after their content, so writing them again is harmless and two writers never
overwrite each other's; nothing names them until the version is committed by one put-if-absent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from dataplane.catalog.dataset import Dataset, list_versions
from dataplane.catalog.index_file import encode_index
from dataplane.catalog.version import DatasetVersion, IndexPart, encode_schema, path_of
from dataplane.errors import DatasetExistsError, VersionConflictError
from dataplane.formats import ShardBuilder
from dataplane.plan import Block, BlockIndex
from dataplane.storage import Store, digest_of

# Large enough that a million-shard listing is petabytes, small enough to build in memory and put at once.
SHARD_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How blocks are compressed and when a shard is full."""

    codec: str = "zstd"
    level: int = 3
    """zstd's; 3 reads as fast as 9 and writes three times as fast."""
    shard_bytes: int = SHARD_BYTES


class DatasetWriter:
    """Writes blocks in order; `commit` makes them a version. Whatever is not committed is never seen."""

    def __init__(self, store: Store, schema: pa.Schema, encoding: Encoding = Encoding()) -> None:
        self.store = store
        self.schema = schema
        self._encoding = encoding
        self._builder = self._new_builder()
        self._blocks: list[Block] = []
        self._finished_bytes = 0
        self._shards = 0

    @property
    def num_bytes(self) -> int:
        """Compressed bytes written so far, the unfinished shard included."""
        return self._finished_bytes + self._builder.num_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds one block. Raises ValueError if the batch has another schema, or no rows."""
        if batch.schema != self.schema or batch.num_rows == 0:
            raise ValueError(f"a block needs rows of schema {self.schema}, got {batch.num_rows} of {batch.schema}")
        self._builder.add(batch)
        if self._builder.num_bytes >= self._encoding.shard_bytes:
            self._finish_shard()

    def commit(self, *, metadata: Mapping[str, str], parent: DatasetVersion | None = None) -> DatasetVersion:
        """Makes the blocks visible, after those of `parent` if there is one.

        Raises VersionConflictError if another writer committed this number meanwhile; then nothing changed.
        """
        if self._builder.num_blocks:
            self._finish_shard()
        return commit_blocks(
            self.store,
            self._blocks,
            schema=self.schema,
            block_format="arrow",
            num_shards=self._shards,
            metadata=metadata,
            parent=parent,
        )

    def _finish_shard(self) -> None:
        data, blocks = self._builder.finish()
        path = f"shards/{digest_of(memoryview(data)).hex()[:32]}.arrow"
        self.store.write(path, memoryview(data).cast("B"))
        self._blocks += [replace(block, shard=path) for block in blocks]
        self._finished_bytes += len(data)
        self._shards += 1
        self._builder = self._new_builder()

    def _new_builder(self) -> ShardBuilder:
        return ShardBuilder(self.schema, codec=self._encoding.codec, level=self._encoding.level)


def commit_blocks(
    store: Store,
    blocks: Iterable[Block],
    *,
    schema: pa.Schema,
    block_format: str,
    num_shards: int,
    metadata: Mapping[str, str],
    parent: DatasetVersion | None = None,
) -> DatasetVersion:
    """Makes blocks that are in the store a version, after those of `parent` if there is one.

    Raises VersionConflictError if another writer committed this number meanwhile; then nothing changed.
    """
    index = BlockIndex.from_blocks(blocks)
    version = DatasetVersion(
        number=parent.number + 1 if parent else 1,
        parent=parent.number if parent else None,
        block_format=block_format,
        arrow_schema=encode_schema(schema),
        columns={field.name: str(field.type) for field in schema},
        num_rows=index.total_rows + (parent.num_rows if parent else 0),
        num_bytes=int(index.num_bytes.sum()) + (parent.num_bytes if parent else 0),
        raw_bytes=int(index.raw_bytes.sum()) + (parent.raw_bytes if parent else 0),
        num_shards=num_shards + (parent.num_shards if parent else 0),
        index=(*(parent.index if parent else ()), *([_write_index(store, index)] if len(index) else [])),
        metadata=dict(metadata),
    )
    try:
        store.create(path_of(version.number), version.to_json())
    except FileExistsError:
        raise VersionConflictError(
            f"{store.url}: another writer committed version {version.number} first; "
            "nothing of theirs was changed, run again to build on it"
        ) from None
    return version


def _write_index(store: Store, index: BlockIndex) -> IndexPart:
    data = memoryview(encode_index(index)).cast("B")
    digest = digest_of(data).hex()
    path = f"index/{digest[:32]}.arrow"
    store.write(path, data)
    return IndexPart(path=path, num_bytes=len(data), digest=digest, num_blocks=len(index), num_rows=index.total_rows)


def refuse_existing(store: Store) -> None:
    """Raises DatasetExistsError if there is a committed version."""
    if numbers := list_versions(store):
        raise DatasetExistsError(
            f"{store.url}: a dataset is here already (version {numbers[-1]}); "
            "choose another destination, or pass --append to add a version"
        )


def parent_for(dataset: Dataset, schema: pa.Schema) -> DatasetVersion:
    """The version to append to. Raises ValueError if its rows have another schema."""
    if dataset.schema != schema:
        raise ValueError(
            f"{dataset.store.url}: rows to append have columns {schema.names} of types "
            f"{[str(t) for t in schema.types]}, the dataset has {dataset.version.columns}"
        )
    return dataset.version

"""Committing: shards to an index, and one version file, put if absent, that makes them visible."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from dataplane.catalog.ahead import in_order
from dataplane.catalog.dataset import Dataset, list_versions, open_version
from dataplane.catalog.index_file import encode_index
from dataplane.catalog.shards import Shard
from dataplane.catalog.version import DatasetVersion, IndexPart, Origin, encode_schema, path_of
from dataplane.errors import DatasetError, DatasetExistsError, VersionConflictError
from dataplane.plan import Block, BlockIndex
from dataplane.storage import Stat, Store, digest_of

# Questions to a store at once; each is a small request.
REQUESTS = 16
# Each try that fails is another writer's success; more of them in a row is no contention but a fault.
_TRIES = 1000


def commit_shards(
    store: Store,
    shards: Sequence[Shard],
    *,
    schema: pa.Schema,
    block_format: str,
    metadata: Mapping[str, str],
    parent: DatasetVersion | None = None,
    origin: Origin | None = None,
) -> DatasetVersion:
    """Makes shards that are in the store a version, after the rows of `parent` if there is one.

    Raises:
        DatasetError: a shard is not in the store, or has another size; nothing is visible then.
        VersionConflictError: another writer committed this number meanwhile; then nothing changed.
        ValueError: the parent's blocks have another schema or format.
    """
    check_sizes(store, {shard.path: shard.num_bytes for shard in shards})
    return commit_blocks(
        store,
        [block for shard in shards for block in shard.blocks],
        schema=schema,
        block_format=block_format,
        num_shards=sum(bool(shard.blocks) for shard in shards),
        metadata=metadata,
        parent=parent,
        origin=origin,
    )


def append_shards(
    store: Store,
    shards: Sequence[Shard],
    *,
    schema: pa.Schema,
    block_format: str,
    metadata: Mapping[str, str],
) -> DatasetVersion:
    """Makes shards the next version, after the rows of the newest one, however many others do the same meanwhile.

    For rows that do not depend on what was there before. Makes version 1 where there is none. Raises as
    `commit_shards`, but VersionConflictError only after a thousand lost races.
    """
    for tries_left in reversed(range(_TRIES)):
        numbers = list_versions(store)
        parent = open_version(store, numbers[-1]) if numbers else None
        try:
            return commit_shards(
                store, shards, schema=schema, block_format=block_format, metadata=metadata, parent=parent
            )
        except VersionConflictError:
            if not tries_left:
                raise
    raise AssertionError("unreachable")


def check_sizes(store: Store, sizes: Mapping[str, int]) -> None:
    """Raises DatasetError naming a file that is not in the store with this many bytes."""
    stats = in_order(partial(stat_of, store), sizes, threads=REQUESTS)
    for (path, expected), found in zip(sizes.items(), stats, strict=True):
        if found is None or found.num_bytes != expected:
            state = "is missing" if found is None else f"has {found.num_bytes} bytes instead of {expected}"
            raise DatasetError(f"{store.url}/{path}: {state}; nothing was committed, write it again")


def stat_of(store: Store, path: str) -> Stat | None:
    """None where there is no such object."""
    try:
        return store.stat(path)
    except FileNotFoundError:
        return None


def commit_blocks(
    store: Store,
    blocks: Iterable[Block],
    *,
    schema: pa.Schema,
    block_format: str,
    num_shards: int,
    metadata: Mapping[str, str],
    parent: DatasetVersion | None = None,
    origin: Origin | None = None,
) -> DatasetVersion:
    """As `commit_shards`, for blocks of files that the caller knows to be there."""
    if parent is not None:
        _check_parent(store, parent, schema, block_format)
    index = BlockIndex.from_blocks(blocks)
    return put_version(
        store,
        DatasetVersion(
            number=parent.number + 1 if parent else 1,
            parent=parent.number if parent else None,
            block_format=block_format,
            arrow_schema=encode_schema(schema),
            columns={field.name: str(field.type) for field in schema},
            num_rows=index.total_rows + (parent.num_rows if parent else 0),
            num_bytes=int(index.num_bytes.sum()) + (parent.num_bytes if parent else 0),
            raw_bytes=int(index.raw_bytes.sum()) + (parent.raw_bytes if parent else 0),
            num_shards=num_shards + (parent.num_shards if parent else 0),
            index=(*(parent.index if parent else ()), *([write_index(store, index)] if len(index) else [])),
            metadata=dict(metadata),
            made_by="append" if parent else "write",
            origin=origin,
        ),
    )


def put_version(store: Store, version: DatasetVersion) -> DatasetVersion:
    """Makes a version visible whose files are in the store.

    Raises VersionConflictError if another writer committed this number meanwhile; then nothing changed.
    """
    try:
        store.create(path_of(version.number), version.to_json())
    except FileExistsError:
        raise VersionConflictError(
            f"{store.url}: another writer committed version {version.number} first; "
            "nothing of theirs was changed, run again to build on it"
        ) from None
    return version


def write_index(store: Store, index: BlockIndex) -> IndexPart:
    """Writes an index file, which nothing names yet."""
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
    _check_parent(dataset.store, dataset.version, schema, dataset.version.block_format)
    return dataset.version


def _check_parent(store: Store, parent: DatasetVersion, schema: pa.Schema, block_format: str) -> None:
    if parent.schema != schema:
        raise ValueError(
            f"{store.url}: rows to append have columns {schema.names} of types "
            f"{[str(t) for t in schema.types]}, the dataset has {parent.columns}"
        )
    if parent.block_format != block_format:
        raise ValueError(
            f"{store.url}: its blocks are {parent.block_format}, those to append {block_format}; "
            f"write {parent.block_format}, or choose another destination"
        )

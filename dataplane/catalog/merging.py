"""Merging: datasets in folders below one root become one dataset there, which names their shards where they lie."""

from collections.abc import Mapping, Sequence
from typing import Any

from dataplane.catalog.commit import put_version, write_index
from dataplane.catalog.dataset import Dataset, list_versions, open_dataset, open_version
from dataplane.catalog.version import DatasetVersion, inside_root
from dataplane.errors import DatasetExistsError
from dataplane.plan import BlockIndex
from dataplane.storage import open_store

_MADE_BY = "merge of "
# Entries of a version's metadata with this prefix are counts, which add up.
_COUNT = "num_"
# Entries with this suffix say by what the rows were made, and rows of different makes do not mix.
_MAKE = "_digest"


def merge(
    root: str,
    parts: Sequence[str],
    *,
    storage_options: Mapping[str, Any] | None = None,  # Any: the store's own
) -> DatasetVersion:
    """Commits at `root` the rows of the newest versions of the parts, in the order given, without copying them.

    `parts` are folders below the root, as relative paths or as full ones. Shards are named relative to the root, so the
    tree can be moved as a whole. Metadata on which all parts agree is kept, `num_` counts are added up. Merging
    again makes the next version, of what the parts are then. Garbage of a part is to be collected with care: it does
    not know what is named from above.

    Raises:
        ValueError: a part is not below the root or given twice, or the parts differ in a column, in the form of their
            blocks, or in what made their rows (metadata that ends in `_digest`).
        DatasetNotFoundError: a part is not a dataset.
        DatasetExistsError: at the root is a dataset that was not made by merging.
    """
    store = open_store(root, storage_options)
    paths = [_below(root, part) for part in parts]
    if not paths or len(set(paths)) < len(paths):
        raise ValueError(f"{root}: give each folder to merge once, and at least one; got {', '.join(paths) or 'none'}")
    numbers = list_versions(store)
    newest = open_version(store, numbers[-1]) if numbers else None
    if newest is not None and not newest.made_by.startswith(_MADE_BY):
        raise DatasetExistsError(
            f"{root}: a dataset is here already (version {newest.number}, not made by merging); "
            "merge at a folder that holds datasets and is none itself"
        )
    datasets = [open_dataset(f"{root.rstrip('/')}/{path}", storage_options=storage_options) for path in paths]
    for dataset in datasets[1:]:
        _refuse_difference(datasets[0], dataset)
    index = BlockIndex.concatenate([_moved(dataset, path) for dataset, path in zip(datasets, paths, strict=True)])
    versions = [dataset.version for dataset in datasets]
    merged = DatasetVersion(
        number=newest.number + 1 if newest else 1,
        parent=newest.number if newest else None,
        block_format=versions[0].block_format,
        arrow_schema=versions[0].arrow_schema,
        columns=versions[0].columns,
        num_rows=sum(version.num_rows for version in versions),
        num_bytes=sum(version.num_bytes for version in versions),
        raw_bytes=sum(version.raw_bytes for version in versions),
        num_shards=sum(version.num_shards for version in versions),
        index=(write_index(store, index),) if len(index) else (),
        metadata=_common([version.metadata for version in versions]),
        made_by=_MADE_BY + ", ".join(paths),
    )
    return put_version(store, merged)


def _below(root: str, part: str) -> str:
    """The path of a part relative to the root."""
    path = part.removeprefix(root.rstrip("/") + "/").rstrip("/")
    try:
        if "://" in path:
            raise ValueError
        return inside_root(path)
    except ValueError:
        raise ValueError(f"{part} is not a folder below {root}; only what lies below the root can be merged") from None


def _moved(dataset: Dataset, path: str) -> BlockIndex:
    index = dataset.index
    return BlockIndex(
        [f"{path}/{shard}" for shard in index.shards],
        index.shard,
        index.offset,
        index.num_bytes,
        index.num_rows,
        index.raw_bytes,
        index.digest,
    )


def _refuse_difference(one: Dataset, other: Dataset) -> None:
    urls = f"{one.store.url} and {other.store.url}"
    if one.version.block_format != other.version.block_format:
        raise ValueError(
            f"{urls}: blocks are {one.version.block_format} and {other.version.block_format}; write one form"
        )
    ours, theirs = one.schema, other.schema
    for name in dict.fromkeys([*ours.names, *theirs.names]):
        absent = [each.store.url for each, names in ((one, ours.names), (other, theirs.names)) if name not in names]
        if absent:
            raise ValueError(f"{urls}: {absent[0]} has no column {name!r}; preprocess them with one schema")
        if (a := ours.field(name)) != (b := theirs.field(name)):
            raise ValueError(f"{urls}: column {name!r} is {a} and {b}; preprocess them with one schema")
    if ours.names != theirs.names:
        raise ValueError(f"{urls}: columns stand in the order {ours.names} and {theirs.names}; write them in one order")
    for name in {*one.version.metadata, *other.version.metadata}:
        values = [each.version.metadata.get(name) for each in (one, other)]
        if name.endswith(_MAKE) and values[0] != values[1]:
            raise ValueError(f"{urls}: their rows were made with {name} {values[0]} and {values[1]}; merge equals only")


def _common(entries: Sequence[Mapping[str, str]]) -> dict[str, str]:
    common = {}
    for name in entries[0]:
        values = [entry.get(name) for entry in entries]
        counts = [value for value in values if value is not None and value.isdecimal()]
        if name.startswith(_COUNT) and len(counts) == len(values):
            common[name] = str(sum(map(int, counts)))
        elif len(set(values)) == 1:
            common[name] = entries[0][name]
    return common

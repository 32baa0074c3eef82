"""A dataset is a version: what a version says, how one is read, how it is committed, and its life afterwards."""

from dataplane.catalog.commit import append_shards, commit_blocks, commit_shards, parent_for, refuse_existing
from dataplane.catalog.compaction import compact
from dataplane.catalog.copying import Copied, copy_dataset
from dataplane.catalog.dataset import Dataset, list_versions, open_dataset
from dataplane.catalog.encoding import BLOCK_BYTES, Encoding
from dataplane.catalog.garbage import DAY_SECONDS, Garbage, collect_garbage
from dataplane.catalog.history import rollback, versions
from dataplane.catalog.merging import merge
from dataplane.catalog.shards import Shard, ShardWriter
from dataplane.catalog.version import DatasetVersion, IndexPart, Origin
from dataplane.catalog.writer import DatasetWriter

__all__ = [
    "BLOCK_BYTES",
    "DAY_SECONDS",
    "Copied",
    "Dataset",
    "DatasetVersion",
    "DatasetWriter",
    "Encoding",
    "Garbage",
    "IndexPart",
    "Origin",
    "Shard",
    "ShardWriter",
    "append_shards",
    "collect_garbage",
    "commit_blocks",
    "commit_shards",
    "compact",
    "copy_dataset",
    "list_versions",
    "merge",
    "open_dataset",
    "parent_for",
    "refuse_existing",
    "rollback",
    "versions",
]

"""A dataset is a version: what a version says, how one is read, and how one is committed."""

from dataplane.catalog.commit import append_shards, commit_blocks, commit_shards, parent_for, refuse_existing
from dataplane.catalog.dataset import Dataset, list_versions, open_dataset
from dataplane.catalog.encoding import Encoding
from dataplane.catalog.shards import Shard, ShardWriter
from dataplane.catalog.version import DatasetVersion, IndexPart, Origin
from dataplane.catalog.writer import DatasetWriter

__all__ = [
    "Dataset",
    "DatasetVersion",
    "DatasetWriter",
    "Encoding",
    "IndexPart",
    "Origin",
    "Shard",
    "ShardWriter",
    "append_shards",
    "commit_blocks",
    "commit_shards",
    "list_versions",
    "open_dataset",
    "parent_for",
    "refuse_existing",
]

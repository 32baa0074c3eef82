"""Streams preprocessed, sharded, versioned datasets so that accelerators never wait for data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataplane.catalog import (
        Copied,
        Dataset,
        DatasetVersion,
        DatasetWriter,
        Encoding,
        Garbage,
        Shard,
        ShardWriter,
        append_shards,
        collect_garbage,
        commit_shards,
        compact,
        copy_dataset,
        merge,
        open_dataset,
        rollback,
        versions,
    )
    from dataplane.loader import StreamingLoader
    from dataplane.pipeline import Batch, Ragged
    from dataplane.plan import Position, Topology
    from dataplane.source import Source
    from dataplane.torch_dataset import StreamingDataset

__all__ = [
    "Batch",
    "Copied",
    "Dataset",
    "DatasetVersion",
    "DatasetWriter",
    "Encoding",
    "Garbage",
    "Position",
    "Ragged",
    "Shard",
    "ShardWriter",
    "Source",
    "StreamingDataset",
    "StreamingLoader",
    "Topology",
    "append_shards",
    "collect_garbage",
    "commit_shards",
    "compact",
    "copy_dataset",
    "merge",
    "open_dataset",
    "rollback",
    "versions",
]

# Imported on first use: preprocessing, and the processes that a loader starts, do without the seconds that torch takes.
_HOMES = {
    "Batch": "dataplane.pipeline",
    "Copied": "dataplane.catalog",
    "Dataset": "dataplane.catalog",
    "DatasetVersion": "dataplane.catalog",
    "DatasetWriter": "dataplane.catalog",
    "Encoding": "dataplane.catalog",
    "Garbage": "dataplane.catalog",
    "Position": "dataplane.plan",
    "Ragged": "dataplane.pipeline",
    "Shard": "dataplane.catalog",
    "ShardWriter": "dataplane.catalog",
    "Source": "dataplane.source",
    "StreamingDataset": "dataplane.torch_dataset",
    "StreamingLoader": "dataplane.loader",
    "Topology": "dataplane.plan",
    "append_shards": "dataplane.catalog",
    "collect_garbage": "dataplane.catalog",
    "commit_shards": "dataplane.catalog",
    "compact": "dataplane.catalog",
    "copy_dataset": "dataplane.catalog",
    "merge": "dataplane.catalog",
    "open_dataset": "dataplane.catalog",
    "rollback": "dataplane.catalog",
    "versions": "dataplane.catalog",
}


def __getattr__(name: str) -> Any:  # Any: one of the public names
    if name not in _HOMES:
        raise AttributeError(f"module 'dataplane' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]

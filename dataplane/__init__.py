"""Streams preprocessed, sharded, versioned datasets so that accelerators never wait for data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataplane.catalog import Dataset, DatasetVersion, DatasetWriter, open_dataset
    from dataplane.loader import StreamingLoader
    from dataplane.pipeline import Batch, Ragged
    from dataplane.plan import Position, Topology
    from dataplane.torch_dataset import StreamingDataset

__all__ = [
    "Batch",
    "Dataset",
    "DatasetVersion",
    "DatasetWriter",
    "Position",
    "Ragged",
    "StreamingDataset",
    "StreamingLoader",
    "Topology",
    "open_dataset",
]

# Imported on first use: preprocessing, and the processes that a loader starts, do without the seconds that torch takes.
_HOMES = {
    "Batch": "dataplane.pipeline",
    "Dataset": "dataplane.catalog",
    "DatasetVersion": "dataplane.catalog",
    "DatasetWriter": "dataplane.catalog",
    "Position": "dataplane.plan",
    "Ragged": "dataplane.pipeline",
    "StreamingDataset": "dataplane.torch_dataset",
    "StreamingLoader": "dataplane.loader",
    "Topology": "dataplane.plan",
    "open_dataset": "dataplane.catalog",
}


def __getattr__(name: str) -> Any:  # Any: one of the public names
    if name not in _HOMES:
        raise AttributeError(f"module 'dataplane' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]

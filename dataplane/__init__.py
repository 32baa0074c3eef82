"""Streams preprocessed, sharded, versioned datasets so that accelerators never wait for data."""

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

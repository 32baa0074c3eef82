"""A dataset is a version: what a version says, how one is read, and how one is committed."""

from dataplane.catalog.dataset import Dataset, list_versions, open_dataset
from dataplane.catalog.version import DatasetVersion, IndexPart
from dataplane.catalog.writer import DatasetWriter, Encoding, commit_blocks, parent_for, refuse_existing

__all__ = [
    "Dataset",
    "DatasetVersion",
    "DatasetWriter",
    "Encoding",
    "IndexPart",
    "commit_blocks",
    "list_versions",
    "open_dataset",
    "parent_for",
    "refuse_existing",
]

"""The versions of a dataset, and going back to one. History only grows."""

from collections.abc import Mapping
from typing import Any

from dataplane.catalog.ahead import in_order
from dataplane.catalog.commit import REQUESTS, put_version, stat_of
from dataplane.catalog.dataset import Dataset, list_versions, open_dataset, open_version
from dataplane.catalog.files import ends_of
from dataplane.catalog.version import DatasetVersion
from dataplane.errors import DatasetError


def versions(url: str, *, storage_options: Mapping[str, Any] | None = None) -> list[DatasetVersion]:  # Any: the store's
    """All committed versions, oldest first. Raises DatasetNotFoundError where there is none."""
    store = open_dataset(url, storage_options=storage_options).store
    return [open_version(store, number) for number in list_versions(store)]


def rollback(
    url: str,
    number: int,
    *,
    storage_options: Mapping[str, Any] | None = None,  # Any: the store's own
) -> DatasetVersion:
    """Commits a new version with the content of an earlier one; nothing is removed, and it can be undone likewise.

    Raises:
        ValueError: the version is the newest already.
        DatasetNotFoundError: there is no such version.
        DatasetError: a file that it names is gone; nothing is committed then.
        VersionConflictError: another writer committed meanwhile; then nothing changed.
    """
    newest = open_dataset(url, storage_options=storage_options)
    wanted = open_dataset(url, version=number, storage_options=storage_options)
    if number == newest.version.number:
        raise ValueError(f"{url}: version {number} is the newest already; nothing to go back from")
    _check_files(wanted)
    change = {
        "number": newest.version.number + 1,
        "parent": newest.version.number,
        "made_by": f"rollback to version {number}",
    }
    return put_version(newest.store, wanted.version.model_copy(update=change))


def _check_files(dataset: Dataset) -> None:
    """Raises DatasetError naming a shard that is gone or too short for its blocks."""
    store, ends = dataset.store, ends_of(dataset.index)
    stats = in_order(lambda path: stat_of(store, path), ends, threads=REQUESTS)
    for (path, end), found in zip(ends.items(), stats, strict=True):
        if found is None or found.num_bytes < end:
            state = "is missing" if found is None else f"has {found.num_bytes} bytes, its blocks end at {end}"
            raise DatasetError(f"{store.url}/{path}: {state}; version {dataset.version.number} cannot be restored")

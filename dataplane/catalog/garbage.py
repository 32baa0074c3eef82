"""Garbage: what no kept version of a dataset names. Only files that this package writes are ever garbage."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from dataplane.catalog.ahead import in_order
from dataplane.catalog.commit import REQUESTS
from dataplane.catalog.dataset import list_versions, open_dataset, open_version
from dataplane.catalog.files import files_of
from dataplane.catalog.version import FOLDER, path_of
from dataplane.storage import Stat, Store

DAY_SECONDS = 86_400.0
_FOLDERS = ("shards", "index", "inputs", "work", FOLDER)
_NAMED_AFTER_CONTENT = re.compile(r"(?:shards|index|inputs)/[0-9a-f]{32}(?:\.[a-z0-9]+)+")
_WORK = re.compile(r"work/([^/]+)/.+", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Garbage:
    """What a collection deletes, or would delete."""

    versions: tuple[int, ...]
    """Numbers, ascending."""
    objects: tuple[tuple[str, int], ...]
    """Path and bytes of each object, sorted; the files of the versions are among them."""
    num_young: int
    """Objects that nothing names and that are too young to be judged."""

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self.objects)


def collect_garbage(
    url: str,
    *,
    keep: int | None = None,
    older_than_seconds: float = DAY_SECONDS,
    delete: bool = False,
    storage_options: Mapping[str, Any] | None = None,  # Any: the store's own
) -> Garbage:
    """Finds, and with `delete` deletes, what none of the `keep` newest versions names; None keeps all versions.

    Nothing younger than `older_than_seconds` is touched, since a writer may be about to commit it: give more than the
    longest run takes. What an unfinished run that was active since then noted below `work/` is kept, and so are the
    shards that it noted. Files that are not named as this package names them are left alone, and so is an object whose
    age the store does not say. Version files go first, so that no version is left without its files.

    Readers of a version that is not kept lose it, and so does a dataset elsewhere that names the same files (`merge`).

    Raises ValueError for `keep` below 1 or a negative age, DatasetNotFoundError where there is no version,
    CorruptBlockError if an index is damaged; nothing is deleted then.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    if older_than_seconds < 0:
        raise ValueError(f"older_than_seconds must not be negative, got {older_than_seconds}")
    store = open_dataset(url, storage_options=storage_options).store
    objects = {path: stat for folder in _FOLDERS for path, stat in store.scan(folder).items()}
    numbers = list_versions(store)  # after the files: what was committed since then names its own
    found = _Found(store, objects, older_than=time.time() - older_than_seconds)
    doomed = [] if keep is None else [number for number in numbers[:-keep] if found.is_old(path_of(number))]
    kept = [number for number in numbers if number not in doomed]
    named = _named_by(store, kept) | found.noted_by_runs
    unnamed = [path for path in found.known if path not in named]
    garbage = [path for path in unnamed if found.is_old(path)]
    num_young = len(unnamed) - len(garbage)
    if delete:
        for number in doomed:
            store.delete(path_of(number))
        # A version that was committed meanwhile may name old files again.
        late = _named_by(store, [number for number in list_versions(store) if number not in kept])
        garbage = [path for path in garbage if path not in late]
        for _ in in_order(store.delete, garbage, threads=REQUESTS):
            pass
    gone = sorted([*garbage, *map(path_of, doomed)])
    return Garbage(
        versions=tuple(doomed),
        objects=tuple((path, found.objects[path].num_bytes) for path in gone),
        num_young=num_young,
    )


class _Found:
    """What lies in the folders that this package writes, and since when."""

    def __init__(self, store: Store, objects: Mapping[str, Stat], *, older_than: float) -> None:
        self.objects = objects
        self._store = store
        self._older_than = older_than

    @cached_property
    def known(self) -> list[str]:
        """Those whose names say that this package wrote them, without the files of versions."""
        return [path for path in self.objects if _NAMED_AFTER_CONTENT.fullmatch(path) or _WORK.fullmatch(path)]

    def is_old(self, path: str) -> bool:
        stat = self.objects.get(path)
        return stat is not None and stat.modified is not None and stat.modified <= self._older_than

    @cached_property
    def noted_by_runs(self) -> set[str]:
        """The files of unfinished runs that were active lately, and those that they mention."""
        named: set[str] = set()
        in_work = [path for path in self.known if _WORK.fullmatch(path)]
        for _, group in groupby(in_work, key=lambda path: path.split("/")[1]):
            files = list(group)
            if all(map(self.is_old, files)):
                continue
            named.update(files)
            notes = [path for path in files if path.endswith(".json")]
            for note in in_order(self._read, notes, threads=REQUESTS):
                named.update(_NAMED_AFTER_CONTENT.findall(note.decode(errors="replace")))
        return named

    def _read(self, path: str) -> bytes:
        try:
            return self._store.read(path)
        except FileNotFoundError:  # the run ended meanwhile, and a version names what this did
            return b""


def _named_by(store: Store, numbers: list[int]) -> set[str]:
    return files_of(store, [open_version(store, number) for number in numbers]).paths

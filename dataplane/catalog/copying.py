"""Copying a dataset between stores: the same files under the same names, checked on the way, versions last."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
from typing import Any

from dataplane.catalog.ahead import in_order
from dataplane.catalog.commit import check_sizes, stat_of
from dataplane.catalog.dataset import list_versions, open_dataset
from dataplane.catalog.files import Files, files_of
from dataplane.catalog.version import DatasetVersion, path_of
from dataplane.errors import CorruptBlockError, DatasetExistsError
from dataplane.storage import Store, digest_of, open_store

# Whole files are in memory on their way: eight default shards, or one that is larger than all of these.
_THREADS = 8
_MEMORY_BYTES = 1 << 30
# A body that is wrong three times in a row is wrong in the store, not on the way.
_TRIES = 3
_NAMED_AFTER_CONTENT = re.compile(r"(?:.*/)?(?:shards|index|inputs)/([0-9a-f]{32})(?:\.[a-z0-9]+)+", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Copied:
    """What a copy did."""

    versions: tuple[int, ...]
    """Those that were asked for and are at the destination now, ascending."""
    num_files: int
    """Copied now, without those that were there already and without the version files."""
    num_bytes: int
    """Of these files."""


def copy_dataset(
    source: str,
    destination: str,
    *,
    version: int | None = None,
    source_options: Mapping[str, Any] | None = None,  # Any: the stores' own
    destination_options: Mapping[str, Any] | None = None,  # Any: as above
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Copied:
    """Copies all versions, or one, between any two stores; numbers and fingerprints stay.

    Each file is checked against the digests that its version names. Version files are put last and if absent, so
    nothing is visible before it is whole; the same copy again does what is left. Several files travel at once, whole in
    memory: together at most a gigabyte, or else a single one. `progress` is told the bytes done and those in all.

    Raises:
        DatasetNotFoundError: the source, or the version, is not there.
        CorruptBlockError: the source gives other bytes than its version names.
        DatasetExistsError: the destination has another version of a number, or another file of a name.
    """
    dataset = open_dataset(source, version=version, storage_options=source_options)
    store, target = dataset.store, open_store(destination, destination_options)
    numbers = [version] if version is not None else list_versions(store)
    documents = {number: store.read(path_of(number)) for number in numbers}
    present = list_versions(target)
    for number in present:
        if number in documents:
            _refuse_another(target, number, documents[number])
    wanted = [
        DatasetVersion.from_json(document, f"{store.url}/{path_of(number)}")
        for number, document in documents.items()
        if number not in present
    ]
    copy = _Copy(store, target, files_of(store, wanted))
    done = num_files = num_bytes = 0
    for path, was_copied in zip(copy.sizes, in_order(copy.transfer, copy.sizes, threads=_THREADS), strict=True):
        done += copy.sizes[path]
        num_files += was_copied
        num_bytes += was_copied * copy.sizes[path]
        progress(done, copy.total_bytes)
    check_sizes(target, copy.sizes)
    for each in wanted:
        try:
            target.create(path_of(each.number), documents[each.number])
        except FileExistsError:
            _refuse_another(target, each.number, documents[each.number])
    return Copied(versions=tuple(numbers), num_files=num_files, num_bytes=num_bytes)


def _refuse_another(target: Store, number: int, document: bytes) -> None:
    if target.read(path_of(number)) != document:
        raise DatasetExistsError(
            f"{target.url}: its version {number} is another than the one to copy; choose another destination"
        )


class _Copy:
    """The files of some versions on their way; `transfer` may be called from several threads."""

    def __init__(self, source: Store, target: Store, files: Files) -> None:
        self._source = source
        self._target = target
        self._files = files
        self._room = _Room(_MEMORY_BYTES)
        paths = sorted(files.paths)
        stats = in_order(lambda path: stat_of(source, path), paths, threads=2 * _THREADS)
        self.sizes: dict[str, int] = {}
        """Bytes of each file at the source."""
        for path, stat in zip(paths, stats, strict=True):
            if stat is None:
                raise CorruptBlockError(f"{source.url}/{path}: a version names this file and it is missing; restore it")
            self.sizes[path] = stat.num_bytes
        self.total_bytes = sum(self.sizes.values())

    def transfer(self, path: str) -> bool:
        """Copies a file. False if it is there already."""
        there = stat_of(self._target, path)
        with self._room.taken(self.sizes[path]):
            if there is not None:
                # What is named after its content was written whole, by a copy or by a writer of the same rows.
                is_same = there.num_bytes == self.sizes[path] and (
                    _NAMED_AFTER_CONTENT.fullmatch(path) is not None
                    or self._fault(path, self._target.read(path)) is None
                )
                if not is_same:
                    raise DatasetExistsError(
                        f"{self._target.url}/{path}: another file of this name is there; choose another destination"
                    )
                return False
            for _ in range(_TRIES):
                data = self._source.read(path)
                fault = self._fault(path, data)
                if fault is None:
                    self._target.write(path, data)
                    return True
        raise CorruptBlockError(f"{self._source.url}/{path}: {fault} after {_TRIES} tries; restore it and copy again")

    def _fault(self, path: str, data: bytes) -> str | None:
        """How the bytes differ from what the versions say of them."""
        if (part := self._files.parts.get(path)) is not None and digest_of(data).hex() != part.digest:
            return f"digest {digest_of(data).hex()}, expected {part.digest}"
        if (name := _NAMED_AFTER_CONTENT.fullmatch(path)) is not None and digest_of(data).hex()[:32] != name[1]:
            return f"digest {digest_of(data).hex()}, its name promises {name[1]}"
        view = memoryview(data)
        for block in self._files.blocks.get(path, {}).values():
            if digest_of(view[block.offset : block.offset + block.num_bytes]) != block.digest:
                return f"bytes [{block.offset}, {block.offset + block.num_bytes}) do not match their digest"
        return None


class _Room:
    """Bytes that may be in memory at once; what is larger than all of it waits until it has it alone."""

    def __init__(self, num_bytes: int) -> None:
        self._free = self._all = num_bytes
        self._changed = Condition()

    @contextmanager
    def taken(self, num_bytes: int) -> Iterator[None]:
        wanted = min(num_bytes, self._all)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= wanted)
            self._free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()

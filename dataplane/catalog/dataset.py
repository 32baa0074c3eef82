"""Reading: the versions at a URL, and one of them opened."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from dataplane.catalog.ahead import in_order
from dataplane.catalog.index_file import decode_index
from dataplane.catalog.version import FOLDER, DatasetVersion, IndexPart, number_of, path_of
from dataplane.errors import CorruptBlockError, DatasetError, DatasetNotFoundError
from dataplane.formats import Format, format_named
from dataplane.metrics import Metrics
from dataplane.plan import Block, BlockIndex
from dataplane.storage import BlockSource, Store, digest_of, open_store

_THREADS = 8  # enough to keep an object store busy; hashing and decoding use the cores there are


@dataclass(frozen=True)
class Dataset:
    """One committed version, pinned: what others write later does not change it."""

    store: Store
    version: DatasetVersion

    @cached_property
    def schema(self) -> pa.Schema:
        return self.version.schema

    @cached_property
    def format(self) -> Format:
        try:
            return format_named(self.version.block_format)
        except ValueError as error:
            raise DatasetError(
                f"{self.store.url}: version {self.version.number}: {error}; a newer dataplane may read it"
            ) from None

    @cached_property
    def index(self) -> BlockIndex:
        """All blocks. Reads the index files on first use and checks their digests."""
        index = BlockIndex.concatenate([read_index(self.store, part) for part in self.version.index])
        found, expected = (len(index), index.total_rows), (self.version.num_blocks, self.version.num_rows)
        if found != expected:
            raise CorruptBlockError(
                f"{self.store.url} version {self.version.number}: its index has {found[0]} blocks of {found[1]} rows, "
                f"the version file says {expected[0]} of {expected[1]}; restore the version file"
            )
        return index

    def read_blocks(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """The rows of some blocks, in this order, each checked against its digest. Reads a little ahead, on threads.

        Raises CorruptBlockError for a damaged block, FileNotFoundError or StoreError for one that cannot be had.
        """
        return read_blocks(self.store, self.format, self.schema, (self.index[number] for number in numbers))


def read_blocks(store: Store, form: Format, schema: pa.Schema, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
    """As `Dataset.read_blocks`, for blocks that no version need name."""
    source = BlockSource(store, None, Metrics())

    def read(block: Block) -> pa.RecordBatch:
        try:
            return form.decode(source.read(block), schema)
        except CorruptBlockError as error:
            error.add_note(f"while reading {store.url}/{block}")
            raise

    return in_order(read, blocks, threads=_THREADS)


def read_index(store: Store, part: IndexPart) -> BlockIndex:
    """One index file. Raises CorruptBlockError if it is missing or not what the version names."""
    where = f"{store.url}/{part.path}"
    try:
        data = store.read(part.path)
    except FileNotFoundError:
        raise CorruptBlockError(f"{where}: a version names this index file and it is missing; restore it") from None
    if (found := digest_of(data).hex()) != part.digest:
        raise CorruptBlockError(f"{where}: digest {found}, expected {part.digest}; restore the file")
    return decode_index(data, where)


def list_versions(store: Store) -> list[int]:
    """Numbers of the committed versions, ascending; none where there is no dataset."""
    numbers = (number_of(path) for path in store.list(FOLDER))
    return sorted(number for number in numbers if number is not None)


def open_dataset(url: str, *, version: int | None = None, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """The version asked for, else the newest.

    Raises DatasetNotFoundError where there is none, StoreError where the store cannot say.
    """
    store = open_store(url, storage_options)
    numbers = list_versions(store)
    if not numbers:
        raise DatasetNotFoundError(
            f"{url}: no dataset here (no committed version); write one with `dataplane preprocess SOURCE {url}`"
        )
    number = numbers[-1] if version is None else version
    if number not in numbers:
        raise DatasetNotFoundError(f"{url}: version {number} does not exist; there are {', '.join(map(str, numbers))}")
    return Dataset(store, open_version(store, number))


def open_version(store: Store, number: int) -> DatasetVersion:
    """The version file of a number that is there. Raises DatasetError if it is none."""
    path = path_of(number)
    return DatasetVersion.from_json(store.read(path), f"{store.url}/{path}")

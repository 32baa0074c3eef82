"""One file of the corpus: where it is, what it claims to be, and its bytes."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from dataplane.storage import Store

# One ranged read; large enough that a round trip to an object store costs little, small beside a block's memory.
CHUNK_BYTES = 4 << 20

# No record may be larger: Arrow's string and binary columns count bytes in 31 bits.
MAX_RECORD_BYTES = 2**31 - 1


class Form(StrEnum):
    """What a file's bytes mean."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    TEXT = "text"
    PARQUET = "parquet"
    ARROW = "arrow"
    TAR = "webdataset"
    IMAGE = "image"


class Compression(StrEnum):
    """How a file's bytes are packed as a whole."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"
    BZIP2 = "bzip2"
    XZ = "xz"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """A file as it was when it was found. A file that changes afterwards is refused while it is read."""

    store: Store
    path: str
    num_bytes: int
    identity: str
    """What the store calls this content of the file; another one after each change."""
    form: Form
    compression: Compression

    def __str__(self) -> str:
        return f"{self.store.url.rstrip('/')}/{self.path}"

    def chunks(self, start: int, stop: int, *, first_bytes: int = CHUNK_BYTES) -> Iterator[bytes | memoryview]:
        """The bytes [start, stop) in order, first so many and then ever more. Raises StoreError if there are fewer."""
        num_bytes = first_bytes
        while start < stop:
            end = min(start + num_bytes, stop)
            yield self.store.read_range(self.path, start, end)
            start, num_bytes = end, min(2 * num_bytes, CHUNK_BYTES)

    def opened(self) -> io.BufferedReader:
        """A seekable binary file, for readers that jump about. Holds nothing open."""
        return _Bounded(_RangedFile(self), CHUNK_BYTES >> 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of a file that can be read on its own; the pieces of a file, in order, hold each of its records once."""

    file: InputFile
    start: int
    stop: int
    """Half open, in whatever the form is cut by: bytes of the file, or row groups."""
    num_bytes: int
    """Of the file, for the share of the work that this is."""

    @classmethod
    def whole(cls, file: InputFile, stop: int | None = None) -> "Piece":
        """All of a file, which ends at `stop` if it is not cut by bytes."""
        return cls(file=file, start=0, stop=file.num_bytes if stop is None else stop, num_bytes=file.num_bytes)


class _Bounded(io.BufferedReader):
    """Makes no room for what is not there: a damaged length may be anything."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > CHUNK_BYTES:
            place = self.tell()
            size = min(size, max(0, self.seek(0, io.SEEK_END) - place))
            self.seek(place)
        return super().read(size)


class _RangedFile(io.RawIOBase):
    def __init__(self, file: InputFile) -> None:
        super().__init__()
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.num_bytes}
        position = base[whence] + offset
        if position < 0:
            # A damaged footer can ask for this; it must not look like a fault of the store.
            raise ValueError(f"seek to {position}, before the start of the file")
        self._position = position
        return position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # callers give memoryviews
        start = self._position
        stop = min(start + len(buffer), self._file.num_bytes)
        if start >= stop:
            return 0
        buffer[: stop - start] = self._file.store.read_range(self._file.path, start, stop)
        self._position = stop
        return stop - start

"""What every store can do: whole and ranged reads, atomic writes, put-if-absent, listing.

Paths are relative to the store's root and use forward slashes; every character of a path is literal.
"""

from dataclasses import dataclass
from typing import Protocol

from dataplane.errors import TruncatedObjectError
from dataplane.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Stat:
    """What a store says of an object without reading it."""

    num_bytes: int
    identity: str
    """Another one after each change of the object: an etag, or size and modification time of a file."""
    modified: float | None
    """Seconds since the epoch, by the store's clock; None where the store does not say."""


class Store(Protocol):
    """A folder of objects. Safe to use from any thread, and in any process whatever its parent did."""

    url: str
    """Where the root is; carries no credentials."""
    is_local: bool
    """Whether reads cost no more than those of a local cache would."""
    metrics: Metrics
    """Where requests over a network are counted, every attempt of each; set it to count elsewhere."""

    def read(self, path: str) -> bytes:
        """The whole object. Raises FileNotFoundError where there is none."""
        ...

    def read_range(self, path: str, start: int, stop: int) -> bytes | memoryview:
        """Exactly the bytes [start, stop). Raises FileNotFoundError, or StoreError where the object is shorter."""
        ...

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Makes or replaces the object; readers see the old bytes or the new ones, never a part."""
        ...

    def create(self, path: str, data: bytes | memoryview) -> None:
        """Makes the object. Raises FileExistsError, and changes nothing, where there is one already."""
        ...

    def list(self, folder: str) -> list[str]:
        """Sorted paths of all complete objects below a folder, at any depth; none where it does not exist."""
        ...

    def size(self, path: str) -> int:
        """Bytes of the object. Raises FileNotFoundError where there is none."""
        ...

    def stat(self, path: str) -> Stat:
        """What the store says of the object. Raises FileNotFoundError where there is none."""
        ...

    def scan(self, folder: str) -> dict[str, Stat]:
        """What `list` and `stat` say of all complete objects below a folder, by path, in as few requests as `list`."""
        ...

    def delete(self, path: str) -> None:
        """Removes the object; it is no error if there is none."""
        ...


EXISTENCE_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, FileExistsError)
"""What clients of file systems raise where an object is, or is not, there."""


def existence_error(where: str, error: OSError) -> OSError:
    """What a store raises for one of `EXISTENCE_ERRORS`."""
    if isinstance(error, FileExistsError):
        return FileExistsError(f"{where} exists already")
    return FileNotFoundError(f"{where} does not exist")


def check_length(url: str, path: str, start: int, stop: int, received: int) -> None:
    """Raises TruncatedObjectError where a store gave another number of bytes than it was asked for."""
    if received != stop - start:
        raise TruncatedObjectError(
            f"{url}/{path}: asked for bytes [{start}, {stop}) and received {received}; "
            "the object is truncated or was replaced by a shorter one"
        )

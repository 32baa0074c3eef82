"""Bytes that come in pieces, as a file that is read from its start to its end."""

import io
from collections.abc import Iterable, Iterator


def byte_stream(parts: Iterable[bytes]) -> io.BufferedReader:
    """A readable file of the parts; holds one of them at a time."""
    return io.BufferedReader(_Stream(iter(parts)), 1 << 20)


class _Stream(io.RawIOBase):
    def __init__(self, parts: Iterator[bytes]) -> None:
        super().__init__()
        self._parts = parts
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # callers give memoryviews
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = memoryview(part)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

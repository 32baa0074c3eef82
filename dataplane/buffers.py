"""Memory that is used again, because fresh memory is dear: the first touch of a new page costs many times the copy
into an old one."""

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# Sizes are rounded up to this, so that blocks of almost equal size share buffers.
_GRANULE = 64 << 10


class BufferPool:
    """Buffers of bytes, for any thread. One comes back when no array, tensor or view refers to it any more, so whoever
    got one may keep it for as long as they like."""

    def __init__(self, most_buffers: int) -> None:
        """Keeps at most so many unused buffers; more are left to the allocator."""
        # A deque's appends and pops are atomic: no lock that a fork or a garbage collection could find held.
        self._unused: deque[Bytes] = deque(maxlen=most_buffers)

    def take(self, num_bytes: int) -> Bytes:
        """An uninitialised array, shape (num_bytes,), of memory that nobody else uses."""
        return np.asarray(_Lease(self._find(num_bytes), self._unused))[:num_bytes]

    def _find(self, num_bytes: int) -> Bytes:
        for _ in range(len(self._unused)):
            try:
                buffer = self._unused.popleft()
            except IndexError:  # another thread was quicker
                break
            if num_bytes <= buffer.size <= 2 * num_bytes + _GRANULE:
                return buffer
            self._unused.append(buffer)
        return np.empty(-(-max(1, num_bytes) // _GRANULE) * _GRANULE, np.uint8)


class _Lease:
    """Lends a buffer to NumPy. Every array on it, and every view of one, keeps this alive, and nothing else does."""

    def __init__(self, buffer: Bytes, unused: deque[Bytes]) -> None:
        self._buffer, self._unused = buffer, unused
        self.__array_interface__: dict[str, Any] = buffer.__array_interface__  # Any: as NumPy declares it

    def __del__(self) -> None:
        self._unused.append(self._buffer)

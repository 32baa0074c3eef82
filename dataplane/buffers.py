"""Memory that is used again, because fresh memory is dear: the first touch of a new page costs many times the copy
into an old one."""

import os
import sys
import threading
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

# References to a buffer that nobody but its pool holds: the pool's list, the loop variable, getrefcount's argument.
_UNUSED = 3
# Sizes are rounded up to this, so that blocks of almost equal size share buffers.
_GRANULE = 64 << 10


def allocate(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Ordinary memory."""
    return np.empty(num_bytes, np.uint8)


class BufferPool:
    """Buffers of bytes, for any thread. One is handed out again only when no array, tensor or view refers to it any
    more, so whoever got one may keep it for as long as they like."""

    def __init__(self, most_buffers: int, allocate: Callable[[int], npt.NDArray[np.uint8]] = allocate) -> None:
        """Buffers beyond `most_buffers` are left to the allocator; `allocate` decides about pinned memory."""
        self._most_buffers = most_buffers
        self._allocate = allocate
        self._buffers: list[npt.NDArray[np.uint8]] = []
        self._lock = threading.Lock()
        _pools.add(self)

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """An uninitialised view, shape (num_bytes,), of a buffer that nobody else uses."""
        with self._lock:
            return self._unused(num_bytes)[:num_bytes]

    def array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
        """The same as an array of some shape and type."""
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self.take(num_bytes).view(dtype).reshape(shape)

    def renew_lock(self) -> None:
        """For a forked child: whoever held the lock does not exist there."""
        self._lock = threading.Lock()

    def _unused(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        for buffer in self._buffers:
            if num_bytes <= buffer.size <= 2 * num_bytes + _GRANULE and sys.getrefcount(buffer) == _UNUSED:
                return buffer
        buffer = self._allocate(-(-num_bytes // _GRANULE) * _GRANULE)
        if len(self._buffers) >= self._most_buffers:
            self._buffers.pop(0)
        self._buffers.append(buffer)
        return buffer


# The pools of this process, for the one moment at which a fork must reach them.
_pools: "weakref.WeakSet[BufferPool]" = weakref.WeakSet()


def _renew_locks() -> None:
    for pool in _pools:
        pool.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)

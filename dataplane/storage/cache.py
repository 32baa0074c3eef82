"""The node-local cache of blocks: a file per block, named after its digest.

Any number of processes, jobs and datasets share a folder without talking: a name says its content, files appear by
rename, and evicting is unlinking. When a pass reads each block once, evicting what will be read again gains nothing;
so the blocks that a running plan claims are kept, and above the limit a new block displaces only unclaimed ones, or
stays out.
"""

import contextlib
import fcntl
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dataplane.buffers import BufferPool
from dataplane.storage.local import READ_BUFFERS, read_into

_log = logging.getLogger(__name__)

# Digests in claims are cut to 8 bytes: a chance collision keeps one block too many, nothing worse.
_CLAIM = np.dtype(">u8")
# Looking for blocks to evict lists the folder; not more often than this.
_SECONDS_BETWEEN_SCANS = 10.0


class BlockCache:
    """Blocks in a private folder, at most `limit_bytes` of them. Never raises for what the disk does:
    a full, read-only or vanished one costs hits and one warning."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes of a cache must not be negative, got {limit_bytes}")
        self._root = root
        self.limit_bytes = limit_bytes
        self._buffers = BufferPool(READ_BUFFERS)
        self._lock = threading.Lock()
        self._writable: bool | None = None
        self._evictable: list[tuple[Path, int]] = []
        self._scanned = -_SECONDS_BETWEEN_SCANS

    def get(self, digest: bytes) -> memoryview | None:
        """The cached bytes, unverified; None if there are none."""
        try:
            return read_into(self._buffers, self._path(digest), 0)
        except OSError:
            return None

    def drop(self, digest: bytes) -> None:
        """Removes a block that was found damaged."""
        with contextlib.suppress(OSError):
            path = self._path(digest)
            size = path.stat().st_size
            path.unlink()
            self._count(-size)

    def put(self, digest: bytes, data: bytes | memoryview) -> bool:
        """Keeps a block if there is room or room can be made. Whether it was kept."""
        if not self._prepare():
            return False
        try:
            if not self._make_room(len(data)):
                return False
            self._store(self._path(digest), data)
        except OSError as error:
            self._degrade(error)
            return False
        return True

    @contextmanager
    def claim(self, digests: npt.NDArray[np.uint8]) -> Iterator[None]:
        """While inside, no process evicts these blocks, shape (blocks, 32). Dies with the process."""
        if not self._prepare():
            yield
            return
        path = self._root / "claims" / uuid.uuid4().hex
        try:
            claims = np.sort(digests[:, :8].copy().view(_CLAIM).ravel())
            file = path.open("xb")
        except OSError as error:
            self._degrade(error)
            yield
            return
        with file:
            fcntl.flock(file, fcntl.LOCK_SH)
            try:
                with contextlib.suppress(OSError):
                    file.write(claims.tobytes())
                    file.flush()
                yield
            finally:
                with contextlib.suppress(OSError):
                    path.unlink()

    def used_bytes(self) -> int:
        """What the blocks in the folder add up to."""
        return sum(size for _, size, _ in self._scan())

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._root / "blocks" / name[:2] / name

    def _prepare(self) -> bool:
        """Makes the folders on first use. Whether the cache can be written."""
        with self._lock:
            if self._writable is None:
                try:
                    for folder in ("blocks", "claims"):
                        (self._root / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
                    self._root.chmod(0o700)
                    self._recount()
                    self._writable = True
                except OSError as error:
                    self._degrade(error)
            return bool(self._writable)

    def _degrade(self, error: OSError) -> None:
        if self._writable is not False:
            _log.warning(
                "cache %s cannot be written (%s): going on without keeping more blocks",
                self._root,
                error.strerror or error,
            )
        self._writable = False

    def _store(self, path: Path, data: bytes | memoryview) -> None:
        if path.exists():
            self._count(-len(data))
            return
        path.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = path.with_name(f".{uuid.uuid4().hex}")
        try:
            temporary.write_bytes(data)
            temporary.rename(path)
        except OSError:
            self._count(-len(data))
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _make_room(self, num_bytes: int) -> bool:
        """Reserves the bytes, evicting unclaimed blocks if needed. Whether there is room."""
        if self._count(num_bytes) <= self.limit_bytes:
            return True
        with self._lock:
            if not self._evictable and time.monotonic() - self._scanned > _SECONDS_BETWEEN_SCANS:
                self._scanned = time.monotonic()
                self._evictable = self._unclaimed()
            while self._evictable:
                path, size = self._evictable.pop()
                try:
                    path.unlink()
                except FileNotFoundError:
                    continue  # another process evicted it, and counted it
                if self._count(-size) <= self.limit_bytes:
                    return True
        self._count(-num_bytes)
        return False

    def _unclaimed(self) -> list[tuple[Path, int]]:
        """Blocks that no running plan claims, the longest unused last."""
        claimed = self._live_claims()
        found = [(used, path, size) for path, size, used in self._scan() if int(path.name[:16], 16) not in claimed]
        return [(path, size) for _, path, size in sorted(found, reverse=True)]

    def _live_claims(self) -> set[int]:
        claimed: set[int] = set()
        for path in (self._root / "claims").iterdir():
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    data = file.read()
                    claimed.update(np.frombuffer(data[: len(data) // 8 * 8], _CLAIM).tolist())
                else:
                    path.unlink()  # its process is gone
        return claimed

    def _scan(self) -> Iterator[tuple[Path, int, float]]:
        """Path, bytes and time of last use of every block."""
        for folder in (self._root / "blocks").glob("??"):
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    if not entry.name.startswith("."):
                        status = entry.stat()
                        last_use = max(status.st_atime, status.st_mtime)
                        yield Path(entry.path), status.st_size, last_use
                    elif time.time() - entry.stat().st_mtime > 3600:
                        os.unlink(entry.path)  # left by a process that was killed while writing

    def _recount(self) -> None:
        """Makes the shared count exact again, whatever a killed process left."""
        with self._usage_file() as file:
            _write_count(file, self.used_bytes())

    def _count(self, num_bytes: int) -> int:
        """Adds to the bytes that all processes together keep here; the new sum."""
        with self._usage_file() as file:
            data = os.pread(file, 8, 0)
            total = max(0, int.from_bytes(data, "big") + num_bytes)
            _write_count(file, total)
            return total

    @contextmanager
    def _usage_file(self) -> Iterator[int]:
        descriptor = os.open(self._root / "usage", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


def _write_count(descriptor: int, count: int) -> None:
    os.pwrite(descriptor, count.to_bytes(8, "big"), 0)

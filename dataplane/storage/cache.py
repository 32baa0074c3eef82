"""The node-local cache of blocks: a file per block, named after its digest.

Any number of processes, jobs and datasets share a folder without talking: a name says its content, files appear by
rename, and evicting is unlinking. When a pass reads each block once, evicting what will be read again gains nothing;
so the blocks that a running plan claims are kept, and above the limit a new block displaces only unclaimed ones, or
stays out.

The file `usage` says how many bytes the blocks add up to. Its lock is held while blocks come or go; whoever dies while
holding it leaves it marked as unknown, and the next one counts anew.
"""

import contextlib
import fcntl
import logging
import os
import re
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from dataplane.buffers import BufferPool
from dataplane.storage.local import READ_BUFFERS, read_into

_log = logging.getLogger(__name__)

# Digests in claims are cut to 8 bytes: a chance collision keeps one block too many, nothing worse.
_CLAIM = np.dtype(">u8")
# Looking for blocks to evict lists the folder; not more often than this, unless claims have changed.
_SECONDS_BETWEEN_SCANS = 10.0
# A hidden file that nobody has locked after this long was left by a process that was killed.
_SECONDS_UNTIL_ABANDONED = 60.0
# Bytes of all blocks, or -1 while they change; and how often claims have changed.
_USAGE = struct.Struct(">qQ")
_BLOCK_NAME = re.compile(r"[0-9a-f]{64}")
_TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{32}")


class BlockCache:
    """Blocks in a private folder, at most `limit_bytes` of them. Never raises for what the disk does:
    a full, read-only or vanished one costs hits and one warning. Safe to use from many threads."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes of a cache must not be negative, got {limit_bytes}")
        self._root = root
        self.limit_bytes = limit_bytes
        self._buffers = BufferPool(READ_BUFFERS)
        self._writable: bool | None = None
        self._warning = threading.Lock()
        self._evictable = _Evictable([], claims=-1, listed=-_SECONDS_BETWEEN_SCANS)

    def get(self, digest: bytes) -> memoryview | None:
        """The cached bytes, unverified; None if there are none."""
        try:
            return read_into(self._buffers, self._path(digest), 0)
        except OSError:
            return None

    def drop(self, digest: bytes) -> None:
        """Removes a block that was found damaged."""
        if not self._prepare():
            return
        with contextlib.suppress(OSError), self._usage() as usage:
            usage.remove(self._path(digest))

    def put(self, digest: bytes, data: bytes | memoryview) -> bool:
        """Keeps a block if there is room or room can be made. Whether it is in the cache now."""
        path = self._path(digest)
        if not self._prepare():
            return False
        try:
            if path.exists():
                return True
            if not self._make_room(len(data)):
                return False
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with _temporary_file(path.parent) as (temporary, file):
                file.write(data)
                file.flush()
                with self._usage() as usage:
                    # Meanwhile others may have stored this block, or taken the room.
                    if path.exists():
                        return True
                    if not self._evict_for(len(data), usage):
                        return False
                    usage.add(temporary, path, len(data))
                    return True
        except OSError as error:
            self._degrade(error)
            return False

    @contextmanager
    def claim(self, digests: npt.NDArray[np.uint8]) -> Iterator[None]:
        """While inside, no process evicts these blocks, shape (blocks, 32). Dies with the process."""
        with contextlib.ExitStack() as stack:
            if self._prepare():
                try:
                    stack.enter_context(self._claimed(digests))
                except OSError as error:
                    self._degrade(error)
            yield

    def used_bytes(self) -> int:
        """What the blocks in the folder add up to."""
        return sum(size for _, size, _ in self._scan())

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._root / "blocks" / name[:2] / name

    def _prepare(self) -> bool:
        """Makes the folders on first use and counts what is in them. Whether the cache can be written."""
        if self._writable is None:
            try:
                self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
                for folder in ("blocks", "claims"):
                    (self._root / folder).mkdir(mode=0o700, exist_ok=True)
                with self._usage() as usage:
                    usage.num_bytes = self.used_bytes()
                self._writable = True
            except OSError as error:
                self._degrade(error)
        return bool(self._writable)

    def _degrade(self, error: OSError) -> None:
        with self._warning:
            first, self._writable = self._writable is not False, False
        if first:
            _log.warning(
                "cache %s cannot be written (%s): going on without keeping more blocks",
                self._root,
                error.strerror or error,
            )

    def _make_room(self, num_bytes: int) -> bool:
        """Evicts unclaimed blocks until this many more bytes fit. Whether they do."""
        if num_bytes > self.limit_bytes:
            return False
        with self._usage() as usage:
            if self._evict_for(num_bytes, usage):
                return True
            claims = usage.claims
        seen = self._evictable
        too_soon = time.monotonic() - seen.listed < _SECONDS_BETWEEN_SCANS
        if too_soon and seen.claims == claims:
            return False
        # Listing takes long and is done without the lock; claims that come meanwhile make the list void.
        self._evictable = _Evictable([], claims=claims, listed=time.monotonic())
        self._evictable = _Evictable(self._unclaimed(), claims=claims, listed=time.monotonic())
        with self._usage() as usage:
            return self._evict_for(num_bytes, usage)

    def _evict_for(self, num_bytes: int, usage: "_Usage") -> bool:
        evictable = self._evictable.paths if self._evictable.claims == usage.claims else []
        while usage.num_bytes + num_bytes > self.limit_bytes:
            try:
                path = evictable.pop()
            except IndexError:
                return False
            usage.remove(path)
        return True

    def _unclaimed(self) -> list[Path]:
        """Blocks that no running plan claims, the longest unused last."""
        claimed = self._live_claims()
        found = [(used, path) for path, _, used in self._scan() if int(path.name[:16], 16) not in claimed]
        return [path for _, path in sorted(found, reverse=True)]

    @contextmanager
    def _claimed(self, digests: npt.NDArray[np.uint8]) -> Iterator[None]:
        claims = np.sort(np.ascontiguousarray(digests[:, :8]).view(_CLAIM).ravel())
        path = self._root / "claims" / uuid.uuid4().hex
        with _temporary_file(path.parent) as (temporary, file):
            file.write(claims.tobytes())
            file.flush()
            with self._usage() as usage:
                temporary.rename(path)
                usage.claims += 1
            owner = os.getpid()
            try:
                yield
            finally:
                if os.getpid() == owner:  # a forked child lets go of its copy; the claim is the parent's
                    # What it kept may be evicted from now on: lists of evictable blocks are void again.
                    with contextlib.suppress(OSError), self._usage() as usage:
                        path.unlink()
                        usage.claims += 1

    def _live_claims(self) -> set[int]:
        claimed: set[int] = set()
        for path in (self._root / "claims").iterdir():
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                if path.name.startswith("."):
                    _remove_if_abandoned(path)
                elif _is_locked(file):
                    data = file.read()
                    claimed.update(np.frombuffer(data[: len(data) // 8 * 8], _CLAIM).tolist())
                else:
                    path.unlink()  # its process is gone
        return claimed

    def _scan(self) -> Iterator[tuple[Path, int, float]]:
        """Path, bytes and time of last use of every block; removes what killed writers left."""
        for folder in (self._root / "blocks").glob("??"):
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    if _BLOCK_NAME.fullmatch(entry.name):
                        status = entry.stat()
                        last_use = max(status.st_atime, status.st_mtime)
                        yield Path(entry.path), status.st_size, last_use
                    elif _TEMPORARY_NAME.fullmatch(entry.name):
                        _remove_if_abandoned(Path(entry.path))

    @contextmanager
    def _usage(self) -> Iterator["_Usage"]:
        """What the folder holds, exact and changed by nobody else while inside."""
        descriptor = os.open(self._root / "usage", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            data = os.pread(descriptor, _USAGE.size, 0)
            num_bytes, claims = _USAGE.unpack(data) if len(data) == _USAGE.size else (-1, 0)
            if num_bytes < 0:
                num_bytes = self.used_bytes()
            usage = _Usage(descriptor, num_bytes, claims)
            yield usage
            usage.write(usage.num_bytes)
        finally:
            # Closing would not unlock it if a fork had copied the descriptor meanwhile.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


class _Evictable:
    """Blocks that could go, as they were found at one moment."""

    def __init__(self, paths: list[Path], *, claims: int, listed: float) -> None:
        self.paths = paths
        self.claims = claims
        """The count of changed claims at that moment: good while it stays."""
        self.listed = listed


class _Usage:
    """The content of the file `usage`, while its lock is held."""

    def __init__(self, descriptor: int, num_bytes: int, claims: int) -> None:
        self._descriptor = descriptor
        self.num_bytes = num_bytes
        self.claims = claims

    def add(self, temporary: Path, path: Path, num_bytes: int) -> None:
        """Makes a complete file a block."""
        self.write(-1)
        temporary.rename(path)
        self.num_bytes += num_bytes

    def remove(self, path: Path) -> None:
        """Removes a block, if it is there."""
        try:
            size = path.stat().st_size
            self.write(-1)
            path.unlink()
        except FileNotFoundError:
            return
        self.num_bytes -= size

    def write(self, num_bytes: int) -> None:
        os.pwrite(self._descriptor, _USAGE.pack(num_bytes, self.claims), 0)


@contextmanager
def _temporary_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file that is locked as long as its process lives, gone at the end unless it was renamed."""
    path = folder / f".{uuid.uuid4().hex}"
    try:
        with path.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield path, file
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _remove_if_abandoned(path: Path) -> None:
    if time.time() - path.stat().st_mtime > _SECONDS_UNTIL_ABANDONED:
        with path.open("rb") as file:
            if not _is_locked(file):
                path.unlink()


def _is_locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False

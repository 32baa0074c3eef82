"""A folder of the local file system."""

import contextlib
import errno
import fcntl
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataplane.buffers import BufferPool
from dataplane.errors import StorePermissionError, StoreUnavailableError
from dataplane.metrics import Metrics
from dataplane.storage.store import Stat, check_length

# Blocks that may be between reading and decoding at once, and cost no fresh memory.
READ_BUFFERS = 64
# Names that no complete object has; `list` leaves them out, and a crash leaves at most these behind.
TEMPORARY_PREFIX = ".dataplane-tmp-"
_LOCK = f"{TEMPORARY_PREFIX}lock"
# How file systems without hard links say so.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class LocalStore:
    """Objects are files; writes go to a temporary name in the same folder first."""

    is_local = True

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = str(root)
        self.metrics = Metrics()
        self._buffers = BufferPool(READ_BUFFERS)

    def __reduce__(self) -> tuple[type["LocalStore"], tuple[Path]]:
        return LocalStore, (self._root,)

    def read(self, path: str) -> bytes:
        with self._named(path) as file:
            return file.read_bytes()

    def read_range(self, path: str, start: int, stop: int) -> memoryview:
        with self._named(path) as file:
            data = read_into(self._buffers, file, start, stop)
        check_length(self.url, path, start, stop, len(data))
        return data

    def write(self, path: str, data: bytes | memoryview) -> None:
        with self._named(path) as file, _temporary_copy(file, data) as temporary:
            os.replace(temporary, file)
            _sync_folder(file.parent)

    def create(self, path: str, data: bytes | memoryview) -> None:
        with self._named(path) as file, _temporary_copy(file, data) as temporary:
            try:
                os.link(temporary, file)  # unlike a rename, refuses an existing target
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _rename_to_absent(temporary, file)
            _sync_folder(file.parent)

    def list(self, folder: str) -> list[str]:
        with self._named(folder) as root:
            return sorted(
                os.path.relpath(os.path.join(where, name), self._root)
                for where, names in _walk(root)
                for name in names
                if not name.startswith(TEMPORARY_PREFIX)
            )

    def size(self, path: str) -> int:
        return self.stat(path).num_bytes

    def stat(self, path: str) -> Stat:
        with self._named(path) as file:
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):
                raise IsADirectoryError(file)
            return Stat(status.st_size, f"{status.st_size}:{status.st_mtime_ns}", status.st_mtime)

    def scan(self, folder: str) -> dict[str, Stat]:
        found = {}
        for path in self.list(folder):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found[path] = self.stat(path)
        return found

    def delete(self, path: str) -> None:
        with self._named(path) as file:
            file.unlink(missing_ok=True)

    @contextmanager
    def _named(self, path: str) -> Iterator[Path]:
        """The file of a path; turns the system's errors into ones that say what to do."""
        try:
            yield self._root / path
        except (FileNotFoundError, FileExistsError):
            raise
        except (IsADirectoryError, NotADirectoryError) as error:
            raise FileNotFoundError(f"{self.url}/{path} does not exist") from error
        except PermissionError as error:
            raise StorePermissionError(f"{self.url}/{path}: {error.strerror}") from error
        except OSError as error:
            raise StoreUnavailableError(f"{self.url}/{path}: {error.strerror or error}") from error


def read_into(buffers: BufferPool, file: Path, start: int, stop: int | None = None) -> memoryview:
    """The bytes [start, stop) of a file, to its end if `stop` is None; fewer where the file ends before."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        stop = size if stop is None else min(stop, size)  # no memory for what is not there
        view = buffers.take(max(0, stop - start)).data
        filled = 0
        # Linux gives at most 2 GiB at once.
        while filled < len(view) and (count := os.preadv(descriptor, [view[filled:]], start + filled)):
            filled += count
        return view[:filled]
    finally:
        os.close(descriptor)


@contextmanager
def _temporary_copy(file: Path, data: bytes | memoryview) -> Iterator[Path]:
    """A durable copy of the data beside `file`, gone at the end unless it was renamed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _rename_to_absent(temporary: Path, file: Path) -> None:
    """Put-if-absent where the file system has no hard links: among all who do it in this folder on this machine."""
    descriptor = os.open(file.with_name(_LOCK), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # ends with its process
        if os.path.lexists(file):
            raise FileExistsError(file)
        os.rename(temporary, file)
    finally:
        os.close(descriptor)


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Folders and the names of the files in each, through symbolic links but for those that lead back."""
    for where, folders, names in os.walk(root, followlinks=True, onerror=_raise_unless_missing):
        folders[:] = [each for each in folders if not _leads_back(where, each)]
        yield where, names


def _leads_back(where: str, folder: str) -> bool:
    path = os.path.join(where, folder)
    return os.path.islink(path) and Path(where).resolve().is_relative_to(Path(path).resolve())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error

"""A folder of whatever file system fsspec finds: memory, HDFS, HTTP, and the rest."""

import posixpath
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from dataplane.errors import StorePermissionError, StoreUnavailableError
from dataplane.metrics import Metrics
from dataplane.storage.local import TEMPORARY_PREFIX
from dataplane.storage.store import Stat, check_length

_MODIFIED = ("mtime", "LastModified", "last_modified", "updated", "created")
_TAGS = ("ETag", "etag", "e_tag")
# Creating in memory is a look and then a write, between which another thread may create too.
_CREATING = threading.Lock()


class FsspecStore:
    """Writes go to a temporary name and are renamed; where renaming is copying, objects appear whole anyway.

    Put-if-absent is as strong as the file system's own: exclusive in memory, on object stores that have it, and where a
    rename refuses an existing target (HDFS); elsewhere a second writer may pass between the check and the rename.
    """

    is_local = False

    def __init__(self, filesystem: Any, root: str, url: str) -> None:  # Any: fsspec has no types
        self._filesystem: AbstractFileSystem = filesystem
        self._root = root.rstrip("/")
        self.url = url
        self.metrics = Metrics()
        # fsspec's own `mv` copies, takes names for patterns, and is there only where a file system cannot rename.
        self._renames = type(filesystem).mv is not AbstractFileSystem.mv

    def read(self, path: str) -> bytes:
        with self._named(path) as name:
            return bytes(self._filesystem.cat_file(name))

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        with self._named(path) as name:
            data = bytes(self._filesystem.cat_file(name, start=start, end=stop))
        check_length(self.url, path, start, stop, len(data))
        return data

    def write(self, path: str, data: bytes | memoryview) -> None:
        with self._named(path) as name:
            if not self._renames:
                self._filesystem.pipe_file(name, bytes(data))
                return
            with self._temporary_copy(name, data) as temporary:
                try:
                    self._filesystem.mv(temporary, name)
                except FileExistsError:
                    self._filesystem.rm_file(name)
                    self._filesystem.mv(temporary, name)

    def create(self, path: str, data: bytes | memoryview) -> None:
        with self._named(path) as name:
            if not self._renames:
                with _CREATING if isinstance(self._filesystem, MemoryFileSystem) else nullcontext():
                    self._filesystem.pipe_file(name, bytes(data), mode="create")
                return
            if self._filesystem.exists(name):
                raise FileExistsError(name)
            with self._temporary_copy(name, data) as temporary:
                self._filesystem.mv(temporary, name)

    def list(self, folder: str) -> list[str]:
        return list(self.scan(folder))

    def size(self, path: str) -> int:
        return self.stat(path).num_bytes

    def stat(self, path: str) -> Stat:
        with self._named(path) as name:
            status = self._filesystem.info(name)
            if status["type"] != "file":
                raise FileNotFoundError(name)
            return _stat_of(status)

    def scan(self, folder: str) -> dict[str, Stat]:
        with self._named(folder) as name:
            try:
                self._filesystem.invalidate_cache()  # others write here too
                found = self._filesystem.find(name, detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._root) + 1
        return {
            path[start:]: _stat_of(found[path])
            for path in sorted(found)
            if TEMPORARY_PREFIX not in posixpath.basename(path)
        }

    def delete(self, path: str) -> None:
        with self._named(path) as name:
            try:
                self._filesystem.rm_file(name)
            except FileNotFoundError:
                return

    @contextmanager
    def _temporary_copy(self, name: str, data: bytes | memoryview) -> Iterator[str]:
        """A copy of the data beside `name`, gone at the end unless it was renamed."""
        folder = posixpath.dirname(name)
        temporary = posixpath.join(folder, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        self._filesystem.makedirs(folder, exist_ok=True)
        try:
            self._filesystem.pipe_file(temporary, bytes(data))
            yield temporary
        finally:
            with suppress(FileNotFoundError):
                self._filesystem.rm_file(temporary)

    @contextmanager
    def _named(self, path: str) -> Iterator[str]:
        """The full name of a path; turns the file system's errors into ones that say what to do."""
        try:
            yield f"{self._root}/{path}".rstrip("/")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise FileNotFoundError(f"{self.url}/{path} does not exist") from error
        except FileExistsError as error:
            raise FileExistsError(f"{self.url}/{path} exists already") from error
        except PermissionError as error:
            raise StorePermissionError(f"{self.url}/{path}: {_first_line(error)}") from error
        except OSError as error:
            raise StoreUnavailableError(f"{self.url}/{path}: {_first_line(error)}") from error


def _stat_of(info: dict[str, Any]) -> Stat:  # Any: fsspec has no types
    """File systems have several words for an entity tag and for the time of the last change."""
    num_bytes = int(info["size"])
    if (milliseconds := info.get("modification_time")) is not None:  # HDFS
        modified = milliseconds / 1000
    else:
        modified = next((info[word] for word in _MODIFIED if info.get(word) is not None), None)
    if isinstance(modified, datetime):
        modified = modified.timestamp()
    seconds = float(modified) if isinstance(modified, int | float) else None
    tag = next((str(info[word]) for word in _TAGS if info.get(word)), None)
    return Stat(num_bytes, tag or f"{num_bytes}:{seconds}", seconds)


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__

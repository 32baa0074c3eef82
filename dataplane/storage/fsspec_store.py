"""A folder of whatever file system fsspec finds: memory, HDFS, HTTP, and the rest."""

import posixpath
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from dataplane.errors import StorePermissionError, StoreUnavailableError
from dataplane.storage.local import TEMPORARY_PREFIX
from dataplane.storage.store import check_length


class FsspecStore:
    """Writes go to a temporary name and are renamed.

    Put-if-absent is as strong as the file system's own: exclusive in memory and where a rename refuses an existing
    target (HDFS); elsewhere a second writer may pass in the moment between the check and the rename.
    """

    is_local = False

    def __init__(self, filesystem: Any, root: str, url: str) -> None:  # Any: fsspec has no types
        self._filesystem: AbstractFileSystem = filesystem
        self._root = root.rstrip("/")
        self.url = url

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
            temporary = self._write_temporary(name, data)
            self._filesystem.mv(temporary, name)

    def create(self, path: str, data: bytes | memoryview) -> None:
        with self._named(path) as name:
            if isinstance(self._filesystem, MemoryFileSystem):
                self._filesystem.pipe_file(name, bytes(data), mode="create")
                return
            if self._filesystem.exists(name):
                raise FileExistsError(name)
            temporary = self._write_temporary(name, data)
            try:
                self._filesystem.mv(temporary, name)
            except FileExistsError:
                self._filesystem.rm_file(temporary)
                raise

    def list(self, folder: str) -> list[str]:
        with self._named(folder) as name:
            try:
                found = self._filesystem.find(name)
            except FileNotFoundError:
                return []
        start = len(self._root) + 1
        return sorted(path[start:] for path in found if TEMPORARY_PREFIX not in posixpath.basename(path))

    def size(self, path: str) -> int:
        with self._named(path) as name:
            return int(self._filesystem.size(name))

    def delete(self, path: str) -> None:
        with self._named(path) as name:
            try:
                self._filesystem.rm_file(name)
            except FileNotFoundError:
                return

    def _write_temporary(self, name: str, data: bytes | memoryview) -> str:
        folder = posixpath.dirname(name)
        temporary = posixpath.join(folder, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        self._filesystem.makedirs(folder, exist_ok=True)
        self._filesystem.pipe_file(temporary, bytes(data))
        return temporary

    @contextmanager
    def _named(self, path: str) -> Iterator[str]:
        """The full name of a path; turns the file system's errors into ones that say what to do."""
        try:
            yield f"{self._root}/{path}".rstrip("/")
        except (FileNotFoundError, FileExistsError):
            raise
        except PermissionError as error:
            raise StorePermissionError(f"{self.url}/{path}: {_first_line(error)}") from error
        except OSError as error:
            raise StoreUnavailableError(f"{self.url}/{path}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0] or type(error).__name__

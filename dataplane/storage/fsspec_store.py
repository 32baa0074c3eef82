"""A folder of whatever file system fsspec finds: memory, HTTP, WebHDFS, s3fs, and the rest."""

import os
import posixpath
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from typing import Any, TypeVar

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.memory import MemoryFileSystem

from dataplane.errors import (
    ExpiredCredentialsError,
    MissingExtraError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    TruncatedObjectError,
)
from dataplane.metrics import Metrics
from dataplane.storage.filesystem import filesystem_of
from dataplane.storage.local import TEMPORARY_PREFIX
from dataplane.storage.retry import policy_of
from dataplane.storage.secrets import without_secrets
from dataplane.storage.store import EXISTENCE_ERRORS, Stat, check_length, existence_error

T = TypeVar("T")

# Answers that another try may change.
_TRANSIENT = (408, 409, 425, 429, 500, 502, 503, 504)

_MODIFIED = ("mtime", "LastModified", "last_modified", "updated", "created")
_TAGS = ("ETag", "etag", "e_tag")
# Creating in memory is a look and then a write, between which another thread may create too.
_CREATING = threading.Lock()


class FsspecStore:
    """Writes go to a temporary name and are renamed; where renaming is copying, objects appear whole anyway.

    Put-if-absent is as strong as the file system's own: exclusive in memory, on object stores that have it, and where a
    rename refuses an existing target; elsewhere a second writer may pass between the check and the rename.
    Each process has a file system of its own: those that work with asyncio do not outlive a fork.
    """

    is_local = False

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:  # Any: as the file system's own options
        self.url = url.rstrip("/")
        self.metrics = Metrics()
        self._all_options = dict(options)
        self._policy, self._options = policy_of(options)
        self._opened: tuple[int, AbstractFileSystem, str] | None = None

    def __reduce__(self) -> tuple[type["FsspecStore"], tuple[str, dict[str, Any]]]:
        return FsspecStore, (self.url, self._all_options)

    def read(self, path: str) -> bytes:
        return self._ask(path, lambda files, name, _: bytes(files.cat_file(name)))

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        if start == stop:  # some file systems do not ask for an empty range, or cannot
            self.size(path)
            return b""

        def request(files: AbstractFileSystem, name: str, _: int) -> bytes:
            return bytes(files.cat_file(name, start=start, end=stop))

        data = self._ask(path, request)
        if len(data) > stop - start:
            raise StoreError(
                f"{self.url}/{path}: asked for bytes [{start}, {stop}), got {len(data)}: it serves no ranges"
            )
        check_length(self.url, path, start, stop, len(data))
        return data

    def write(self, path: str, data: bytes | memoryview) -> None:
        def request(files: AbstractFileSystem, name: str, _: int) -> None:
            if not _renames(files):
                files.pipe_file(name, bytes(data))
                return
            with _temporary_copy(files, name, data) as temporary:
                if not _moved(files, temporary, name):
                    _remove(files, name)
                    files.mv(temporary, name)

        self._ask(path, request)

    def create(self, path: str, data: bytes | memoryview) -> None:
        def request(files: AbstractFileSystem, name: str, number: int) -> None:
            try:
                self._create(files, name, data)
            except FileExistsError:
                # After a first try whose answer was lost, what is there may be our own.
                if number == 1 or bytes(files.cat_file(name)) != bytes(data):
                    raise

        self._ask(path, request)

    def list(self, folder: str) -> list[str]:
        return sorted(self._found(folder))

    def size(self, path: str) -> int:
        return self.stat(path).num_bytes

    def stat(self, path: str) -> Stat:
        def request(files: AbstractFileSystem, name: str, _: int) -> Stat:
            files.invalidate_cache()  # others write here too
            status = files.info(name)
            if status["type"] != "file":
                raise FileNotFoundError(name)
            return _stat_of(status)

        return self._ask(path, request)

    def scan(self, folder: str) -> dict[str, Stat]:
        return {
            path: self.stat(path) if info.get("size") is None else _stat_of(info)  # web servers list names alone
            for path, info in sorted(self._found(folder).items())
        }

    def _found(self, folder: str) -> dict[str, dict[str, Any]]:  # Any: fsspec's own descriptions
        def request(files: AbstractFileSystem, name: str, _: int) -> dict[str, Any]:
            try:
                files.invalidate_cache()
                found = files.find(name, detail=True, **_strictly(files))
            except FileNotFoundError:
                return {}
            # Some find the folder itself in an empty one.
            return {path: info for path, info in found.items() if path.startswith(f"{name}/")}

        start = len(self._here()[1]) + 1
        return {
            path[start:]: info
            for path, info in self._ask(folder, request).items()
            if TEMPORARY_PREFIX not in posixpath.basename(path)
        }

    def delete(self, path: str) -> None:
        def request(files: AbstractFileSystem, name: str, _: int) -> None:
            with suppress(FileNotFoundError):
                _remove(files, name)

        self._ask(path, request)

    def _create(self, files: AbstractFileSystem, name: str, data: bytes | memoryview) -> None:
        if not _renames(files):
            with _CREATING if isinstance(files, MemoryFileSystem) else nullcontext():
                try:
                    files.pipe_file(name, bytes(data), mode="create")
                except OSError as error:
                    if _status_of(error) == 412:  # s3fs has no error of its own for an object that exists
                        raise FileExistsError(name) from error
                    raise
            return
        if files.exists(name):
            raise FileExistsError(name)
        with _temporary_copy(files, name, data) as temporary:
            if not _moved(files, temporary, name):
                raise FileExistsError(name)

    def _ask(self, path: str, request: Callable[[AbstractFileSystem, str, int], T]) -> T:
        """The answer to a request of a full name that is given the number of its try; in our errors."""

        def attempt(number: int) -> T:
            with self._translated(path):
                files, root = self._here()
                return request(files, f"{root}/{path}".rstrip("/"), number)

        return self._policy.call(attempt, self.metrics)

    def _here(self) -> tuple[AbstractFileSystem, str]:
        if self._opened is None or self._opened[0] != os.getpid():
            files, root = filesystem_of(self.url, self._options)
            self._opened = os.getpid(), files, root.rstrip("/")
        return self._opened[1:]

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """Turns the file system's errors into ours, with one line of its words and none of its secrets."""
        where = f"{self.url}/{path}" if path else self.url
        try:
            yield
        except (StoreError, MissingExtraError):
            raise
        except EXISTENCE_ERRORS as error:
            raise existence_error(where, error) from error
        except Exception as error:  # file systems let the errors of the libraries below them through
            if type(error).__module__ == "builtins" and not isinstance(error, OSError):
                raise  # a mistake in a program, ours or theirs
            text = str(error)
            safe = without_secrets(text, self._options)
            raise _failure(where, error, safe) from (error if safe == text else None)


def _failure(where: str, error: Exception, text: str) -> StoreError:
    """Our error for one of a file system's; `text` is its own, without secrets."""
    reason = text.split("\n", 1)[0] or type(error).__name__
    status = _status_of(error)
    if status == 416:
        return TruncatedObjectError(f"{where}: ends before the bytes asked for")
    if any(word in text for word in ("ExpiredToken", "token has expired", "RequestExpired")):
        return ExpiredCredentialsError(f"{where}: the credentials have expired: {reason}; renew them")
    if isinstance(error, PermissionError) or status in (401, 403) or "NoCredentials" in type(error).__name__:
        return StorePermissionError(f"{where}: the store refuses these credentials: {reason}")
    if isinstance(error, NotImplementedError) or (status is not None and status not in _TRANSIENT):
        return StoreError(f"{where}: {reason}")
    return StoreUnavailableError(f"{where}: {reason}", status=status)


def _status_of(error: BaseException) -> int | None:
    """The HTTP status of the answer, of the error or of the one that it was made from; None where there was none."""
    for each in (error, error.__cause__):
        if isinstance(response := getattr(each, "response", None), dict):  # botocore's
            return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(status := getattr(response, "status_code", None), int):  # that of requests
            return status
        if isinstance(status := getattr(each, "status", None), int):  # aiohttp's
            return status
    return None


def _remove(files: AbstractFileSystem, name: str) -> None:
    """Of one literal name: fsspec's own way for asynchronous file systems forgets to wait for it."""
    if files.async_impl:
        sync(files.loop, files._rm_file, name)
    else:
        files.rm_file(name)


def _strictly(files: AbstractFileSystem) -> dict[str, Any]:
    """What keeps fsspec's own `find` from taking a folder that it cannot reach for an empty one."""
    shared = AsyncFileSystem._find if files.async_impl else AbstractFileSystem.find
    own = type(files)._find if files.async_impl else type(files).find
    return {"on_error": _raise_unless_missing} if own is shared else {}


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _renames(files: AbstractFileSystem) -> bool:
    """fsspec's own `mv` copies, takes names for patterns, and is there only where a file system cannot rename."""
    return type(files).mv is not AbstractFileSystem.mv


def _moved(files: AbstractFileSystem, temporary: str, name: str) -> bool:
    """Renames; False where the target exists, which some file systems say by doing nothing."""
    try:
        files.mv(temporary, name)
    except FileExistsError:
        return False
    return not files.exists(temporary)


@contextmanager
def _temporary_copy(files: AbstractFileSystem, name: str, data: bytes | memoryview) -> Iterator[str]:
    """A copy of the data beside `name`, gone at the end unless it was renamed."""
    folder = posixpath.dirname(name)
    temporary = posixpath.join(folder, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    files.makedirs(folder, exist_ok=True)
    try:
        files.pipe_file(temporary, bytes(data))
        yield temporary
    finally:
        with suppress(FileNotFoundError):
            _remove(files, temporary)


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

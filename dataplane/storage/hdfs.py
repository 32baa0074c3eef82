"""A folder on HDFS, through hdfs-native's client, which needs no JVM.

The client notices a lost NameNode after minutes, so every call has a deadline of ours. NameNodes of a name service, and
whatever else the client wants to know, come from Hadoop's own configuration files in the folder that HADOOP_CONF_DIR or
the option `config_dir` names.
"""

import posixpath
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from dataplane.errors import (
    MissingExtraError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
)
from dataplane.metrics import Metrics
from dataplane.storage.deadline import DeadlineThreads
from dataplane.storage.fork_safe import Library
from dataplane.storage.identity import FirstSeen
from dataplane.storage.local import TEMPORARY_PREFIX
from dataplane.storage.retry import policy_of
from dataplane.storage.store import EXISTENCE_ERRORS, Stat, check_length, existence_error

T = TypeVar("T")

# It keeps connections to DataNodes for the whole process: a forked child would get the answers to its parent's
# requests.
LIBRARY = Library()

# The client finds no answer by itself within this many tries; whoever goes on is our policy, which counts.
_CLIENT_CONFIG = {
    "dfs.client.failover.max.attempts": "2",
    "dfs.client.failover.sleep.base.millis": "50",
    "dfs.client.failover.sleep.max.millis": "200",
}
# One try. A write whose DataNode was lost fails by itself after 16 s.
_TRY_SECONDS = 20.0
_TIMEOUT_SECONDS = 30.0
# Added to a try's time for its data: slower than this is as good as hanging.
_LEAST_BYTES_PER_SECOND = 2e6
# Open files whose block locations are kept; each read of another asks the NameNode twice.
_READERS = 256
# The client copies what it is given to write.
_WRITE_BYTES = 4 << 20

_CLIENT_OPTIONS = ("config_dir", "kerberos_principal", "kerberos_keytab", "kerberos_cache")
# Words of errors that come by no type of their own.
_REFUSALS = ("AccessControlException", "AuthorizationException", "InvalidToken", "Sasl", "SASL", "GSSAPI")
_HOPELESS = (
    "InvalidArgument",
    "InvalidPath",
    "PathComponentTooLong",
    "ParentNotDirectory",
    "PathIsNotEmptyDirectory",
    "QuotaExceeded",
    "UrlParseError",
    "Unsupported",
    "XmlParseError",
)


@dataclass
class _Session:
    """What is open. Made anew when the client did not answer."""

    client: Any  # hdfs_native.Client
    lock: threading.Lock = field(default_factory=threading.Lock)
    readers: OrderedDict[str, Any] = field(default_factory=OrderedDict)
    threads: DeadlineThreads = field(default_factory=DeadlineThreads)


class HdfsStore:
    """Objects are files; writes go to a temporary name beside them, which a rename makes final.

    Put-if-absent is the rename, which refuses an existing target. A range is read from the file as it was when it was
    first opened; once it is known that another took its place, that is an error.
    """

    is_local = False

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:  # Any: strings and numbers
        """`options`: `config_dir`, `kerberos_principal`, `kerberos_keytab`, `kerberos_cache`, Hadoop's own settings
        (every name with a dot in it), and `timeout_seconds`, after which a cluster that does not answer is an error."""
        self.url = url.rstrip("/")
        self.metrics = Metrics()
        self._policy, self._options = policy_of({"timeout_seconds": _TIMEOUT_SECONDS, **options})
        self._authority, _, path = url.partition("://")[2].partition("/")
        self._root = f"/{path}".rstrip("/")
        self._session: _Session | None = None
        self._first_seen = FirstSeen()

    def read(self, path: str) -> bytes:
        def request(session: _Session, _: int) -> bytes:
            self._stat(session, path)
            reader = session.client.read(self._name(path))
            return bytes(reader.read_range(0, len(reader)))

        return self._ask(path, request)

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        def request(session: _Session, _: int) -> bytes:
            try:
                reader = self._reader(session, path)
                end = min(stop, len(reader))  # the client panics when it is asked for more
                return bytes(reader.read_range(start, end - start)) if start < end else b""
            except BaseException:
                session.readers.pop(path, None)  # its blocks may have moved
                raise

        data = self._ask(path, request, num_bytes=stop - start)
        check_length(self.url, path, start, stop, len(data))
        return data

    def write(self, path: str, data: bytes | memoryview) -> None:
        def request(session: _Session, _: int) -> None:
            self._put(session.client, self._name(path), data, overwrite=True)

        self._ask(path, request, num_bytes=len(data))
        self._forget(path)

    def create(self, path: str, data: bytes | memoryview) -> None:
        def request(session: _Session, number: int) -> None:
            name = self._name(path)
            try:
                session.client.get_file_info(name)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    self._put(session.client, name, data, overwrite=False)
                    return
            # After a first try whose answer was lost, what is there may be our own.
            if number == 1 or session.client.read(name).read() != bytes(data):
                raise FileExistsError(name)

        self._ask(path, request, num_bytes=len(data))
        self._forget(path)

    def list(self, folder: str) -> list[str]:
        return list(self.scan(folder))

    def size(self, path: str) -> int:
        return self.stat(path).num_bytes

    def stat(self, path: str) -> Stat:
        def request(session: _Session, _: int) -> Stat:
            return self._stat(session, path)

        return self._ask(path, request)

    def scan(self, folder: str) -> dict[str, Stat]:
        inside = f"{self._name(folder)}/"

        def request(session: _Session, _: int) -> dict[str, Stat]:
            try:
                found = list(session.client.list_status(inside, recursive=True))
            except FileNotFoundError:
                return {}
            return {
                status.path[len(self._root) + 1 :]: _stat_of(status)
                for status in sorted(found, key=lambda status: status.path)
                if status.path.startswith(inside)
                and not status.isdir
                and not posixpath.basename(status.path).startswith(TEMPORARY_PREFIX)
            }

        return self._ask(folder, request)

    def delete(self, path: str) -> None:
        def request(session: _Session, _: int) -> None:
            session.client.delete(self._name(path))  # False where there is none

        self._ask(path, request)
        self._forget(path)

    def _name(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    def _stat(self, session: _Session, path: str) -> Stat:
        status = session.client.get_file_info(self._name(path))
        if status.isdir:
            raise FileNotFoundError(path)
        return _stat_of(status)

    def _reader(self, session: _Session, path: str) -> Any:  # hdfs_native.FileReader
        """The open file, the same as at the first time. Raises ChangedObjectError if another took its place."""
        with session.lock:
            if reader := session.readers.get(path):
                session.readers.move_to_end(path)
                return reader
        found = self._stat(session, path)
        reader = session.client.read(self._name(path))
        if len(reader) != found.num_bytes:  # replaced just now
            found = self._stat(session, path)
        self._first_seen.check(f"{self.url}/{path}", path, found.identity, found.num_bytes)
        with session.lock:
            session.readers[path] = reader
            if len(session.readers) > _READERS:
                session.readers.popitem(last=False)
        return reader

    def _forget(self, path: str) -> None:
        """Of a file that we changed ourselves."""
        session = self._opened()
        with session.lock:
            session.readers.pop(path, None)
        self._first_seen.forget(path)

    def _put(self, client: Any, name: str, data: bytes | memoryview, *, overwrite: bool) -> None:  # hdfs_native.Client
        temporary = posixpath.join(posixpath.dirname(name), f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        try:
            writer = client.create(temporary)
            for start in range(0, len(data), _WRITE_BYTES):
                writer.write(data[start : start + _WRITE_BYTES])
            writer.close()
            try:
                client.rename(temporary, name, overwrite)
            except FileNotFoundError as error:  # renamed already, by a call whose answer was lost
                raise OSError("the answer to a rename was lost") from error
        except BaseException:
            with suppress(Exception):  # the first error is the one to tell; `list` leaves the remains out
                client.delete(temporary)
            raise

    def _ask(self, path: str, request: Callable[[_Session, int], T], num_bytes: int = 0) -> T:
        """The answer to a request that is given the number of its try; within a deadline, and in our errors."""
        patience = num_bytes / _LEAST_BYTES_PER_SECOND
        deadline = time.monotonic() + self._policy.timeout_seconds

        def attempt(number: int) -> T:
            with self._translated(path):
                session = self._opened()
                seconds = min(_TRY_SECONDS, max(1.0, deadline - time.monotonic())) + patience
                try:
                    return session.threads.call(partial(request, session, number), seconds)
                except TimeoutError:
                    self._session = None  # its connections may never answer again
                    raise OSError(f"no answer within {seconds:.0f} s") from None

        return self._policy.call(attempt, self.metrics)

    def _opened(self) -> _Session:
        if (session := self._session) is None:
            self._session = session = _Session(self._make_client())
        return session

    def _make_client(self) -> Any:  # hdfs_native.Client
        try:
            from hdfs_native import Client
        except ImportError:
            raise MissingExtraError(f"{self.url}: needs hdfs-native: pip install 'dataplane[hdfs]'") from None
        config = {name: str(value) for name, value in self._options.items() if "." in name}
        client_options = {name: value for name, value in self._options.items() if name not in config}
        if unknown := client_options.keys() - set(_CLIENT_OPTIONS):
            raise StoreError(
                f"{self.url}: unknown storage option {', '.join(sorted(unknown))}; there are timeout_seconds, "
                f"max_tries, {', '.join(_CLIENT_OPTIONS)}, and Hadoop's own settings, whose names have dots"
            )
        return Client(f"hdfs://{self._authority}", {**_CLIENT_CONFIG, **config}, **client_options)

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """Turns the client's errors into ours, with one line of its words."""
        where = f"{self.url}/{path}" if path else self.url
        try:
            yield
        except (StoreError, MissingExtraError):
            raise
        except EXISTENCE_ERRORS as error:
            raise existence_error(where, error) from error
        except PermissionError as error:
            raise StorePermissionError(f"{where}: {_reason(error)}") from error
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the client's own are RuntimeErrors, and its panics no Exceptions
            text, reason = str(error), _reason(error)
            if "No NameNode hosts found" in text or "No fs.defaultFS setting" in text:
                raise StoreError(
                    f"{where}: {self._authority or 'the URL'} is neither host:port nor a name service of Hadoop's "
                    "configuration; give a port, or the folder of core-site.xml and hdfs-site.xml as HADOOP_CONF_DIR"
                ) from error
            if any(word in text for word in _REFUSALS):
                raise StorePermissionError(f"{where}: {reason}") from error
            if any(word in text for word in _HOPELESS):
                raise StoreError(f"{where}: {reason}") from error
            raise StoreUnavailableError(f"{where}: {reason}") from error


def _stat_of(status: Any) -> Stat:  # hdfs_native.FileStatus
    num_bytes, milliseconds = int(status.length), int(status.modification_time)
    return Stat(num_bytes, f"{num_bytes}:{milliseconds}", milliseconds / 1000)


def _reason(error: BaseException) -> str:
    """One line of what the client or the server said, without the server's Java stack."""
    line = re.split(r"\n|\\n", str(error), maxsplit=1)[0].strip()
    if said := re.match(r'\w+\("(?:[\w$]+\.)*([\w$]+)", "(.*)', line):
        line = f"{said[1]}: {said[2]}"
    return line.rstrip('")') or type(error).__name__

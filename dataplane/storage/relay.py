"""A process that makes a forked child's requests for it.

Requests and answers are frames on a socket pair: a JSON header, then raw bytes. Nothing is unpickled.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, ClassVar, NoReturn

from dataplane import errors
from dataplane.metrics import Metrics
from dataplane.storage.store import Stat

# Requests that one relay has under way at once; two loaders' worth of fetch threads.
_REQUESTS = 32
# The parent's import path, since the child may have been given modules that a new process would not find.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from dataplane.storage.relay import serve; serve(int(sys.argv[1]))"
)

_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        FileNotFoundError,
        FileExistsError,
        errors.StoreError,
        errors.StorePermissionError,
        errors.ExpiredCredentialsError,
        errors.StoreUnavailableError,
        errors.ChangedObjectError,
        errors.TruncatedObjectError,
    )
}


class Relay:
    """The child's end; any number of threads and stores may call at once.

    The process starts on first use and ends with the one that started it: its end of the socket closes.
    """

    _current: ClassVar["Relay | None"] = None
    _starting: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(descriptor), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                pass_fds=[descriptor],
            )
        self._connection = Connection(ours.detach())
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Future[bytes], Metrics]] = {}
        self._lost: str | None = None
        self._next = 0
        threading.Thread(target=self._receive, name="dataplane-relay", daemon=True).start()

    @classmethod
    def of_this_process(cls) -> "Relay":
        """The one relay of this process; another if the last one was lost."""
        with cls._starting:
            if cls._current is None or cls._current._lost:
                cls._current = cls()
            return cls._current

    @classmethod
    def _forget(cls) -> None:
        """In a further fork: its relay is another, and the parent's must end with the parent."""
        cls._starting = threading.Lock()
        if cls._current is not None:
            cls._current._connection.close()
            cls._current = None

    def call(
        self, store: str, metrics: Metrics, verb: str, *arguments: str | int, data: bytes | memoryview = b""
    ) -> bytes:
        """The answer of the method `verb` of a store described by `describe`; raises what it raised."""
        answer: Future[bytes] = Future()
        with self._lock:
            if self._lost:
                raise errors.StoreUnavailableError(self._lost)
            number, self._next = self._next, self._next + 1
            self._waiting[number] = answer, metrics
            header = {"number": number, "store": store, "verb": verb, "arguments": arguments}
            try:
                # Credentials go through the socket, never on the command line.
                self._connection.send_bytes(json.dumps(header).encode())
                self._connection.send_bytes(data)
            except OSError:
                pass  # the relay has ended: the receiving thread says so to all who wait
            except BaseException:
                self._process.kill()  # interrupted within a frame, after which no other can be read
                raise
        return answer.result()

    def _receive(self) -> None:
        """Hands answers to those who wait; whatever ends it, all who still wait are told."""
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    header = json.loads(self._connection.recv_bytes())
                    data = self._connection.recv_bytes()
                    answer, metrics = self._waiting.pop(header["number"])
                    metrics.add(**header["metrics"])
                    if "error" in header:
                        kind = _ERRORS.get(header["error"], errors.StoreError)
                        answer.set_exception(kind(data.decode()))
                    else:
                        answer.set_result(data)
        finally:
            self._process.kill()
            status = self._process.wait()
            lost = f"the relay process ended with status {status}"
            with self._lock:
                self._lost = lost
                waiting = list(self._waiting.values())
                self._waiting.clear()
            for answer, _ in waiting:
                answer.set_exception(errors.StoreUnavailableError(lost))  # one each: it gathers notes on its way


os.register_at_fork(after_in_child=Relay._forget)


class RelayedStore:
    """A store whose requests the relay of this process makes."""

    is_local = False

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:  # Any: as the stores' own options
        self.url = url
        self.metrics = Metrics()
        self._description = describe(url, options)

    def read(self, path: str) -> bytes:
        return self._call("read", path)

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        return self._call("read_range", path, start, stop)

    def write(self, path: str, data: bytes | memoryview) -> None:
        self._call("write", path, data=data)

    def create(self, path: str, data: bytes | memoryview) -> None:
        self._call("create", path, data=data)

    def list(self, folder: str) -> list[str]:
        return self._call("list", folder).decode().split("\0")[:-1]

    def size(self, path: str) -> int:
        return self.stat(path).num_bytes

    def stat(self, path: str) -> Stat:
        return Stat(**json.loads(self._call("stat", path)))

    def scan(self, folder: str) -> dict[str, Stat]:
        return {path: Stat(**stat) for path, stat in json.loads(self._call("scan", folder)).items()}

    def delete(self, path: str) -> None:
        self._call("delete", path)

    def _call(self, verb: str, *arguments: str | int, data: bytes | memoryview = b"") -> bytes:
        return Relay.of_this_process().call(self._description, self.metrics, verb, *arguments, data=data)


def describe(url: str, options: Mapping[str, Any]) -> str:
    """What a relay must know to open a store. Raises StoreError for options that only this process has."""
    try:
        return json.dumps({"url": url, "options": options}, default=_encoded_option)
    except TypeError as error:
        raise errors.StoreError(
            f"{url}: {error}, so it cannot be used in a forked process; "
            "start processes with spawn or forkserver instead"
        ) from None


def _encoded_option(value: object) -> dict[str, float]:
    if isinstance(value, timedelta):
        return {"timedelta_seconds": value.total_seconds()}
    raise TypeError(f"a storage option of type {type(value).__name__} belongs to one process")


def _decoded_option(value: dict[str, Any]) -> Any:  # Any: as the options themselves
    if value.keys() == {"timedelta_seconds"}:
        return timedelta(seconds=value["timedelta_seconds"])
    return value


def serve(descriptor: int) -> NoReturn:
    """Answers until the other end closes, then ends the process, whatever is under way."""
    from dataplane.storage.open import open_store  # here, since it imports this module for `Relay`

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the keyboard speaks to the process that we serve
    connection = Connection(descriptor)
    stores: dict[str, Any] = {}
    lock = threading.Lock()
    told: dict[str, dict[str, float]] = {}

    def news_of(store: str) -> dict[str, float]:
        """What the store has counted since its caller last heard of it."""
        before, told[store] = told.get(store, {}), stores[store].metrics.snapshot()
        return {name: value - before.get(name, 0) for name, value in told[store].items()}

    def answer(request: dict[str, Any], data: bytes) -> None:
        header: dict[str, Any] = {"number": request["number"]}
        verb, bodies = request["verb"], [data] if request["verb"] in ("write", "create") else []
        try:
            store = stores[request["store"]]
            body = _encoded(getattr(store, verb)(*request["arguments"], *bodies))
        except BaseException as error:  # whatever it is, the caller waits for it
            name, text = type(error).__name__, str(error)
            header["error"] = name
            body = (text if name in _ERRORS else f"{name}: {text}").encode()
        try:
            with lock, contextlib.suppress(OSError):
                header["metrics"] = news_of(request["store"])
                connection.send_bytes(json.dumps(header).encode())
                connection.send_bytes(body)
        except BaseException:
            os._exit(1)  # what is not answered would be waited for; the end of this process is seen

    pool = ThreadPoolExecutor(_REQUESTS)
    with contextlib.suppress(EOFError, OSError):
        while True:
            request = json.loads(connection.recv_bytes())
            data = connection.recv_bytes()
            if (store := request["store"]) not in stores:
                greeting = json.loads(store, object_hook=_decoded_option)
                stores[store] = open_store(greeting["url"], greeting["options"])
            pool.submit(answer, request, data)
    os._exit(0)


def _encoded(result: bytes | memoryview | list[str] | Stat | dict[str, Stat] | None) -> bytes | memoryview:
    match result:
        case None:
            return b""
        case Stat():
            return json.dumps(asdict(result)).encode()
        case dict():
            return json.dumps({path: asdict(stat) for path, stat in result.items()}).encode()
        case list():
            return "".join(f"{path}\0" for path in result).encode()
        case _:
            return result

"""A proxy that injects faults between the product and a real HTTP server.

`decide(request)` gives each request its fault, or None; what the proxy saw, when, and what it did is in `seen`.
"""

import contextlib
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    path: str
    """With its query."""
    headers: dict
    """By their names in lower case."""
    number: int
    """How many of this method and path came before."""

    @property
    def access_key(self):
        """Whose signature it carries; None if it is not signed."""
        found = re.search(r"Credential=([^/]+)/", self.headers.get("authorization", ""))
        return found and found[1]


@dataclass(frozen=True)
class Status:
    """An answer of the store's own instead of the server's."""

    status: int
    code: str = "InternalError"
    message: str = "We encountered an internal error."


@dataclass(frozen=True)
class Delay:
    """The server's answer, later."""

    seconds: float


@dataclass(frozen=True)
class Throttle:
    """The server's answer, at so many bytes a second."""

    bytes_per_second: float


@dataclass(frozen=True)
class Reset:
    """The connection is reset after so many bytes of the body; `declared` tells the client of all of them."""

    after_bytes: int


@dataclass(frozen=True)
class Short:
    """A whole answer, by its headers, of a body that lacks its end."""

    num_bytes: int


@dataclass(frozen=True)
class BlackHole:
    """No answer at all, until the proxy ends."""


@dataclass(frozen=True)
class LoseAnswer:
    """The server does what was asked, and the connection is reset before it can say so."""


Fault = Status | Delay | Throttle | Reset | Short | BlackHole | LoseAnswer
EXPIRED = Status(400, "ExpiredToken", "The provided token has expired.")
SLOW_DOWN = Status(503, "SlowDown", "Please reduce your request rate.")


def heavy_tail(*, median_seconds: float, most_seconds: float, seed: int = 0) -> Callable[[Request], Fault]:
    """Latencies of a Pareto distribution: most are near the median, some many times as long."""
    draw = random.Random(seed)
    return lambda _: Delay(min(most_seconds, median_seconds * draw.paretovariate(1.2) / 1.78))


class FaultyProxy(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, endpoint: str, decide: Callable[[Request], Fault | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = endpoint.removeprefix("http://")
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.decide = decide
        self.seen: list[tuple[float, Request, Fault | None]] = []
        self.closing = threading.Event()
        self._counts: Counter = Counter()
        self._lock = threading.Lock()

    def judge(self, method: str, path: str, headers: dict) -> Fault | None:
        with self._lock:
            lower = {name.lower(): value for name, value in headers.items()}
            request = Request(method=method, path=path, headers=lower, number=self._counts[method, path])
            self._counts[method, path] += 1
            fault = self.decide(request)
            self.seen.append((time.monotonic(), request, fault))
            return fault

    def requests(self, method: str | None = None) -> list[Request]:
        return [request for _, request, _ in self.seen if method in (None, request.method)]

    def gaps(self, method: str, part: str) -> list[float]:
        """Seconds between one request of this method, of a path with this part, and the next."""
        times = [when for when, request, _ in self.seen if request.method == method and part in request.path]
        return [later - earlier for earlier, later in pairwise(times)]

    def handle_error(self, *_) -> None:
        pass  # clients that give up are what is tested


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.judge(self.command, self.path, dict(self.headers))
        match fault:
            case BlackHole():
                self.server.closing.wait()
                self._reset()
                return
            case Status(status, code, message):
                text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
                self._send(status, [("Content-Type", "application/xml")], text, len(text))
                return
            case Delay(seconds):
                self.server.closing.wait(seconds)
        upstream = HTTPConnection(self.server.upstream)
        with contextlib.closing(upstream):
            upstream.request(self.command, self.path, body, dict(self.headers))
            response = upstream.getresponse()
            status, headers, data = response.status, response.getheaders(), response.read()
        length = int(dict(headers).get("Content-Length", 0)) if self.command == "HEAD" else len(data)
        match fault:
            case LoseAnswer():
                self._reset()
            case Reset(after_bytes):
                self._send(status, headers, data[:after_bytes], length)
                self._reset()
            case Short(num_bytes):
                # By its own account it is complete; only the range that was asked for says otherwise.
                self._send(status, headers, data[:num_bytes], min(length, num_bytes))
            case Throttle(rate):
                self._send(status, headers, data, length, rate)
            case _:
                self._send(status, headers, data, length)

    def _send(self, status, headers, data, length, rate=None):
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "HEAD":
            return
        step = len(data) if rate is None else max(1, int(rate / 50))
        for start in range(0, len(data), step or 1):
            self.wfile.write(data[start : start + step])
            if rate is not None:
                self.server.closing.wait(step / rate)

    def _reset(self):
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def finish(self):
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def faulty(s3, decide):
    """A proxy before the server, and the storage options that lead through it."""
    with FaultyProxy(s3.endpoint, decide) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=[0.01])
        thread.start()
        try:
            yield proxy, {**s3.storage_options, "endpoint": proxy.endpoint}
        finally:
            proxy.closing.set()
            proxy.shutdown()
            thread.join()

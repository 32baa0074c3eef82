"""Each store keeps the contract; and what is special to one."""

import contextlib
import os
import socket
import threading
import uuid
from datetime import timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from dataplane.errors import StoreError, StorePermissionError, StoreUnavailableError
from dataplane.storage import filesystem_of, open_store
from tests.contracts import AWKWARD_NAMES, StoreContract

IMPATIENT = {
    "retry_config": {
        "max_retries": 2,
        "backoff": {
            "init_backoff": timedelta(milliseconds=1),
            "max_backoff": timedelta(milliseconds=2),
            "base": 2,
        },
        "retry_timeout": timedelta(seconds=10),
    }
}


class RefusingRename(LocalFileSystem):
    """A file system whose rename refuses an existing target, as that of HDFS does."""

    protocol = "refusing-rename"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("refusing-rename://"))

    def mv(self, path1, path2, **_):
        os.link(path1, path2)
        os.unlink(path1)


class TestLocalStore(StoreContract):
    @pytest.fixture
    def root(self, tmp_path):
        return str(tmp_path / "root"), {}


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def root(self):
        return f"memory://{uuid.uuid4().hex}", {}


class TestRenamingStore(StoreContract):
    @pytest.fixture
    def root(self, tmp_path):
        fsspec.register_implementation("refusing-rename", RefusingRename, clobber=True)
        return f"refusing-rename://{tmp_path}/root", {}

    # A rename that refuses the target cannot replace it at once: for a moment there is none.
    test_readers_see_the_old_bytes_or_the_new_ones = None
    test_a_list_never_shows_what_is_being_written = None


class TestObjectStore(StoreContract):
    @pytest.fixture
    def root(self, s3, s3_url):
        return s3_url, s3.storage_options


@pytest.fixture
def closed_port():
    """A port of this machine that nobody listens on while the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


VERBS = {
    "read": ["name"],
    "read_range": ["name", 0, 1],
    "write": ["name", b"x"],
    "create": ["name", b"x"],
    "list": [""],
    "size": ["name"],
    "delete": ["name"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_unreachable_store_is_reported_in_seconds(s3, closed_port, verb):
    endpoint = f"http://127.0.0.1:{closed_port}"
    store = open_store("s3://tests/x", {**s3.storage_options, **IMPATIENT, "endpoint": endpoint})

    with pytest.raises(StoreUnavailableError, match="s3://tests/x") as raised:
        getattr(store, verb)(*VERBS[verb])
    assert s3.storage_options["secret_access_key"] not in str(raised.value)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("wrong", [{"secret_access_key": "wrong-secret"}, {"access_key_id": "nobody"}], ids=str)
def test_refused_credentials_are_a_permission_error(s3, verb, wrong):
    options = {**s3.storage_options, **wrong}
    store = open_store("s3://tests/x", options)

    with pytest.raises(StorePermissionError, match="refuses these credentials") as raised:
        getattr(store, verb)(*VERBS[verb])
    assert options["secret_access_key"] not in str(raised.value)


def test_names_of_s3fs_for_the_options_are_understood(s3, s3_url):
    options = s3.storage_options
    store = open_store(
        s3_url,
        {
            "key": options["access_key_id"],
            "secret": options["secret_access_key"],
            "endpoint_url": options["endpoint"],
        },
    )

    store.write("name", b"x")
    assert store.list("") == ["name"]


@pytest.mark.parametrize("url", ["nonsense://bucket/x", "s4://bucket"])
def test_an_unknown_protocol_is_named(url):
    with pytest.raises(StoreError, match=url):
        open_store(url)


@pytest.mark.parametrize("url", ["s3://", "s3:///path"])
def test_a_url_without_a_bucket_is_named(s3, url):
    with pytest.raises(StoreError, match="s3:"):
        open_store(url, s3.storage_options).list("")


def test_an_unknown_option_is_named(s3):
    with pytest.raises(StoreError, match="acces_key"):
        open_store("s3://tests/x", {**s3.storage_options, "acces_key": "x"}).list("")


@pytest.mark.parametrize("name", AWKWARD_NAMES)
def test_a_file_system_opens_what_its_store_wrote(s3, s3_url, tmp_path, name):
    for url, options in ((str(tmp_path), {}), (s3_url, s3.storage_options)):
        open_store(f"{url}/{name}", options).write(name, b"content")

        filesystem, path = filesystem_of(f"{url}/{name}/{name}", options)
        with filesystem.open(path, "rb") as file:
            assert file.read() == b"content"


class FailingProxy(ThreadingHTTPServer):
    """Hands requests on to a real server; `fails(method, path)` says which get 500 instead."""

    daemon_threads = True

    def __init__(self, endpoint, fails):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = endpoint.removeprefix("http://")
        self.fails = fails
        self.seen = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path))
        if self.server.fails(self.command, self.path):
            status, headers, data = 500, [], b""
        else:
            upstream = HTTPConnection(self.server.upstream)
            with contextlib.closing(upstream):
                upstream.request(self.command, self.path, body, dict(self.headers))
                response = upstream.getresponse()
                status, headers, data = response.status, response.getheaders(), response.read()
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                self.send_header(name, value)
        length = dict(headers).get("Content-Length", "0") if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def proxied(s3, fails):
    with FailingProxy(s3.endpoint, fails) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=[0.01])
        thread.start()
        yield (
            proxy,
            {
                **s3.storage_options,
                **IMPATIENT,
                "endpoint": f"http://127.0.0.1:{proxy.server_port}",
            },
        )
        proxy.shutdown()
        thread.join()


@pytest.mark.parametrize(("verb", "good_parts"), [("create", 0), ("write", 0), ("write", 2)])
def test_a_failed_write_leaves_no_object_and_no_unfinished_upload(s3, s3_url, verb, good_parts):
    puts = []

    def fails(method, path):
        puts.extend([path] * (method == "PUT"))
        return method == "PUT" and len(puts) > good_parts

    with proxied(s3, fails) as (proxy, options):
        with pytest.raises(StoreUnavailableError, match="500"):
            getattr(open_store(s3_url, options), verb)("big", bytes(25 << 20))
        started = [path for method, path in proxy.seen if method == "POST" and "uploads" in path]
        aborted = [path for method, path in proxy.seen if method == "DELETE" and "upload" in path]

    assert len(started) == len(aborted) == (verb == "write")
    assert open_store(s3_url, s3.storage_options).list("") == []


@pytest.mark.parametrize("verb", ["read", "write", "create", "list", "size"])
def test_a_store_that_fails_now_and_then_is_asked_again(s3, s3_url, verb):
    failures = []

    def fails(method, path):
        failures.append(path)
        return len(failures) <= 2

    open_store(s3_url, s3.storage_options).write("name", b"content")
    with proxied(s3, fails) as (_, options):
        arguments = ["other", b"x"] if verb in ("write", "create") else ["name"]
        getattr(open_store(s3_url, options), verb)(*arguments)

    assert len(failures) == 3

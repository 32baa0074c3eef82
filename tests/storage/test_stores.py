"""Each store keeps the contract; and what is special to one."""

import contextlib
import errno
import io
import os
import re
import socket
import threading
import uuid
from datetime import timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from dataplane import StreamingLoader
from dataplane.errors import StoreError, StorePermissionError, StoreUnavailableError
from dataplane.storage import open_store
from tests.contracts import VERBS, StoreContract
from tests.datasets import write_samples
from tests.processes import in_child
from tests.resume import flat, ids_of

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


class TestLocalStoreWithoutHardLinks(StoreContract):
    @pytest.fixture
    def root(self, tmp_path, monkeypatch):
        def refuse(*_):
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        return str(tmp_path / "root"), {}


def test_a_list_goes_through_links_to_folders_and_ends_where_they_lead_back(tmp_path):
    elsewhere = open_store(str(tmp_path / "elsewhere"))
    elsewhere.write("deep/name", b"x")
    store = open_store(str(tmp_path / "root"))
    store.write("folder/name", b"x")
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "folder" / "back").symlink_to(tmp_path / "root")
    (tmp_path / "elsewhere" / "deep" / "self").symlink_to(tmp_path / "elsewhere" / "deep")

    assert store.list("") == ["folder/name", "linked/deep/name"]
    assert store.list("linked") == ["linked/deep/name"]


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


class TestS3fsStore(StoreContract):
    @pytest.fixture
    def root(self, s3, s3_url):
        return s3_url, {**s3.storage_options, "client": "s3fs"}


@pytest.fixture
def closed_port():
    """A port of this machine that nobody listens on while the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


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


class RangedFiles(SimpleHTTPRequestHandler):
    """A web server of files, with one range at a time as the usual ones have it."""

    def log_message(self, *_):
        pass

    def send_head(self):
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        file = Path(self.translate_path(self.path))
        if not found or not file.is_file():
            return super().send_head()
        data = file.read_bytes()[int(found[1]) : int(found[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        return io.BytesIO(data)


@contextlib.contextmanager
def web_server(folder, handler=RangedFiles):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class TestHttp:
    def test_a_dataset_behind_a_web_server_is_read(self, tmp_path):
        write_samples(str(tmp_path / "data"), [10] * 20)
        with (
            web_server(tmp_path) as url,
            StreamingLoader(f"{url}/data", batch_size=8, seed=1, cache_dir=None) as loader,
        ):
            assert sorted(flat(ids_of(loader))) == list(range(200))

    def test_what_is_not_there_is_not_found_and_nothing_is_written(self, tmp_path):
        with web_server(tmp_path) as url:
            store = open_store(f"{url}/data")
            with pytest.raises(FileNotFoundError, match=f"{url}/data/missing"):
                store.read("missing")
            assert store.list("") == []
            with pytest.raises(StoreError, match=f"{url}/data/new"):
                store.create("new", b"x")

    def test_a_server_without_ranges_is_told_so(self, tmp_path):
        (tmp_path / "name").write_bytes(b"0123456789")
        with web_server(tmp_path, _Quiet) as url, pytest.raises(StoreError, match="serves no ranges"):
            open_store(url).read_range("name", 2, 4)

    def test_a_server_that_is_not_there_is_named(self, closed_port):
        url = f"http://127.0.0.1:{closed_port}/data"
        with pytest.raises(StoreUnavailableError, match=url):
            open_store(url, {"timeout_seconds": 0.5}).read("name")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_another_client_is_refused_by_name():
    with pytest.raises(StoreError, match="client=boto"):
        open_store("s3://bucket/x", {"client": "boto"})


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_child_reads_through_s3fs_what_its_parent_reads(s3, s3_url, method):
    store = open_store(s3_url, {**s3.storage_options, "client": "s3fs"})
    store.write("name", b"content")
    store.read("name")

    assert in_child(method, store.read, "name") == b"content"

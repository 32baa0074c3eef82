"""HDFS keeps the stores' contract; and every loss of one of its parts is survived, or told within the deadline."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from dataplane import StreamingLoader
from dataplane.catalog import DatasetWriter, open_dataset
from dataplane.errors import (
    ChangedObjectError,
    DatasetNotFoundError,
    MissingExtraError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    VersionConflictError,
)
from dataplane.storage import open_store
from dataplane.storage.hdfs import HdfsStore, _Session
from tests.contracts import VERBS, StoreContract
from tests.datasets import SAMPLE_SCHEMA, sample_rows, write_samples
from tests.processes import in_child
from tests.resume import flat, ids_of

# A fork with threads about is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

IMPATIENT = {"timeout_seconds": 1}


class TestHdfsStore(StoreContract):
    refused_characters = ":"
    files_beyond_a_page = 101  # the cluster's pages have 10

    @pytest.fixture
    def root(self, hdfs_url):
        return hdfs_url, {}


@pytest.fixture
def store(hdfs_url):
    return open_store(hdfs_url)


@contextmanager
def lost(cluster, *servers):
    """These servers are gone without a good-bye; at the end the cluster is whole again."""
    for server in servers:
        server.kill()
    try:
        yield
    finally:
        for server in servers:
            server.start()
        cluster.wait_until_ready()


def files_left(store):
    """All files below the root, those that `list` leaves out too."""
    direct = store._here()
    listed = direct._opened().client.list_status(direct._root, recursive=True)
    return [status.path for status in listed if not status.isdir]


class RefusingClient:
    """A client that has no ticket the server likes: there is no Kerberos here to ask."""

    def __init__(self, words):
        self._words = words

    def list_status(self, *_, **__):
        raise RuntimeError(self._words)


class TestAWrongAddress:
    def test_a_port_that_nobody_listens_on_is_named_with_the_cause(self):
        store = open_store("hdfs://127.0.0.1:9/data", IMPATIENT)
        with ThreadPoolExecutor(len(VERBS)) as pool:
            failures = [pool.submit(getattr(store, verb), *arguments).exception() for verb, arguments in VERBS.items()]

        for failure in failures:
            assert isinstance(failure, StoreUnavailableError)
            assert re.search(r"hdfs://127\.0\.0\.1:9/data.*refused.*gave up after \d+ tries", str(failure))
        assert store.metrics.snapshot()["store_attempts"] > len(VERBS)

    @pytest.mark.parametrize(
        ("url", "error", "words"),
        [
            ("hdfs://no-such-host.invalid:9000/x", StoreUnavailableError, "no-such-host.invalid.*lookup address"),
            ("hdfs://nameservice/x", StoreError, "nameservice is neither.*HADOOP_CONF_DIR"),
            ("hdfs:///x", StoreError, "HADOOP_CONF_DIR"),
        ],
    )
    def test_a_host_that_is_not_there_is_named(self, url, error, words):
        with pytest.raises(error, match=words):
            open_store(url, IMPATIENT).list("")

    def test_a_port_of_something_else_is_an_error_and_never_an_empty_folder(self, s3):
        url = s3.endpoint.replace("http:", "hdfs:") + "/x"

        with pytest.raises(StoreUnavailableError, match=url):
            open_store(url, IMPATIENT).list("")

    @pytest.mark.parametrize(
        "words",
        [
            'RPCError("org.apache.hadoop.security.AccessControlException", "SIMPLE authentication is not enabled.")',
            'GSSAPIError(851968, 2529639053, "No Kerberos credentials available")',
            "NoSASLMechanism",
        ],
    )
    def test_a_wrong_ticket_is_a_permission_error_and_not_tried_again(self, words):
        store = HdfsStore("hdfs://127.0.0.1:9/x", {})
        store._session = _Session(RefusingClient(words))

        with pytest.raises(StorePermissionError, match=r"hdfs://127\.0\.0\.1:9/x"):
            store.list("")
        assert store.metrics.snapshot()["store_attempts"] == 1

    @pytest.mark.parametrize("protocol", ["hdfs", "webhdfs"])
    def test_a_dataset_behind_it_is_never_missing(self, protocol):
        with pytest.raises(StoreUnavailableError, match=rf"{protocol}://127\.0\.0\.1:9/data.*refused"):
            open_dataset(f"{protocol}://127.0.0.1:9/data", storage_options=IMPATIENT)

    @pytest.mark.parametrize("command", [["preprocess", "SOURCE", "URL"], ["inspect", "URL"]], ids=str)
    def test_commands_end_within_a_minute_and_name_it(self, tmp_path, command):
        source = tmp_path / "in.jsonl"
        source.write_text('{"a": 1}\n')
        places = {"SOURCE": str(source), "URL": "hdfs://127.0.0.1:9/data"}
        command = [places.get(word, word) for word in command]

        done = subprocess.run(
            [sys.executable, "-m", "dataplane", *command, "--storage-option", "timeout_seconds=1"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode != 0
        assert "hdfs://127.0.0.1:9/data" in done.stderr
        assert "refused" in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def test_an_unknown_option_is_named(self, hdfs_url):
        with pytest.raises(StoreError, match="config_folder"):
            open_store(hdfs_url, {"config_folder": "/etc"}).list("")

    def test_the_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "hdfs_native", None)

        with pytest.raises(MissingExtraError, match=r"dataplane\[hdfs\]"):
            open_store("hdfs://127.0.0.1:9/x").list("")


def _list_as(user, url):
    os.environ["HADOOP_USER_NAME"] = user
    store = open_store(url)
    names = store.list("")
    store.write("name", b"theirs")
    return names


def test_a_user_who_may_not_write_gets_a_permission_error_of_one_line(store):
    store.write("name", b"x")

    with pytest.raises(StorePermissionError, match="Permission denied: user=mallory") as raised:
        in_child("spawn", _list_as, "mallory", store.url)
    assert "\n" not in str(raised.value)
    assert store.read("name") == b"x"


def test_a_missing_file_is_one_line(store):
    with pytest.raises(FileNotFoundError) as raised:
        store.read("missing")
    assert str(raised.value) == f"{store.url}/missing does not exist"


def configuration(folder, **properties):
    rows = "".join(
        f"<property><name>{key}</name><value>{value}</value></property>" for key, value in properties.items()
    )
    for file in ("core-site.xml", "hdfs-site.xml"):
        (folder / file).write_text(f"<configuration>{rows}</configuration>")
    return folder


@pytest.fixture
def name_service(hdfs, tmp_path):
    """Hadoop's configuration of a service whose first NameNode is down."""
    return configuration(
        tmp_path,
        **{
            "fs.defaultFS": "hdfs://service",
            "dfs.nameservices": "service",
            "dfs.ha.namenodes.service": "first,second",
            "dfs.namenode.rpc-address.service.first": "127.0.0.1:9",
            "dfs.namenode.rpc-address.service.second": hdfs.authority,
        },
    )


@pytest.mark.parametrize("authority", ["service", ""], ids=["named", "default"])
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_name_service_comes_from_the_configuration_files_of_hadoop(name_service, monkeypatch, authority, by):
    options = {"config_dir": str(name_service)} if by == "option" else {}
    if by == "environment":
        monkeypatch.setenv("HADOOP_CONF_DIR", str(name_service))
    store = open_store(f"hdfs://{authority}/by-{by}-{authority}", options)

    store.write("name", b"content")
    assert store.list("") == ["name"]
    assert store.read("name") == b"content"


def read_name(store):
    return store.read("name"), bytes(store.read_range("name", 1, 3))


@pytest.mark.parametrize("used", ["read", "missing", "unused"])
def test_a_forked_child_reads_whatever_its_parent_did_before(hdfs_url, used):
    store = open_store(hdfs_url)
    open_store(hdfs_url).write("name", b"content")
    if used == "read":
        read_name(store)
    elif used == "missing":
        with pytest.raises(FileNotFoundError):
            store.read("missing")

    assert in_child("fork", read_name, store) == (b"content", b"on")
    assert read_name(store) == (b"content", b"on")


def epoch_of(url):
    with StreamingLoader(url, batch_size=8, seed=1, cache_dir=None) as loader:
        return flat(ids_of(loader))


class TestDataset:
    def test_a_version_is_appended_and_readers_of_the_first_keep_it(self, hdfs_url):
        write_samples(hdfs_url, [5, 5])
        first = open_dataset(hdfs_url)
        writer = DatasetWriter(open_store(hdfs_url), SAMPLE_SCHEMA)
        writer.write(sample_rows(range(10, 14)))
        writer.commit(metadata={}, parent=first.version)

        assert open_dataset(hdfs_url).version.num_rows == 14
        assert open_dataset(hdfs_url, version=1).version == first.version
        assert sorted(epoch_of(hdfs_url)) == list(range(14))

    def test_of_writers_that_commit_at_once_one_wins(self, hdfs_url):
        start = threading.Barrier(4)

        def commit(number):
            writer = DatasetWriter(open_store(hdfs_url), SAMPLE_SCHEMA)
            writer.write(sample_rows(range(number + 1)))
            start.wait()
            try:
                return writer.commit(metadata={}).num_rows
            except VersionConflictError:
                return None

        with ThreadPoolExecutor(4) as pool:
            won = [rows for rows in pool.map(commit, range(4)) if rows is not None]
        assert won == [open_dataset(hdfs_url).version.num_rows]

    def test_what_was_not_committed_is_not_seen(self, hdfs_url):
        DatasetWriter(open_store(hdfs_url), SAMPLE_SCHEMA).write(sample_rows(range(5)))

        with pytest.raises(DatasetNotFoundError):
            open_dataset(hdfs_url)

    @pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
    def test_an_epoch_is_exact_in_a_child_of_a_parent_that_read(self, hdfs_url, method):
        write_samples(hdfs_url, [5] * 20)
        here = epoch_of(hdfs_url)

        assert in_child(method, epoch_of, hdfs_url) == here
        assert sorted(here) == list(range(100))

    def test_commands_read_and_write_it(self, hdfs_url, tmp_path, capsys):
        from dataplane.cli import main

        for name, numbers in (("in/rows.jsonl", range(50)), ("more/rows.jsonl", range(50, 100))):
            open_store(hdfs_url).write(name, "".join(f'{{"n": {n}}}\n' for n in numbers).encode())
        for arguments in (
            ["preprocess", f"{hdfs_url}/in", f"{hdfs_url}/out", "--quiet"],
            ["preprocess", f"{hdfs_url}/more/*.jsonl", f"{hdfs_url}/out", "--append", "--quiet"],
            ["verify", f"{hdfs_url}/out"],
            ["inspect", f"{hdfs_url}/out", "--json"],
        ):
            capsys.readouterr()
            with pytest.raises(SystemExit) as end:
                main(arguments)
            assert not end.value.code, capsys.readouterr().err
        assert open_dataset(f"{hdfs_url}/out").version.num_rows == 100


class TestLosses:
    def test_a_lost_datanode_in_mid_epoch_costs_no_sample(self, hdfs, hdfs_url):
        write_samples(hdfs_url, [5] * 60)
        expected = epoch_of(hdfs_url)
        with StreamingLoader(
            hdfs_url, batch_size=8, seed=1, cache_dir=None, fetch_threads=2, prefetch_batches=1
        ) as loader:
            batches = iter(loader)
            ids = ids_of([next(batches)])
            with lost(hdfs, hdfs.datanodes[0]):
                ids += ids_of(batches)

        assert flat(ids) == expected

    def test_a_datanode_lost_in_mid_write_costs_a_try(self, hdfs, store):
        bodies = {f"folder/{number}": bytes([number]) * (3 << 20) for number in range(3)}
        with lost(hdfs, hdfs.datanodes[1]):
            for name, body in bodies.items():
                store.write(name, body)
            store.create("created", b"x")

            assert {name: store.read(name) for name in bodies} == bodies
            assert store.list("") == ["created", *bodies]
        assert len(files_left(store)) == 4

    def test_a_namenode_that_starts_again_is_waited_for(self, hdfs, store):
        store.write("name", b"content")
        read_name(store)
        with ThreadPoolExecutor(2) as pool:
            with lost(hdfs, hdfs.namenode):
                reading, writing = pool.submit(store.read, "name"), pool.submit(store.create, "new", b"new")
                # Both have failed before it comes back.
                while store.metrics.snapshot().get("store_retries", 0) < 2:
                    threading.Event().wait(0.01)
            assert reading.result() == b"content"
            writing.result()
        assert store.list("") == ["name", "new"]

    @pytest.mark.parametrize("verb", ["read", "write", "list"])
    def test_a_namenode_that_hangs_is_told_within_the_deadline(self, hdfs, hdfs_url, verb):
        store = open_store(hdfs_url, {"timeout_seconds": 2})
        store.write("name", b"content")
        with hdfs.namenode.frozen():
            start = time.monotonic()
            with pytest.raises(StoreUnavailableError, match=f"{hdfs_url}.*no answer within"):
                getattr(store, verb)(*VERBS[verb])
            assert time.monotonic() - start < 10

        assert store.read("name") == b"content"  # a hang is not for ever

    def test_datanodes_that_hang_are_told_and_no_byte_is_made_up(self, hdfs, hdfs_url):
        store = open_store(hdfs_url, IMPATIENT)
        store.write("name", b"content")
        with ExitStack() as hanging:
            for datanode in hdfs.datanodes:
                hanging.enter_context(datanode.frozen())
            with pytest.raises(StoreUnavailableError, match=f"{hdfs_url}/name"):
                store.read_range("name", 0, 7)
            assert store.list("") == ["name"]
        assert store.read("name") == b"content"


class LostAnswers:
    """A client whose first rename is done, and its answer lost."""

    def __init__(self, client):
        self._client, self._lost = client, 0

    def __getattr__(self, name):
        return getattr(self._client, name)

    def rename(self, *arguments):
        self._client.rename(*arguments)
        self._lost += 1
        if self._lost == 1:
            raise OSError("Connection reset by peer")


def test_a_create_whose_answer_was_lost_is_no_conflict_with_itself(store):
    session = store._here()._opened()
    session.client = LostAnswers(session.client)

    store.create("name", b"content")

    assert store.metrics.snapshot()["store_attempts"] == 2
    with pytest.raises(FileExistsError):
        store.create("name", b"content")
    assert len(files_left(store)) == 1


@pytest.mark.parametrize("replacement", [b"b" * 3000, b"b" * 4000], ids=["equal size", "longer"])
def test_a_file_replaced_while_it_is_read_is_named_and_never_mixed(store, replacement):
    store.write("name", b"a" * 3000)
    store.read_range("name", 0, 1000)
    open_store(store.url).write("name", replacement)

    store._here()._opened().readers.clear()  # as when the blocks of the old one are gone, some seconds later
    with pytest.raises(ChangedObjectError, match=f"{store.url}/name: the object was replaced"):
        store.read_range("name", 1000, 2000)


def test_a_file_that_its_reader_replaced_itself_is_read_anew(store):
    for body in (b"first", b"second one"):
        store.write("name", body)
        assert store.read_range("name", 0, len(body)) == body


def test_every_range_is_counted(store):
    store.write("name", b"0123456789")
    before = store.metrics.snapshot()["store_attempts"]

    for start in range(5):
        store.read_range("name", start, 10)

    assert store.metrics.snapshot()["store_attempts"] == before + 5
    assert json.dumps(store.metrics.snapshot())

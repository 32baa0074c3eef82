"""Stores work in child processes, however these were started and whatever the parent did before."""

import contextlib
import json
import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest

from dataplane.errors import StoreError, StorePermissionError, StoreUnavailableError, TruncatedObjectError
from dataplane.metrics import Metrics
from dataplane.storage import open_store
from dataplane.storage.relay import Relay
from tests.processes import PATIENCE_SECONDS, in_child

METHODS = ["fork", "forkserver", "spawn"]

# From Python 3.12 on, forking with threads about is warned of; that is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def read_name(store):
    return store.read("name")


def open_and_read_name(url, options):
    return open_store(url, options).read("name")


def read_not_found(store):
    with pytest.raises(FileNotFoundError):
        store.read("not there")


def list_nothing(store):
    assert store.list("nothing here") == []


def do_nothing(store):
    pass


@pytest.fixture
def store(s3, s3_url):
    store = open_store(s3_url, s3.storage_options)
    store.write("name", b"content")
    return store


@pytest.mark.parametrize(
    ("method", "before"),
    [
        *(("fork", before) for before in (read_name, read_not_found, list_nothing, do_nothing)),
        ("forkserver", read_not_found),
        ("spawn", read_not_found),
    ],
)
def test_a_child_reads_what_its_parent_reads(store, method, before):
    before(store)

    assert in_child(method, read_name, store) == b"content"


@pytest.mark.parametrize("method", METHODS)
def test_a_child_opens_a_store_of_its_own(store, s3, method):
    assert in_child(method, open_and_read_name, store.url, s3.storage_options) == b"content"


def _fork_without_use(url, options):
    """Runs in a fresh process, which has not used the store before it forks."""
    direct = in_child("fork", open_and_read_name, url, options)
    open_store(url, options).list("")
    relayed = in_child("fork", open_and_read_name, url, options)
    return direct, relayed


def test_a_parent_that_has_not_used_the_store_may_fork_too(store, s3):
    results = in_child("spawn", _fork_without_use, store.url, s3.storage_options)

    assert results == (b"content", b"content")


def _use_every_verb(store):
    store.write("written", b"12345")
    store.create("created", b"")
    body = bytes(store.read_range("written", 1, 3)), bytes(store.read_range("written", 2, 2))
    store.delete("name")
    store.delete("name")
    assert store.scan("") == {path: store.stat(path) for path in ("created", "written")}
    return body, store.list(""), store.size("written"), store.read("created")


def test_a_forked_child_can_do_all_that_its_parent_can(store):
    results = in_child("fork", _use_every_verb, store)

    assert results == ((b"23", b""), ["created", "written"], 5, b"")


def _errors_of(store, refused, unreachable):
    found = []
    for one, verb, *arguments in [
        (store, "read", "missing"),
        (store, "create", "name", b"x"),
        (store, "read_range", "name", 0, 100),
        (store, "read", "a\tb"),
        (refused, "read", "name"),
        (unreachable, "list", ""),
    ]:
        try:
            getattr(one, verb)(*arguments)
        except Exception as error:
            found.append(type(error))
    return found


def test_errors_in_a_forked_child_are_those_of_its_parent(store, s3):
    wrong = {**s3.storage_options, "secret_access_key": "wrong"}
    nowhere = {**s3.storage_options, "endpoint": "http://127.0.0.1:9"}
    nowhere["retry_config"] = {"max_retries": 1, "retry_timeout": timedelta(seconds=2)}
    stores = [store, open_store(store.url, wrong), open_store(store.url, nowhere)]

    assert (
        in_child("fork", _errors_of, *stores)
        == [
            FileNotFoundError,
            FileExistsError,
            TruncatedObjectError,
            StoreError,
            StorePermissionError,
            StoreUnavailableError,
        ]
        == _errors_of(*stores)
    )


def test_options_of_every_kind_reach_a_forked_child(store, s3):
    retries = {"max_retries": 1, "retry_timeout": timedelta(seconds=2)}
    clients = {"timeout": "7s", "allow_http": True}
    options = {**s3.storage_options, "retry_config": retries, "client_options": clients}

    assert in_child("fork", read_name, open_store(store.url, options)) == b"content"


def test_options_that_belong_to_a_process_are_refused_in_a_forked_child(store, s3):
    options = {**s3.storage_options, "credential_provider": print}

    with pytest.raises(StoreError, match=r"builtin_function.*spawn or forkserver"):
        in_child("fork", read_name, open_store(store.url, options))


def _write_and_read_much(store):
    def one(number):
        body = bytes([number]) * (number * 10_000 + number)
        store.write(f"body/{number}", body)
        with contextlib.suppress(FileNotFoundError):
            store.read(f"missing/{number}")
        return store.read(f"body/{number}") == body

    with ThreadPoolExecutor(40) as pool:
        return list(pool.map(one, range(80)))


def test_many_threads_of_a_forked_child_share_a_relay(store):
    assert all(in_child("fork", _write_and_read_much, store))


def _big_body(store):
    body = os.urandom(1 << 20) * 24
    store.write("big", body)
    return store.read("big") == body, bytes(store.read_range("big", 5, len(body))) == body[5:]


def test_big_bodies_pass_a_relay(store):
    assert in_child("fork", _big_body, store) == (True, True)


def _read_in_two_generations(store):
    own = store.read("name")
    grandchild = in_child("fork", read_name, store)
    return own, grandchild, store.read("name")


def test_a_fork_of_a_fork_reads_too(store):
    assert in_child("fork", _read_in_two_generations, store) == (b"content",) * 3


def _relay_pid(store):
    store.read("name")
    return Relay.of_this_process()._process.pid


def _relay_pid_that_a_fork_outlives(store):
    pid = _relay_pid(store)
    # Its own child lives on, and holds copies of all that it had open.
    sleeper = multiprocessing.get_context("fork").Process(target=signal.pause)
    sleeper.start()
    return pid, sleeper.pid


def assert_ends(pid):
    """Waits for the end of a process that is nobody's child here, or a zombie of init's."""
    for _ in range(PATIENCE_SECONDS * 100):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except (FileNotFoundError, ProcessLookupError):
            return
        threading.Event().wait(0.01)
    pytest.fail(f"process {pid} goes on")


def test_a_relay_ends_with_its_process(store):
    assert_ends(in_child("fork", _relay_pid, store))


def _kill_while_reading(store, sender):
    pid = _relay_pid(store)
    threading.Thread(target=_write_and_read_much, args=[store], daemon=True).start()
    sender.send(pid)
    signal.pause()


def test_a_relay_ends_when_its_process_is_killed(store):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with receiver, sender:
        child = context.Process(target=_kill_while_reading, args=(store, sender))
        child.start()
        pid = receiver.recv()
        child.kill()
        child.join()
    assert_ends(pid)


def _pids_of_relays(store):
    with ThreadPoolExecutor(16) as pool:
        return set(pool.map(_relay_pid, [store] * 64))


def test_threads_that_start_at_once_start_one_relay(store):
    assert len(in_child("fork", _pids_of_relays, store)) == 1


def _read_after_losing_the_relay(store):
    process = Relay.of_this_process()._process
    with ThreadPoolExecutor(8) as pool:
        reading = [pool.submit(store.read, "name") for _ in range(200)]
        process.kill()
        failures = [future.exception() for future in reading]
    kinds = {type(failure) for failure in failures if failure is not None}
    return kinds, store.read("name")


def test_a_lost_relay_is_an_error_and_then_another_is_started(store):
    kinds, after = in_child("fork", _read_after_losing_the_relay, store)

    assert kinds <= {StoreUnavailableError}
    assert after == b"content"


def _interrupted(store):
    store.read("name")
    os.kill(Relay.of_this_process()._process.pid, signal.SIGINT)
    return store.read("name")


def test_a_relay_leaves_the_keyboard_to_its_process(store):
    assert in_child("fork", _interrupted, store) == b"content"


def _count(metrics):
    metrics.add(counted=1)
    return metrics.snapshot()["counted"]


def test_a_fork_while_another_thread_counts_can_count():
    metrics = Metrics()
    with metrics._lock:  # as a thread does that the fork leaves behind
        assert in_child("fork", _count, metrics) == 1


def _read_after_an_answer_that_nobody_asked_for(store):
    store.read("name")
    relay, waiting = Relay.of_this_process(), Future()
    header = {"number": 999, "store": store._here()._description, "verb": "read", "arguments": ["name"]}
    with relay._lock:
        relay._waiting[1000] = waiting, store.metrics
        relay._connection.send_bytes(json.dumps(header).encode())
        relay._connection.send_bytes(b"")
    with pytest.raises(StoreUnavailableError, match="relay process ended"):
        waiting.result(PATIENCE_SECONDS / 2)
    return store.read("name")


def test_a_broken_conversation_ends_the_relay_and_leaves_nobody_waiting(store):
    assert in_child("fork", _read_after_an_answer_that_nobody_asked_for, store) == b"content"

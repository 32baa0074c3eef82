"""Blocks are brought once each, verified, in whatever way their requests are joined, split, repeated or lost."""

import random
import threading
import time

import pytest

from dataplane.errors import CorruptBlockError, StoreUnavailableError, TruncatedObjectError
from dataplane.metrics import Metrics
from dataplane.plan import Block
from dataplane.storage import BlockCache, BlockSource, Fetcher, Hedging, Pace, digest_of, open_store
from tests.processes import PATIENCE_SECONDS, in_child

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

BLOCK_BYTES = 1000
DATA = random.Random(0).randbytes(200 * BLOCK_BYTES)
MIB = 1 << 20


def blocks_of(data=DATA, size=BLOCK_BYTES, shard="shard"):
    bodies = [data[start : start + size] for start in range(0, len(data), size)]
    return [
        Block(
            shard=shard,
            offset=number * size,
            num_bytes=len(body),
            num_rows=1,
            raw_bytes=1,
            digest=digest_of(body),
        )
        for number, body in enumerate(bodies)
    ]


class Watched:
    """A store that records its reads and does something before each."""

    def __init__(self, store, before=lambda number, path, start, stop: None):
        self.url, self.is_local = store.url, store.is_local
        self._store, self._before = store, before
        self._lock = threading.Lock()
        self.reads = []
        self.in_flight = self.most_in_flight = 0

    def read_range(self, path, start, stop):
        with self._lock:
            number = len(self.reads)
            self.reads.append((start, stop))
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            changed = self._before(number, path, start, stop)
            return self._store.read_range(path, start, stop) if changed is None else changed
        finally:
            with self._lock:
                self.in_flight -= 1


class Answers:
    """What was delivered for which block; waits for all."""

    def __init__(self, fetcher, blocks):
        self._changed = threading.Condition()
        self._found = {}
        self.times = {}
        for number, block in enumerate(blocks):
            fetcher.submit(block, lambda outcome, number=number: self._receive(number, outcome))
        self._count = len(blocks)

    def _receive(self, number, outcome):
        with self._changed:
            self.times[number] = self.times.get(number, 0) + 1
            self._found[number] = outcome
            self._changed.notify_all()

    def all(self):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._found) == self._count, PATIENCE_SECONDS)
            assert set(self.times.values()) == {1}
            return [self._found[number] for number in range(self._count)]


@pytest.fixture
def store(tmp_path):
    store = open_store(str(tmp_path / "data"))
    store.write("shard", DATA)
    return store


def fetched(store, blocks, *, pace=None, cache=None, metrics=None, **options):
    with Fetcher(BlockSource(store, cache, metrics or Metrics()), pace or Pace(), **options) as fetcher:
        return Answers(fetcher, blocks).all()


def bodies(outcomes):
    return b"".join(bytes(outcome) for outcome in outcomes)


@pytest.mark.parametrize("most_requests", [1, 2, 16, 128])
@pytest.mark.parametrize("shuffled", [False, True])
def test_every_block_is_delivered_once_with_its_own_bytes(store, most_requests, shuffled):
    blocks = blocks_of()
    if shuffled:
        random.Random(1).shuffle(blocks)
    outcomes = fetched(store, blocks, pace=Pace(most_requests=most_requests))

    assert all(digest_of(outcome) == block.digest for outcome, block in zip(outcomes, blocks, strict=True))


@pytest.mark.parametrize("most_requests", [1, 3, 20])
def test_no_more_requests_are_in_flight_than_allowed(store, most_requests):
    watched = Watched(store, lambda *_: time.sleep(0.002))
    random_order = random.Random(2).sample(blocks_of()[::2], 100)  # no neighbours

    fetched(watched, random_order, pace=Pace(most_requests=most_requests))
    assert watched.most_in_flight <= most_requests
    assert len(watched.reads) == 100


def test_no_more_bytes_are_in_flight_than_allowed(store):
    watched = Watched(store, lambda *_: time.sleep(0.002))

    fetched(watched, blocks_of()[::2], most_bytes_in_flight=3 * BLOCK_BYTES)
    assert watched.most_in_flight <= 3


def test_a_block_larger_than_what_may_be_in_flight_is_brought_alone(store):
    assert bodies(fetched(store, blocks_of(size=100_000), most_bytes_in_flight=10)) == DATA


def test_neighbours_that_wait_are_read_together(store):
    metrics, begun = Metrics(), threading.Event()
    watched = Watched(store, lambda number, *_: begun.wait(PATIENCE_SECONDS) and None if number == 0 else None)
    with Fetcher(BlockSource(watched, None, metrics), Pace(most_requests=1)) as fetcher:
        answers = Answers(fetcher, blocks_of())
        begun.set()
        assert bodies(answers.all()) == DATA

    assert len(watched.reads) < 10
    assert sum(stop - start for start, stop in watched.reads) == len(DATA)
    assert metrics.snapshot()["coalesced_blocks"] > 150


def test_of_neighbours_only_those_beyond_the_end_are_lost(store):
    store.write("shard", DATA[: 100 * BLOCK_BYTES])
    metrics, begun = Metrics(), threading.Event()
    watched = Watched(store, lambda number, *_: begun.wait(PATIENCE_SECONDS) and None if number == 0 else None)
    with Fetcher(BlockSource(watched, None, metrics), Pace(most_requests=1)) as fetcher:
        answers = Answers(fetcher, blocks_of())
        begun.set()
        outcomes = answers.all()

    assert bodies(outcomes[:100]) == DATA[: 100 * BLOCK_BYTES]
    assert {type(outcome) for outcome in outcomes[100:]} == {CorruptBlockError}


def test_a_large_block_comes_in_parts_and_whole(tmp_path):
    body = random.Random(1).randbytes(20 * MIB)
    store = open_store(str(tmp_path))
    store.write("shard", body)
    metrics, watched = Metrics(), Watched(store)
    (outcome,) = fetched(watched, blocks_of(body, len(body)), metrics=metrics)

    assert bytes(outcome) == body
    assert len(watched.reads) == 5
    assert metrics.snapshot()["split_blocks"] == 1


@pytest.mark.parametrize("error", [TruncatedObjectError, StoreUnavailableError, FileNotFoundError])
@pytest.mark.parametrize("times", [1, 2, 1000])
def test_a_part_that_fails_fails_or_repeats_the_block(tmp_path, error, times):
    body = random.Random(1).randbytes(20 * MIB)
    store = open_store(str(tmp_path))
    store.write("shard", body)
    failures = iter(range(times))

    def fail(number, path, start, stop):
        if start == 4 * MIB and next(failures, None) is not None:
            raise error("this part")

    (outcome,) = fetched(Watched(store, fail), blocks_of(body, len(body)))
    if error is TruncatedObjectError and times < 3:
        assert bytes(outcome) == body
    else:
        assert isinstance(outcome, CorruptBlockError if error is TruncatedObjectError else error)


@pytest.mark.parametrize("change", [lambda data: b"x" + data[1:], lambda data: data[:-1], lambda data: data + b"x"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("size", [BLOCK_BYTES, len(DATA)])
def test_wrong_bytes_are_asked_for_again(store, change, times, size):
    failures, lock = {}, threading.Lock()

    def tamper(number, path, start, stop):
        with lock:
            failures[start] = failures.get(start, 0) + 1
            return change(DATA[start:stop]) if failures[start] <= times else None

    assert bodies(fetched(Watched(store, tamper), blocks_of(size=size))) == DATA


def test_bytes_that_stay_wrong_name_expected_and_found(store):
    block, metrics = blocks_of()[0], Metrics()
    watched = Watched(store, lambda *_: bytes(BLOCK_BYTES))
    (outcome,) = fetched(watched, [block], metrics=metrics)

    assert isinstance(outcome, CorruptBlockError)
    assert block.digest.hex() in str(outcome)
    assert digest_of(bytes(BLOCK_BYTES)).hex() in str(outcome)
    assert len(watched.reads) == metrics.snapshot()["corrupt_fetches"] == 3


def test_errors_go_to_those_who_want_the_block(store):
    def refuse(number, path, start, stop):
        if start == 100 * BLOCK_BYTES:
            raise StoreUnavailableError("gone")

    chosen = blocks_of()[::2]
    metrics, pace = Metrics(), Pace()
    outcomes = fetched(Watched(store, refuse), chosen, metrics=metrics, pace=pace)

    assert [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Exception)] == [50]
    assert metrics.snapshot()["failed_requests"] == 1
    assert metrics.snapshot()["backoffs"] == 1
    # By how much depends on what the limit had grown to by then.
    assert pace.limit.cut_at > 0


class Stuck:
    """Holds the reads with these numbers until they are let go."""

    def __init__(self, *numbers):
        self._numbers, self.free = numbers, threading.Event()

    def __call__(self, number, path, start, stop):
        time.sleep(0.001)
        if number in self._numbers:
            assert self.free.wait(PATIENCE_SECONDS)


def test_a_request_that_is_late_is_overtaken_by_a_second_one(store):
    stuck, metrics, blocks = Stuck(60, 80), Metrics(), blocks_of()[::2]
    watched = Watched(store, stuck)
    with Fetcher(BlockSource(watched, None, metrics), Pace(hedging=Hedging())) as fetcher:
        outcomes = Answers(fetcher, blocks).all()  # while the first ones are still stuck
        assert metrics.snapshot()["hedges_won"] == 2
        stuck.free.set()

    assert all(digest_of(outcome) == block.digest for outcome, block in zip(outcomes, blocks, strict=True))
    assert metrics.snapshot()["hedges"] <= 0.05 * len(blocks)


def test_an_overtaken_request_does_not_count_as_in_flight(store):
    stuck, metrics = Stuck(60), Metrics()
    with Fetcher(
        BlockSource(Watched(store, stuck), None, metrics), Pace(most_requests=1, hedging=Hedging())
    ) as fetcher:
        assert len(Answers(fetcher, blocks_of()[::2]).all()) == 100
        stuck.free.set()


def test_a_second_request_that_fails_does_not_fail_the_first(store):
    blocks, seen = blocks_of()[::2], []
    first = threading.Event()

    def before(number, path, start, stop):
        time.sleep(0.001)
        if start in seen:
            first.set()
            raise StoreUnavailableError("the second one")
        seen.append(start)
        if number == 60:
            assert first.wait(PATIENCE_SECONDS)

    outcomes = fetched(Watched(store, before), blocks, pace=Pace(hedging=Hedging()))
    assert all(digest_of(outcome) == block.digest for outcome, block in zip(outcomes, blocks, strict=True))


def test_without_hedging_there_are_no_second_requests(store):
    metrics = Metrics()
    watched = Watched(store, lambda number, *_: time.sleep(0.2 if number == 60 else 0.001))
    fetched(watched, blocks_of()[::2], metrics=metrics)

    assert len(watched.reads) == 100
    assert "hedges" not in metrics.snapshot()


def test_what_is_cached_is_not_asked_for(store, tmp_path):
    cache, watched = BlockCache(tmp_path / "cache", MIB), Watched(store)
    for _ in range(2):
        with Fetcher(BlockSource(watched, cache, Metrics()), Pace()) as fetcher:
            assert bodies(Answers(fetcher, blocks_of()).all()) == DATA

    assert sum(stop - start for start, stop in watched.reads) == len(DATA)


def test_closing_ends_all_threads_and_drops_what_waits(store):
    before = threading.active_count()
    fetcher = Fetcher(
        BlockSource(Watched(store, lambda *_: time.sleep(0.01)), None, Metrics()), Pace(hedging=Hedging())
    )
    answers = Answers(fetcher, random.Random(3).sample(blocks_of(), 200))
    fetcher.close()

    assert threading.active_count() == before
    assert len(answers.times) < 200


def test_closing_does_not_wait_for_a_store_that_hangs(store):
    stuck = Stuck(0)
    with Fetcher(BlockSource(Watched(store, stuck), None, Metrics()), Pace()) as fetcher:
        Answers(fetcher, blocks_of()[:1])
    stuck.free.set()


def test_a_forked_child_may_close_its_copy(store):
    with Fetcher(BlockSource(store, None, Metrics()), Pace()) as fetcher:
        Answers(fetcher, blocks_of()).all()
        in_child("fork", fetcher.close)
        Answers(fetcher, blocks_of()).all()


def test_every_request_is_counted(store):
    metrics, watched = Metrics(), Watched(store)
    fetched(watched, blocks_of(), metrics=metrics)
    seen = metrics.snapshot()

    assert seen["requests"] == len(watched.reads)
    assert seen["fetched_bytes"] == len(DATA)
    assert seen["fetch_seconds"] > 0
    assert seen["request_limit"] == 16


def test_blocks_come_from_a_real_object_store(s3, s3_url):
    store = open_store(s3_url, s3.storage_options)
    store.write("shard", DATA)

    assert bodies(fetched(store, blocks_of(), pace=Pace(hedging=Hedging()))) == DATA

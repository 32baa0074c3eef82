"""Blocks reach the caller verified or not at all, from wherever they come."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from dataplane.errors import CorruptBlockError, StoreUnavailableError
from dataplane.metrics import Metrics
from dataplane.plan import Block
from dataplane.storage import BlockCache, BlockSource, digest_of, open_store

DATA = bytes(range(256)) * 100


class Tampering:
    """A store whose first `times` ranged reads are changed on the way."""

    def __init__(self, store, change, times):
        self.url, self.is_local = store.url, store.is_local
        self._store, self._change, self._times = store, change, times
        self.reads = 0

    def read_range(self, path, start, stop):
        self.reads += 1
        data = self._store.read_range(path, start, stop)
        return self._change(data) if self.reads <= self._times else data


def flipped(data):
    return bytes([data[0] ^ 1]) + bytes(data[1:])


@pytest.fixture
def store(tmp_path):
    store = open_store(str(tmp_path / "data"))
    store.write("shard", b"before" + DATA + b"after")
    return store


@pytest.fixture
def cache(tmp_path):
    return BlockCache(tmp_path / "cache", 1 << 20)


def block_of(data=DATA, shard="shard"):
    return Block(shard=shard, offset=6, num_bytes=len(data), num_rows=1, raw_bytes=1, digest=digest_of(data))


def test_a_block_is_fetched_once_and_then_served_from_the_cache(store, cache):
    counting, metrics = Tampering(store, None, 0), Metrics()
    source = BlockSource(counting, cache, metrics)

    assert [bytes(source.read(block_of())) for _ in range(3)] == [DATA] * 3
    assert counting.reads == 1
    assert metrics.snapshot()["cache_hits"] == 2


def test_a_flipped_byte_in_the_cache_is_noticed_dropped_and_fetched_again(store, cache):
    metrics = Metrics()
    source = BlockSource(store, cache, metrics)
    source.read(block_of())
    path = cache._path(block_of().digest)
    path.write_bytes(flipped(DATA))

    assert bytes(source.read(block_of())) == DATA
    assert path.read_bytes() == DATA
    assert metrics.snapshot()["cache_corrupt"] == 1


@pytest.mark.parametrize("left", [0, 1, len(DATA) - 1])
def test_a_torn_file_in_the_cache_is_fetched_again(store, cache, left):
    source = BlockSource(store, cache, Metrics())
    source.read(block_of())
    cache._path(block_of().digest).write_bytes(DATA[:left])

    assert bytes(source.read(block_of())) == DATA


@pytest.mark.parametrize("change", [flipped, lambda data: data[:-1], lambda data: bytes(data) + b"x"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_body_that_is_wrong_at_first_is_asked_for_again(store, cache, change, times):
    source = BlockSource(Tampering(store, change, times), cache, Metrics())

    assert bytes(source.read(block_of())) == DATA


def test_a_body_that_stays_wrong_names_shard_expected_and_found(store, cache):
    tampering = Tampering(store, flipped, 1000)
    source = BlockSource(tampering, cache, Metrics())

    with pytest.raises(CorruptBlockError, match="shard") as raised:
        source.read(block_of())
    assert block_of().digest.hex() in str(raised.value)
    assert digest_of(flipped(DATA)).hex() in str(raised.value)
    assert tampering.reads == 3
    assert cache.used_bytes() == 0


def test_a_shard_that_ends_too_early_is_corrupt(store, cache):
    store.write("shard", b"before" + DATA[:50])

    with pytest.raises(CorruptBlockError, match="shard"):
        BlockSource(store, cache, Metrics()).read(block_of())


def test_a_shard_on_an_object_store_that_ends_too_early_is_corrupt(s3, s3_url):
    store = open_store(s3_url, s3.storage_options)
    store.write("shard", b"abc")

    with pytest.raises(CorruptBlockError, match="shard"):
        BlockSource(store, None, Metrics()).read(block_of())


def test_a_missing_shard_is_not_found(store, cache):
    with pytest.raises(FileNotFoundError, match="lost"):
        BlockSource(store, cache, Metrics()).read(block_of(shard="lost"))


def test_a_store_that_fails_is_not_taken_for_a_short_body(store, cache):
    def refuse(data):
        raise StoreUnavailableError("gone")

    tampering = Tampering(store, refuse, 1000)
    with pytest.raises(StoreUnavailableError, match="gone"):
        BlockSource(tampering, cache, Metrics()).read(block_of())
    assert tampering.reads == 1


def test_equal_names_in_two_datasets_do_not_meet_in_the_cache(tmp_path, cache):
    for name in ("one", "two"):
        store = open_store(str(tmp_path / name))
        data = name.encode() * 100
        store.write("shard", b"before" + data)

        block = block_of(data)
        source = BlockSource(store, cache, Metrics())
        assert [bytes(source.read(block)) for _ in range(2)] == [data] * 2


def test_many_threads_read_at_once(store, cache):
    source = BlockSource(store, cache, Metrics())

    with ThreadPoolExecutor(16) as pool:
        found = pool.map(lambda _: bytes(source.read(block_of())), range(200))
    assert set(found) == {DATA}


def test_without_a_cache_every_read_is_verified_too(store):
    with pytest.raises(CorruptBlockError):
        BlockSource(Tampering(store, flipped, 1000), None, Metrics()).read(block_of())

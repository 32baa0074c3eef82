"""Block to verified bytes: from the cache, else from the store, never unchecked."""

from typing import Protocol

from dataplane.errors import CorruptBlockError, TruncatedObjectError
from dataplane.metrics import Metrics
from dataplane.storage.cache import BlockCache
from dataplane.storage.digest import digest_of
from dataplane.storage.store import Store

# A body that is wrong three times in a row is wrong in the store, not on the way.
_TRIES = 3


class StoredBlock(Protocol):
    """What this room needs to know of a block."""

    @property
    def shard(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def digest(self) -> bytes: ...


class BlockSource:
    """Reads blocks of one dataset. Safe to use from many threads."""

    def __init__(self, store: Store, cache: BlockCache | None, metrics: Metrics) -> None:
        self._store = store
        self._cache = cache
        self._metrics = metrics

    def read(self, block: StoredBlock) -> bytes | memoryview:
        """The block's bytes, which match its digest.

        Raises CorruptBlockError when the store keeps giving others, FileNotFoundError or StoreError when it gives none.
        """
        return self._from_cache(block) or self._from_store(block)

    def _from_cache(self, block: StoredBlock) -> memoryview | None:
        if self._cache is None:
            return None
        with self._metrics.timed("cache_read"):
            data = self._cache.get(block.digest)
        if data is None:
            self._metrics.add(cache_misses=1)
            return None
        if not self._matches(data, block):
            self._metrics.add(cache_corrupt=1)
            self._cache.drop(block.digest)
            return None
        self._metrics.add(cache_hits=1, cache_bytes=len(data))
        return data

    def _from_store(self, block: StoredBlock) -> bytes | memoryview:
        found = b""
        for _ in range(_TRIES):
            with self._metrics.timed("fetch"):
                start, stop = block.offset, block.offset + block.num_bytes
                data = self._fetch(block, start, stop)
            if data is None:
                continue
            self._metrics.add(fetched_bytes=len(data), requests=1)
            if self._matches(data, block):
                if self._cache is not None:
                    with self._metrics.timed("cache_write"):
                        self._cache.put(block.digest, data)
                return data
            found = digest_of(data)
            self._metrics.add(corrupt_fetches=1)
        raise CorruptBlockError(
            f"{self._store.url}/{block.shard} bytes [{block.offset}, {block.offset + block.num_bytes}): "
            f"digest {found.hex() or 'of nothing'} after {_TRIES} tries, expected {block.digest.hex()}; "
            "the shard was damaged or replaced, restore it or preprocess again"
        )

    def _fetch(self, block: StoredBlock, start: int, stop: int) -> bytes | memoryview | None:
        """None where the body was shorter than asked for, which is worth another try."""
        try:
            return self._store.read_range(block.shard, start, stop)
        except TruncatedObjectError:
            self._metrics.add(short_fetches=1)
            return None

    def _matches(self, data: bytes | memoryview, block: StoredBlock) -> bool:
        with self._metrics.timed("verify"):
            return len(data) == block.num_bytes and digest_of(data) == block.digest

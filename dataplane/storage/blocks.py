"""Block to verified bytes: from the cache, else from the store, never unchecked."""

from typing import Protocol

from dataplane.errors import CorruptBlockError, TruncatedObjectError
from dataplane.metrics import Metrics
from dataplane.storage.cache import BlockCache
from dataplane.storage.digest import digest_of
from dataplane.storage.ranges import Span
from dataplane.storage.store import Store

# A body that is wrong three times in a row is wrong in the store, not on the way.
TRIES = 3

Bytes = bytes | memoryview


class StoredBlock(Span, Protocol):
    """What this room needs to know of a block."""

    @property
    def digest(self) -> bytes: ...


class BlockSource:
    """Reads blocks of one dataset. Safe to use from many threads. A `Fetcher` brings many at once with it."""

    def __init__(self, store: Store, cache: BlockCache | None, metrics: Metrics) -> None:
        self.store = store
        self.metrics = metrics
        self._cache = cache

    def read(self, block: StoredBlock) -> Bytes:
        """The block's bytes, which match its digest.

        Raises CorruptBlockError when the store keeps giving others, FileNotFoundError or StoreError when it gives none.
        """
        return self.look_up(block) or self._from_store(block)

    @property
    def has_cache(self) -> bool:
        return self._cache is not None

    def look_up(self, block: StoredBlock) -> Bytes | None:
        """The block's bytes from the cache; None if it has none that match the digest."""
        if self._cache is None:
            return None
        with self.metrics.timed("cache_read"):
            data = self._cache.get(block.digest)
        if data is None:
            self.metrics.add(cache_misses=1)
            return None
        if not self.matches(data, block):
            self.metrics.add(cache_corrupt=1)
            self._cache.drop(block.digest)
            return None
        self.metrics.add(cache_hits=1, cache_bytes=len(data))
        return data

    def keep(self, block: StoredBlock, data: Bytes) -> None:
        """Gives verified bytes to the cache, if there is one."""
        if self._cache is not None:
            with self.metrics.timed("cache_write"):
                self._cache.put(block.digest, data)

    def matches(self, data: Bytes, block: StoredBlock) -> bool:
        """Whether these are the block's bytes."""
        with self.metrics.timed("verify"):
            return len(data) == block.num_bytes and digest_of(data) == block.digest

    def corrupt(self, block: StoredBlock, found: Bytes | None) -> CorruptBlockError:
        """What to raise when the last of all tries brought these bytes, or too few (None)."""
        digest = "of nothing" if found is None else digest_of(found).hex()
        return CorruptBlockError(
            f"{self.store.url}/{block.shard} bytes [{block.offset}, {block.offset + block.num_bytes}): "
            f"digest {digest} after {TRIES} tries, expected {block.digest.hex()}; "
            "the shard was damaged or replaced, restore it or preprocess again"
        )

    def _from_store(self, block: StoredBlock) -> Bytes:
        found: Bytes | None = None
        for _ in range(TRIES):
            try:
                with self.metrics.timed("fetch"):
                    data = self.store.read_range(block.shard, block.offset, block.offset + block.num_bytes)
            except TruncatedObjectError:
                self.metrics.add(requests=1, short_fetches=1)
                continue
            self.metrics.add(fetched_bytes=len(data), requests=1)
            if self.matches(data, block):
                self.keep(block, data)
                return data
            found = data
            self.metrics.add(corrupt_fetches=1)
        raise self.corrupt(block, found)

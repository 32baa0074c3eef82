"""FETCH: bytes and URLs. Knows no sample, column, rank or epoch."""

from dataplane.storage.blocks import BlockSource
from dataplane.storage.cache import BlockCache
from dataplane.storage.concurrency import MOST_REQUESTS
from dataplane.storage.digest import digest_of
from dataplane.storage.fetch import Fetcher, Pace
from dataplane.storage.hedging import Hedging
from dataplane.storage.open import open_store
from dataplane.storage.store import Stat, Store

__all__ = [
    "MOST_REQUESTS",
    "BlockCache",
    "BlockSource",
    "Fetcher",
    "Hedging",
    "Pace",
    "Stat",
    "Store",
    "digest_of",
    "open_store",
]

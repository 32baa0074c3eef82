"""How much of what hdfs-native alone reads from a cluster does streaming reach?

    HADOOP_JARS=... python benchmarks/storage_hdfs.py [--rounds 5] [--megabytes 512] [--threads 8]

A cluster of one NameNode and three DataNodes is started on loopback, and a dataset of incompressible rows written to
it. The limit reads the blocks of its shards with hdfs-native's own client, files opened once, in as many threads. The
contestants are our store with the same reads, and a whole epoch of StreamingLoader: opened anew, shuffled, digests
checked, without a cache.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from harness import alternate, report
from hdfs_native import Client

from dataplane import StreamingLoader, open_dataset
from dataplane.catalog import Dataset, DatasetWriter
from dataplane.plan import Block
from dataplane.storage import open_store

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.services.hdfs import HdfsCluster

TOKENS = 2048
ROWS_PER_BLOCK = 256


def write_noise(url: str, num_megabytes: int) -> None:
    """Rows that zstd cannot shrink, so that the bytes read are the bytes delivered."""
    random = np.random.default_rng(0)
    tokens = pa.field("tokens", pa.list_(pa.field("item", pa.uint16(), nullable=False), TOKENS), nullable=False)
    writer = DatasetWriter(open_store(url), pa.schema([tokens]))
    for _ in range(num_megabytes * (1 << 20) // (ROWS_PER_BLOCK * TOKENS * 2)):
        values = random.integers(0, 1 << 16, ROWS_PER_BLOCK * TOKENS, dtype=np.uint16)
        rows = pa.FixedSizeListArray.from_arrays(pa.array(values), type=tokens.type)
        writer.write(pa.record_batch([rows], schema=writer.schema))
    writer.commit(metadata={})


def rate_of(read: Callable[[Block], int], dataset: Dataset, num_threads: int) -> float:
    """Megabytes a second of reading all blocks, in the order of the index."""
    blocks = [dataset.index[number] for number in range(len(dataset.index))]
    start = time.perf_counter()
    with ThreadPoolExecutor(num_threads) as pool:
        total = sum(pool.map(read, blocks))
    return total / 1e6 / (time.perf_counter() - start)


def native_rate(authority: str, dataset: Dataset, num_threads: int) -> float:
    client = Client(f"hdfs://{authority}")
    root = "/" + dataset.store.url.split("/", 3)[3]
    readers = {shard: client.read(f"{root}/{shard}") for shard in dataset.index.shards}
    return rate_of(
        lambda block: len(readers[block.shard].read_range(block.offset, block.num_bytes)), dataset, num_threads
    )


def store_rate(url: str, dataset: Dataset, num_threads: int) -> float:
    store = open_store(url)
    return rate_of(
        lambda block: len(store.read_range(block.shard, block.offset, block.offset + block.num_bytes)),
        dataset,
        num_threads,
    )


def loader_rate(url: str, dataset: Dataset) -> float:
    start = time.perf_counter()
    with StreamingLoader(url, batch_size=32, seed=1, drop_last=True, cache_dir=None) as loader:
        for _ in loader:
            pass
    return dataset.version.num_bytes / 1e6 / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--threads", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = HdfsCluster(Path(folder))
        try:
            cluster.start()
            url = f"hdfs://{cluster.authority}/noise"
            write_noise(url, options.megabytes)
            dataset = open_dataset(url)
            contestants = {
                "hdfs-native": lambda: native_rate(cluster.authority, dataset, options.threads),
                "store": lambda: store_rate(url, dataset, options.threads),
                "loader": lambda: loader_rate(url, dataset),
            }
            figures = alternate(contestants, rounds=options.rounds)
        finally:
            cluster.stop()
    facts = {"megabytes": options.megabytes, "threads": options.threads}
    report("streaming from HDFS", figures, unit="MB/s", limit="hdfs-native", **facts)


if __name__ == "__main__":
    main()

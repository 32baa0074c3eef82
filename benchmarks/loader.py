"""How much of the raw limit does the loader reach?

    python benchmarks/loader.py [--rounds 5] [--megabytes 1024]

The raw limit reads the same shards from the page cache and zstd-decodes every block with pyarrow, with no loader at
all, one block after the other. The loader delivers shuffled batches of 32 samples of 2,048 tokens, once with the whole
process on one core, once with one decode thread on all cores, from local files and from a warm block cache.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from harness import alternate, pinned_to_one_core, report

from dataplane import StreamingLoader, open_dataset
from dataplane.catalog import Dataset, DatasetWriter
from dataplane.storage import open_store

TOKENS = 2048
ROWS_PER_BLOCK = 256
BATCH = 32


def write_tokens(url: str, num_megabytes: int) -> None:
    """Token-like numbers: Zipf-distributed words, repeated in phrases, so that zstd finds what it finds in text."""
    random = np.random.default_rng(0)
    phrases = np.minimum(random.zipf(1.3, size=(20_000, 6)), 50_000).astype(np.uint16)
    tokens = pa.field("tokens", pa.list_(pa.field("item", pa.uint16(), nullable=False), TOKENS), nullable=False)
    writer = DatasetWriter(open_store(url), pa.schema([pa.field("id", pa.int64(), nullable=False), tokens]))
    for block in range(num_megabytes * (1 << 20) // (ROWS_PER_BLOCK * TOKENS * 2)):
        chosen = np.minimum(random.zipf(1.2, ROWS_PER_BLOCK * TOKENS // 6 + 1) - 1, len(phrases) - 1)
        values = phrases[chosen].ravel()[: ROWS_PER_BLOCK * TOKENS]
        ids = pa.array(np.arange(block * ROWS_PER_BLOCK, (block + 1) * ROWS_PER_BLOCK))
        rows = pa.FixedSizeListArray.from_arrays(pa.array(values), type=tokens.type)
        writer.write(pa.record_batch([ids, rows], schema=writer.schema))
    writer.commit(metadata={})


def raw_rate(dataset: Dataset) -> float:
    """Megabytes of tokens a second, read and decoded block by block."""
    start, total = time.perf_counter(), 0
    files = {shard: (Path(dataset.store.url) / shard).open("rb") for shard in dataset.index.shards}
    for number in range(len(dataset.index)):
        block = dataset.index[number]
        file = files[block.shard]
        file.seek(block.offset)
        message = pa.ipc.read_message(pa.py_buffer(file.read(block.num_bytes)))
        total += pa.ipc.read_record_batch(message, dataset.schema)["tokens"].nbytes
    return total / 1e6 / (time.perf_counter() - start)


def loader_rate(loader: StreamingLoader) -> float:
    """Megabytes of tokens a second over one epoch, from the request of the first batch to the receipt of the last."""
    start, total = time.perf_counter(), 0
    for batch in loader:
        total += batch["tokens"].nbytes
    return total / 1e6 / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1024)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/tokens"
        write_tokens(url, options.megabytes)
        dataset = open_dataset(url)
        plain = {"batch_size": BATCH, "seed": 1, "drop_last": True, "decode_threads": 1}
        local = StreamingLoader(url, **plain)
        cached = StreamingLoader(url, cache_dir=f"{folder}/cache", cache_bytes=1 << 40, **plain)
        contestants = {
            "raw limit": lambda: raw_rate(dataset),
            "loader, local files": lambda: loader_rate(local),
            "loader, warm cache": lambda: loader_rate(cached),
        }
        facts = {
            "megabytes": options.megabytes,
            "ratio_zstd": round(dataset.version.raw_bytes / dataset.version.num_bytes, 2),
            "tokens_per_sample": TOKENS,
            "batch_size": BATCH,
        }
        with pinned_to_one_core():
            figures = alternate(contestants, rounds=options.rounds)
        report("loader on one core", figures, unit="MB/s", limit="raw limit", **facts)
        figures = alternate(contestants, rounds=options.rounds)
        report("loader with one decode thread", figures, unit="MB/s", limit="raw limit", **facts)
        samples = {name: [rate * 1e6 / TOKENS / 2 for rate in rates] for name, rates in figures.items()}
        report("the same in samples", samples, unit="samples/s", limit="raw limit", **facts)


if __name__ == "__main__":
    main()

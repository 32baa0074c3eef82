"""Which sizes of blocks and shards, and which level of zstd, are sound defaults?

    python benchmarks/sizes.py [--rounds 3] [--megabytes 256] [--question blocks|levels|shards]

The same rows of 2,048 tokens are written to a real S3 server on loopback (SeaweedFS) with blocks of 256 KiB to 8 MiB,
with levels 1 to 15, and with shards of 4 to 256 MiB. Each is then read by the loader, shuffled and without a cache; by
random ranged reads of single blocks, 16 at once, digests checked; and, for the levels, decoded on one thread. Ratio,
seconds of writing and the numbers of blocks and shards stand among the facts of each JSON line.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from harness import alternate, report

from dataplane import Dataset, DatasetWriter, Encoding, StreamingLoader, open_dataset
from dataplane.metrics import Metrics
from dataplane.seaweed import S3Server, s3_server
from dataplane.storage import BlockSource, open_store

TOKENS = 2048
BATCH = 32
READERS = 16
DEFAULT_BLOCK = 1 << 20
BLOCKS = {
    "256 KiB": 1 << 18,
    "512 KiB": 1 << 19,
    "1 MiB": 1 << 20,
    "2 MiB": 1 << 21,
    "4 MiB": 1 << 22,
    "8 MiB": 1 << 23,
}
LEVELS = (1, 3, 6, 9, 15)
SHARDS = {"4 MiB": 4 << 20, "16 MiB": 16 << 20, "64 MiB": 64 << 20, "256 MiB": 256 << 20}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tokens", pa.list_(pa.field("item", pa.uint16(), nullable=False), TOKENS), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Written:
    """A dataset with one choice of sizes."""

    dataset: Dataset
    write_seconds: float

    def facts(self) -> dict[str, float]:
        version = self.dataset.version
        return {
            "ratio": round(version.raw_bytes / version.num_bytes, 3),
            "write_seconds": round(self.write_seconds, 2),
            "blocks": version.num_blocks,
            "shards": version.num_shards,
            "stored_block_bytes": version.num_bytes // version.num_blocks,
        }


def token_blocks(num_bytes: int, block_bytes: int) -> Iterator[pa.RecordBatch]:
    """Token-like rows, the same for any block size: phrases by Zipf, for zstd to find what it finds in text."""
    generator = np.random.default_rng(0)
    phrases = np.minimum(generator.zipf(1.3, size=(20_000, 6)), 50_000).astype(np.uint16)
    row_bytes = TOKENS * 2
    rows = num_bytes // row_bytes
    chosen = np.minimum(generator.zipf(1.2, rows * TOKENS // 6 + 1) - 1, len(phrases) - 1)
    values = phrases[chosen].ravel()[: rows * TOKENS]
    step = block_bytes // row_bytes
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        tokens = pa.array(values[start * TOKENS : stop * TOKENS])
        lists = pa.FixedSizeListArray.from_arrays(tokens, type=SCHEMA.field("tokens").type)
        yield pa.record_batch([pa.array(np.arange(start, stop)), lists], schema=SCHEMA)


def write(server: S3Server, name: str, num_bytes: int, *, block_bytes: int, encoding: Encoding) -> Written:
    url = f"s3://sizes/{name}"
    blocks = list(token_blocks(num_bytes, block_bytes))
    start = time.perf_counter()
    writer = DatasetWriter(open_store(url, server.storage_options), SCHEMA, encoding)
    for block in blocks:
        writer.write(block)
    writer.commit(metadata={})
    seconds = time.perf_counter() - start
    return Written(open_dataset(url, storage_options=server.storage_options), seconds)


def loader_rate(written: Written, server: S3Server) -> float:
    """Megabytes of rows a second over one shuffled epoch."""
    options = {"storage_options": server.storage_options, "cache_dir": None, "drop_last": True}
    loader = StreamingLoader(written.dataset.store.url, batch_size=BATCH, **options)
    start = time.perf_counter()
    total = sum(batch["tokens"].nbytes for batch in loader)
    return total / 1e6 / (time.perf_counter() - start)


def random_read_rate(written: Written) -> float:
    """Megabytes of rows a second that random ranged reads bring, still compressed."""
    dataset = written.dataset
    numbers = list(range(len(dataset.index)))
    random.Random(1).shuffle(numbers)
    source = BlockSource(dataset.store, None, Metrics())
    start = time.perf_counter()
    with ThreadPoolExecutor(READERS) as pool:
        for _ in pool.map(lambda number: source.read(dataset.index[number]), numbers):
            pass
    return int(dataset.index.raw_bytes.sum()) / 1e6 / (time.perf_counter() - start)


def decode_rate(written: Written) -> float:
    """Megabytes of rows a second that one thread decodes from memory."""
    dataset = written.dataset
    count = min(32, len(dataset.index))
    source = BlockSource(dataset.store, None, Metrics())
    blocks = [bytes(source.read(dataset.index[number])) for number in range(count)]
    start = time.perf_counter()
    total = sum(dataset.format.decode(block, dataset.schema).nbytes for block in blocks)
    return total / 1e6 / (time.perf_counter() - start)


def measure(
    question: str,
    choices: Mapping[str, Written],
    measures: Mapping[str, Callable[[Written], float]],
    *,
    limit: str,
    rounds: int,
) -> None:
    facts = {name: written.facts() for name, written in choices.items()}
    for what, rate in measures.items():
        contestants = {name: (lambda rate=rate, written=written: rate(written)) for name, written in choices.items()}
        figures = alternate(contestants, rounds=rounds)
        report(f"{question}: {what}", figures, unit="MB/s of rows", limit=limit, choices=facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=256, help="of rows, for each choice")
    parser.add_argument("--question", choices=["blocks", "levels", "shards"], action="append")
    options = parser.parse_args()
    asked = options.question or ["blocks", "levels", "shards"]
    num_bytes = options.megabytes << 20
    with s3_server("sizes") as server:
        reads = {"loader": lambda written: loader_rate(written, server), "random ranged reads": random_read_rate}
        if "blocks" in asked:
            choices = {
                name: write(server, f"block-{size}", num_bytes, block_bytes=size, encoding=Encoding())
                for name, size in BLOCKS.items()
            }
            measure("block size", choices, reads, limit="1 MiB", rounds=options.rounds)
        if "levels" in asked:
            choices = {
                str(level): write(
                    server, f"level-{level}", num_bytes, block_bytes=DEFAULT_BLOCK, encoding=Encoding(level=level)
                )
                for level in LEVELS
            }
            measure("zstd level", choices, {**reads, "decoding": decode_rate}, limit="3", rounds=options.rounds)
        if "shards" in asked:
            choices = {
                name: write(
                    server, f"shard-{size}", num_bytes, block_bytes=DEFAULT_BLOCK, encoding=Encoding(shard_bytes=size)
                )
                for name, size in SHARDS.items()
            }
            measure("shard size", choices, reads, limit="64 MiB", rounds=options.rounds)


if __name__ == "__main__":
    main()

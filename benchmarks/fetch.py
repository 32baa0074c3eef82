"""Does the loader read an object store as fast as the store can be read, whatever its latency?

    python benchmarks/fetch.py [--rounds 3] [--megabytes 256]

Against a real S3 server on loopback (SeaweedFS), without a cache, with rows that do not compress, so that nothing but
bytes counts:

- cold streaming, against obstore alone reading the same blocks with as many requests in flight, and against the same
  loader with 30 ms added to each request, with no setting touched;
- the trainer's waiting with 2 s added to 1 % of the requests, with hedging and without;
- the time from making a loader to its first batch, with 30 ms added to each request.
"""

import argparse
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from harness import alternate, report

from dataplane import StreamingLoader, open_dataset
from dataplane.catalog import DatasetWriter
from dataplane.seaweed import s3_server
from dataplane.storage import Store, open_store

ROW_BYTES = 4096
ROWS_PER_BLOCK = 256
BATCH = 32
LATENCY = 0.03
SLOW, SLOW_SHARE = 2.0, 0.01

Delay = Callable[[], float]


class DelayedStore:
    """A store each of whose reads begins so many seconds late."""

    def __init__(self, store: Store, delay: Delay) -> None:
        self._store, self._delay = store, delay

    def __getattr__(self, name: str) -> Any:  # Any: whatever the store has
        return getattr(self._store, name)

    def read(self, path: str) -> bytes:
        time.sleep(self._delay())
        return self._store.read(path)

    def list(self, folder: str) -> list[str]:
        time.sleep(self._delay())
        return self._store.list(folder)

    def read_range(self, path: str, start: int, stop: int) -> bytes | memoryview:
        time.sleep(self._delay())
        return self._store.read_range(path, start, stop)


@contextmanager
def delayed(delay: Delay) -> Iterator[None]:
    """Loaders that open a dataset inside get a delayed store."""
    with mock.patch("dataplane.catalog.dataset.open_store", lambda *a: DelayedStore(open_store(*a), delay)):
        yield


def sometimes_slow(seed: int) -> Delay:
    """2 s for one of a hundred requests, drawn anew at each; nothing for the others."""
    numbers, lock = random.Random(seed), threading.Lock()

    def delay() -> float:
        with lock:
            return SLOW if numbers.random() < SLOW_SHARE else 0.0

    return delay


def write_noise(url: str, num_megabytes: int, options: Any) -> None:  # Any: the store's own options
    rows = pa.field("x", pa.list_(pa.field("item", pa.uint8(), nullable=False), ROW_BYTES), nullable=False)
    writer = DatasetWriter(open_store(url, options), pa.schema([rows]))
    random_bytes = np.random.default_rng(0)
    for _ in range(num_megabytes * (1 << 20) // (ROWS_PER_BLOCK * ROW_BYTES)):
        values = pa.array(random_bytes.integers(0, 256, ROWS_PER_BLOCK * ROW_BYTES, np.uint8))
        column = pa.FixedSizeListArray.from_arrays(values, type=rows.type)
        writer.write(pa.record_batch([column], schema=writer.schema))
    writer.commit(metadata={})


def obstore_rate(url: str, options: Any, in_flight: int) -> float:  # Any: as above
    """Megabytes a second of nothing but ranged reads of all blocks, in a shuffled order."""
    dataset = open_dataset(url, storage_options=options)
    blocks = [dataset.index[number] for number in range(len(dataset.index))]
    random.Random(0).shuffle(blocks)
    start = time.perf_counter()
    with ThreadPoolExecutor(in_flight) as pool:
        reads = pool.map(lambda b: len(dataset.store.read_range(b.shard, b.offset, b.offset + b.num_bytes)), blocks)
        total = sum(reads)
    return total / 1e6 / (time.perf_counter() - start)


def loader_rate(loader: StreamingLoader) -> float:
    """Megabytes a second over one epoch, from the request of the first batch to the receipt of the last."""
    start, total = time.perf_counter(), 0
    for batch in loader:
        total += batch["x"].nbytes
    return total / 1e6 / (time.perf_counter() - start)


def waiting(loader: StreamingLoader, step_seconds: float) -> tuple[float, dict[str, float]]:
    """Seconds that a trainer with such a step waits in an epoch, beyond those for its first batch; and the metrics."""
    wait, before = 0.0, None
    for _ in loader:
        if before is not None:
            wait += time.perf_counter() - before
        time.sleep(step_seconds)
        before = time.perf_counter()
    return wait, loader.metrics.snapshot()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=256)
    options = parser.parse_args()
    with s3_server("bench") as server:
        url, stores = "s3://bench/noise", dict(server.storage_options)
        write_noise(url, options.megabytes, stores)
        facts = {"megabytes": options.megabytes, "block_bytes": ROWS_PER_BLOCK * ROW_BYTES, "batch_size": BATCH}

        def made(**more: Any) -> StreamingLoader:  # Any: the loader's options
            return StreamingLoader(url, batch_size=BATCH, seed=1, cache_dir=None, storage_options=stores, **more)

        loopback = made()
        with delayed(lambda: LATENCY):
            far = made()
            _ = far.num_rows  # opens it
        loader_rate(loopback)
        in_flight = int(loopback.metrics.snapshot()["request_limit"])
        contestants = {
            "obstore alone": lambda: obstore_rate(url, stores, in_flight),
            "loader": lambda: loader_rate(loopback),
            "loader, 30 ms away": lambda: loader_rate(far),
        }
        figures = alternate(contestants, rounds=options.rounds)
        limits = {name: each.metrics.snapshot()["request_limit"] for name, each in (("near", loopback), ("far", far))}
        report("cold streaming from S3", figures, unit="MB/s", limit="obstore alone", in_flight=in_flight, **facts)
        report(
            "the same, 30 ms away",
            {name: figures[name] for name in ("loader", "loader, 30 ms away")},
            unit="MB/s",
            limit="loader",
            request_limits=limits,
            **facts,
        )

        step = 1.5 * BATCH * ROW_BYTES / 1e6 / statistics.median(figures["loader"])
        waits: dict[str, list[float]] = {"without hedging": [], "with hedging": []}
        more_requests = []
        for number in range(options.rounds):
            for name in waits:
                with delayed(sometimes_slow(number)):
                    loader = made()
                    session = loader._opened()
                if name == "without hedging":
                    session._pace.hedging = None
                seconds, metrics = waiting(loader, step)
                waits[name].append(seconds)
                if name == "with hedging":
                    more_requests.append(
                        metrics.get("hedges", 0.0) / (metrics["requests"] - metrics.get("hedges", 0.0))
                    )
        report(
            "waiting with 2 s added to 1 % of requests",
            waits,
            unit="s",
            limit="without hedging",
            step_seconds=round(step, 5),
            more_requests=[round(share, 4) for share in more_requests],
            **facts,
        )

        firsts = []
        for _ in range(options.rounds + 1):
            start = time.perf_counter()
            with delayed(lambda: LATENCY):
                loader = made()
                next(iter(loader))
            firsts.append(time.perf_counter() - start)
            loader.close()
        report("first batch, 30 ms away", {"loader": firsts[1:]}, unit="s", limit="loader", **facts)


if __name__ == "__main__":
    main()

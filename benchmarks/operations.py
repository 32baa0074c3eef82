"""How fast is each operation on one core, in the rate of BLAKE3 over the same rows?

    python benchmarks/operations.py [--rounds 3] [--rows 20000]

Rows are made-up texts of about 1,200 characters in batches of a few megabytes, held in memory, so that nothing but the
operation counts. Hashing each text once (`deduplicate`'s keys) stands for a pass over the rows.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from harness import alternate, pinned_to_one_core, report

from preprocess.operations import (
    Cast,
    Deduplicate,
    DeduplicateNear,
    Derive,
    Filter,
    GlobalFilter,
    Normalize,
    Operation,
    Quantize,
)

ROWS_PER_BATCH = 4096
OPERATIONS: dict[str, Operation | GlobalFilter] = {
    "deduplicate: keys": Deduplicate(columns=("text",)),
    "derive: utf8_length": Derive(columns={"length": "utf8_length(text)"}),
    "filter: a comparison": Filter(where="utf8_length(text) > 1000"),
    "cast: int64 to int32": Cast(columns={"id": "int32"}),
    "normalize: NFC": Normalize(),
    "normalize: NFKC, white space collapsed": Normalize(unicode="NFKC", whitespace="collapse"),
    "quantize: 64 floats to int8": Quantize(columns=("vector",), to="int8"),
    "deduplicate_near: signatures": DeduplicateNear(),
}


def made_up(num_rows: int) -> list[pa.RecordBatch]:
    """Rows of `id`, `text` and `vector`; the same at each call."""
    generator = np.random.default_rng(0)
    words = np.array([f"w{number:x}ü" if number % 50 == 0 else f"word{number:x}" for number in range(5000)])
    batches = []
    for start in range(0, num_rows, ROWS_PER_BATCH):
        count = min(ROWS_PER_BATCH, num_rows - start)
        texts = [" ".join(words[generator.zipf(1.3, 160) % 5000]) for _ in range(count)]
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(generator.normal(size=count * 64).astype("f4")), 64)
        columns = {"id": pa.array(range(start, start + count)), "text": texts, "vector": vectors}
        batches.append(pa.record_batch(columns))
    return batches


def megabytes_per_second(operation: Operation | GlobalFilter, batches: list[pa.RecordBatch]) -> Callable[[], float]:
    """A measurement: text of all rows through the operation."""
    num_bytes = sum(batch.column("text").nbytes for batch in batches)
    bound = operation.bind(batches[0].schema)

    def measure() -> float:
        start = time.perf_counter()
        for batch in batches:
            bound(batch)
        return num_bytes / 1e6 / (time.perf_counter() - start)

    return measure


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000)
    arguments = parser.parse_args()
    batches = made_up(arguments.rows)
    with pinned_to_one_core():
        contestants = {name: megabytes_per_second(each, batches) for name, each in OPERATIONS.items()}
        figures = alternate(contestants, rounds=arguments.rounds)
    report(
        "operations of a recipe on one core",
        figures,
        unit="MB/s of text",
        limit="deduplicate: keys",
        rows=arguments.rows,
    )


if __name__ == "__main__":
    main()

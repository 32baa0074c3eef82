"""How long does it take until a run that stopped in the middle of a large dataset knows what to read next?

    python benchmarks/resume.py

Prints one line of JSON for each kind of order: the median time from an index in memory to the first batch's plan, and
the most memory that took, against the memory of one number for each sample.
"""

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np

from dataplane.plan import BlockIndex, Order, Plan, Position, Topology


def synthetic_index(num_blocks: int, rows_per_block: int) -> BlockIndex:
    """Blocks of equal size, a thousand to a shard."""
    numbers = np.arange(num_blocks, dtype=np.int64)
    return BlockIndex(
        [f"shards/{number}.arrow" for number in range(-(-num_blocks // 1000))],
        (numbers // 1000).astype(np.int32),
        numbers % 1000 * 65536,
        np.full(num_blocks, 65536, np.int64),
        np.full(num_blocks, rows_per_block, np.int64),
        np.full(num_blocks, 262144, np.int64),
        np.zeros((num_blocks, 32), np.uint8),
    )


def plans(index: BlockIndex, batch_size: int) -> Iterator[tuple[str, Plan]]:
    """One rank of eight: shuffled, in order, and shuffled without end."""
    topology = Topology(rank=3, world_size=8)
    for name, shuffle, endless in (
        ("shuffled", True, False),
        ("in order", False, False),
        ("endless", True, True),
    ):
        order = Order.suited(seed=1, shuffle=shuffle, global_batch_size=batch_size * 8)
        yield (
            name,
            Plan(
                indexes=(index,),
                order=order,
                batch_size=batch_size,
                topology=topology,
                endless=endless,
            ),
        )


def seconds_to_first_reads(plan: Plan, position: Position) -> float:
    start = time.perf_counter()
    next(plan.reads(position))
    return time.perf_counter() - start


def peak_bytes(plan: Plan, position: Position) -> int:
    tracemalloc.start()
    next(plan.reads(position))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--rows-per-block", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=32, help="samples of a rank in a step")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()

    index = synthetic_index(options.blocks, options.rows_per_block)
    for name, plan in plans(index, options.batch_size):
        positions = [
            Position(2, index.total_rows * part // (options.repeats + 1)) for part in range(1, options.repeats + 1)
        ]
        median = statistics.median(seconds_to_first_reads(plan, each) for each in positions)
        result = {
            "question": "resume",
            "order": name,
            "blocks": options.blocks,
            "samples": index.total_rows,
            "first_reads_seconds": round(median, 4),
            "peak_bytes": peak_bytes(plan, positions[0]),
            "bytes_of_one_number_per_sample": 8 * index.total_rows,
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()

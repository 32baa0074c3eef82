"""Plans over synthetic indexes, and what they deliver."""

import itertools

import numpy as np

from dataplane.plan import BlockIndex, Plan, Position, Topology


def index_of(num_rows):
    count = len(num_rows)
    rows = np.array(num_rows, np.int64)
    return BlockIndex(
        ["shard"],
        np.zeros(count, np.int32),
        np.arange(count, dtype=np.int64) * 100,
        np.full(count, 100),
        rows,
        rows * 10,
        np.zeros((count, 32), np.uint8),
    )


def plans_of(sources, order, batch_size, world_size, **options):
    """A plan for each rank; `sources` are the rows of each block of each source."""
    return [
        Plan(
            indexes=tuple(index_of(rows) for rows in sources),
            order=order,
            batch_size=batch_size,
            topology=Topology(rank=rank, world_size=world_size),
            **options,
        )
        for rank in range(world_size)
    ]


def steps_of(plan, position=Position(), *, limit=None, first=0, stride=1):  # noqa: B008
    """(samples, position after, filler) of each step; a sample is its (block, row)."""
    reads = plan.reads(position, first=first, stride=stride)
    steps = (
        (
            list(zip(each.block[step].tolist(), each.row[step].tolist(), strict=True)),
            each.positions(range(step, step + 1))[0],
            each.num_filler,
        )
        for each in reads
        for step in range(len(each))
    )
    return list(itertools.islice(steps, limit))


def global_batches(plans, position=Position(), limit=None):  # noqa: B008
    """The samples of each step over all ranks in rank order, without filler; and the positions after."""
    ranks = [steps_of(plan, position, limit=limit) for plan in plans]
    batches, positions = [], []
    for step in zip(*ranks, strict=True):  # all ranks take equally many steps
        batches.append([s for samples, _, filler in step for s in samples[: len(samples) - filler]])
        assert len({after for _, after, _ in step}) == 1
        positions.append(step[0][1])
    return batches, positions


def all_samples(rows):
    return [(block, row) for block, count in enumerate(rows) for row in range(count)]


def flat(batches):
    return [sample for batch in batches for sample in batch]

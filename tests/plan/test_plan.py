"""The laws of the plan: who reads what, whatever the sizes are, wherever it stops and whoever goes on."""

import itertools
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.plan import Order, Plan, Position, Topology
from dataplane.plan.plan import batch_elements
from tests.plan.planning import all_samples, flat, global_batches, index_of, steps_of
from tests.plan.planning import plans_of as plans_of_sources

WORLD_SIZES = [1, 2, 3, 5, 8]

# Rows of each block; some have none.
blocks = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)
world_sizes = st.sampled_from(WORLD_SIZES)
batch_sizes = st.integers(1, 9)


@st.composite
def orders(draw):
    return Order(
        seed=draw(st.integers(0, 5)),
        shuffle=draw(st.booleans()),
        num_lanes=draw(st.integers(1, 14)),
        window_blocks=draw(st.integers(1, 4)),
    )


def plans_of(rows, order, batch_size, world_size, **options):
    return plans_of_sources([rows], order, batch_size, world_size, **options)


@given(blocks, orders(), batch_sizes, world_sizes)
def test_ranks_partition_the_epoch(rows, order, batch_size, world_size):
    batches, positions = global_batches(plans_of(rows, order, batch_size, world_size))

    assert sorted(flat(batches)) == all_samples(rows)
    assert positions[-1] == Position(1, 0)


@given(blocks, orders(), st.integers(1, 3))
def test_global_batches_do_not_depend_on_the_world_size(rows, order, multiple):
    size = 120 * multiple if sum(rows) > 60 else 120
    found = [global_batches(plans_of(rows, order, size // world_size, world_size)) for world_size in WORLD_SIZES]

    assert all(each == found[0] for each in found)


@given(blocks, orders(), world_sizes, world_sizes, st.integers(1, 4))
def test_small_global_batches_do_not_depend_on_the_world_size(rows, order, one, other, factor):
    size = one * other * factor
    batches, positions = global_batches(plans_of(rows, order, size // one, one))

    assert (batches, positions) == global_batches(plans_of(rows, order, size // other, other))


@given(blocks, orders(), batch_sizes, world_sizes, batch_sizes, world_sizes, st.data())
def test_resuming_loses_and_repeats_nothing(rows, order, batch_size, world_size, new_batch_size, new_world_size, data):
    batches, positions = global_batches(plans_of(rows, order, batch_size, world_size))
    stop = data.draw(st.integers(0, len(batches)))
    position = ([Position(), *positions])[stop]

    rest, _ = global_batches(plans_of(rows, order, new_batch_size, new_world_size), position)
    if position.epoch == 0:
        assert sorted(flat(batches[:stop]) + flat(rest)) == all_samples(rows)
    else:
        assert sorted(flat(rest)) == all_samples(rows)


@given(blocks, orders(), batch_sizes, world_sizes, st.booleans(), st.data())
def test_resuming_continues_the_same_sequence(rows, order, batch_size, world_size, endless, data):
    plans = plans_of(rows, order, batch_size, world_size, endless=endless)
    batches, positions = global_batches(plans, limit=12)
    stop = data.draw(st.integers(0, len(batches) - 1))
    position = ([Position(), *positions])[stop]

    assert global_batches(plans, position, limit=12 - stop)[0][: len(batches) - stop] == (batches[stop:])


@given(blocks, orders(), st.integers(1, 40), st.data())
def test_any_batch_size_cuts_the_same_sequence(rows, order, batch_size, data):
    """The first samples of an epoch are the same set for all batch sizes that end there."""
    single, _ = global_batches(plans_of(rows, order, 1, 1))
    batches, positions = global_batches(plans_of(rows, order, batch_size, 1))

    for batch, position in zip(batches, positions, strict=True):
        end = position.consumed or sum(rows)
        assert sorted(batch) == sorted(flat(single)[end - len(batch) : end])


@given(blocks, orders(), batch_sizes, world_sizes, st.integers(1, 5), st.booleans())
def test_workers_interleave_to_the_steps_of_their_rank(rows, order, batch_size, world_size, stride, endless):
    plan = plans_of(rows, order, batch_size, world_size, endless=endless)[-1]
    steps = steps_of(plan, limit=20)
    workers = [steps_of(plan, first=first, stride=stride, limit=20) for first in range(stride)]

    interleaved = [step for turn in itertools.zip_longest(*workers) for step in turn if step is not None]
    assert interleaved[: len(steps)] == steps
    assert endless or len(interleaved) == plan.num_steps() == len(steps) or len(steps) == 20


@given(blocks, orders(), batch_sizes, world_sizes, st.integers(0, 3))
def test_an_endless_plan_crosses_epochs_without_loss(rows, order, batch_size, world_size, epoch):
    plans = plans_of(rows, order, batch_size, world_size, endless=True)
    total, size = sum(rows), batch_size * world_size
    steps = -(-2 * total // size)
    batches, positions = global_batches(plans, Position(epoch, 0), limit=steps)

    assert all(len(batch) == size for batch in batches)
    assert positions[-1] == Position(*divmod(epoch * total + steps * size, total))
    counted = sorted(flat(batches))
    whole_epochs, rest = divmod(steps * size, total)
    for sample in all_samples(rows):
        assert whole_epochs <= counted.count(sample) <= whole_epochs + (rest > 0)


@given(blocks, orders(), batch_sizes, world_sizes)
def test_dropping_the_last_batch_leaves_whole_ones(rows, order, batch_size, world_size):
    plans = plans_of(rows, order, batch_size, world_size, drop_last=True)
    batches, positions = global_batches(plans)

    assert all(len(batch) == batch_size * world_size for batch in batches)
    assert len(set(flat(batches))) == len(flat(batches)) == sum(rows) - plans[0].num_dropped()
    assert plans[0].num_dropped() < batch_size * world_size
    assert not positions or positions[-1] == Position(1, 0)


@pytest.mark.parametrize(
    ("samples", "world_size", "batch_size", "drop_last", "steps", "delivered", "filler"),
    [
        (53, 4, 2, True, 6, 48, 0),
        (53, 4, 2, False, 7, 53, 3),
        (1000, 1, 128, True, 7, 896, 0),  # A03
        (9, 4, 2, False, 2, 9, 3),  # A08
        (12, 2, 1, False, 6, 12, 0),  # A04
        (10, 4, 1, False, 3, 10, 2),  # A06
        (2, 4, 1, False, 1, 2, 2),  # C01
        (2, 4, 1, True, 0, 0, 0),
    ],
)
def test_steps_samples_and_filler(samples, world_size, batch_size, drop_last, steps, delivered, filler):
    order = Order.suited(seed=0, shuffle=True, global_batch_size=world_size * batch_size)
    rows = [samples // 6 + (number < samples % 6) for number in range(6)]
    plans = plans_of(rows, order, batch_size, world_size, drop_last=drop_last)
    ranks = [steps_of(plan) for plan in plans]

    assert [len(rank) for rank in ranks] == [steps] * world_size
    assert plans[0].num_dropped() == samples - delivered
    assert len(set(flat(global_batches(plans)[0]))) == delivered
    assert sum(count for rank in ranks for _, _, count in rank) == filler
    assert all(len(batch) > 0 for rank in ranks for batch, _, _ in rank)


@given(
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(1, 80),
    st.lists(st.integers(0, 300), min_size=1, max_size=5),
)
def test_elements_by_arithmetic_are_those_sorted_by_lane(total, num_lanes, count, starts):
    found = batch_elements(np.array(starts), count, np.arange(count), total=total, num_lanes=num_lanes)

    for row, start in zip(found.tolist(), starts, strict=True):
        elements = range(start, start + count)
        assert row == sorted(elements, key=lambda element: element % total % num_lanes)


@given(blocks, orders(), batch_sizes, world_sizes)
def test_no_later_element_of_a_window_reads_a_block_that_was_last_used(rows, order, batch_size, world_size):
    total, size = sum(rows), batch_size * world_size
    uses = []  # element, lane and epoch, block, last element
    for plan in plans_of(rows, order, batch_size, world_size, endless=True):
        for reads in itertools.islice(plan.reads(Position()), 1):
            place = np.arange(plan.topology.rank * batch_size, (plan.topology.rank + 1) * batch_size)
            elements = batch_elements(reads.start, size, place, total=total, num_lanes=order.num_lanes)
            assert (reads.last_element >= elements).all()
            columns = (elements, reads.block, reads.last_element)
            uses += zip(*(column.ravel().tolist() for column in columns), strict=True)
    uses = [use for use in uses if use[0] < min(total * 2, len(uses) // size * size)]
    blocks_at = {element: block for element, block, _ in uses}
    later = {}
    for element, block, last in uses:
        lane = (element // total, element % total % order.num_lanes, block)
        later[lane] = max(later.get(lane, 0), element)
        assert blocks_at.get(last, block) == block
    assert all(
        last == later[element // total, element % total % order.num_lanes, block]
        for element, block, last in uses
        if last in blocks_at
    )


@given(blocks, orders(), batch_sizes, world_sizes)
def test_a_step_needs_no_more_blocks_than_promised(rows, order, batch_size, world_size):
    for plan in plans_of(rows, order, batch_size, world_size):
        for reads in plan.reads(Position()):
            most = max(len(np.unique(step)) for step in reads.block)
            assert most <= plan.most_blocks_at_once


def test_epochs_and_seeds_have_orders_of_their_own():
    rows = [10] * 10
    found = set()
    for seed, epoch in itertools.product(range(3), range(3)):
        order = Order.suited(seed=seed, shuffle=True, global_batch_size=4)
        batches, _ = global_batches(plans_of(rows, order, 4, 1), Position(epoch, 0))
        assert sorted(flat(batches)) == all_samples(rows)
        found.add(tuple(flat(batches)))

    assert len(found) == 9


def test_without_shuffling_the_order_is_that_of_writing():
    order = Order.suited(seed=7, shuffle=False, global_batch_size=6)
    rows = [3, 0, 5, 1]

    for epoch in range(2):
        batches, _ = global_batches(plans_of(rows, order, 3, 2), Position(epoch, 0))
        assert flat(batches) == all_samples(rows)


def test_lanes_keep_their_blocks_from_epoch_to_epoch():
    order = Order.suited(seed=3, shuffle=True, global_batch_size=8)
    plan = plans_of([10] * 80, order, 4, 2)[0]
    first, second = (
        {block for samples, _, _ in steps_of(plan, Position(epoch, 0)) for block, _ in samples} for epoch in (0, 1)
    )

    assert first == second
    assert len(first) < 50


def test_the_order_of_a_seed_never_changes_by_accident():
    order = Order.suited(seed=42, shuffle=True, global_batch_size=4)
    batches, _ = global_batches(plans_of([3, 1, 4, 1, 5], order, 4, 1), Position(1, 0))

    assert batches == [
        [(2, 0), (2, 1), (4, 0), (4, 4)],
        [(0, 2), (2, 3), (1, 0), (4, 2)],
        [(0, 1), (3, 0), (4, 1), (4, 3)],
        [(0, 0), (2, 2)],
    ]


@pytest.mark.parametrize("rows", [[], [0], [0, 0]])
@pytest.mark.parametrize("drop_last", [False, True])
def test_no_rows_are_no_steps(rows, drop_last):
    order = Order.suited(seed=0, shuffle=True, global_batch_size=4)

    for plan in plans_of(rows, order, 2, 2, drop_last=drop_last):
        assert plan.num_steps() == 0
        assert steps_of(plan) == []


def test_an_endless_plan_needs_rows():
    order = Order.suited(seed=0, shuffle=True, global_batch_size=4)

    with pytest.raises(ValueError, match="at least one row"):
        plans_of([0], order, 2, 2, endless=True)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 256])
def test_a_million_blocks_need_no_array_as_long_as_the_samples(shuffle, batch_size):
    blocks, rows = 1_000_000, 256
    index = index_of(np.full(blocks, rows))
    order = Order.suited(seed=0, shuffle=shuffle, global_batch_size=batch_size)
    plan = Plan(indexes=(index,), order=order, batch_size=batch_size, topology=Topology())
    start = time.perf_counter()
    tracemalloc.start()
    try:
        next(plan.reads(Position(3, blocks * rows // 3)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < blocks * 100  # a few columns over the blocks; one over the samples has 2 GB
    assert time.perf_counter() - start < 10  # benchmarks/resume.py says how little it really is


@pytest.mark.parametrize("wrong", [{"num_lanes": 0}, {"window_blocks": 0}, {"num_lanes": -1}], ids=str)
def test_an_order_needs_lanes_and_windows(wrong):
    with pytest.raises(ValueError, match="at least 1"):
        Order(**{"seed": 0, "shuffle": True, "num_lanes": 1, "window_blocks": 1, **wrong})


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_needs_samples(batch_size):
    order = Order.suited(seed=0, shuffle=False, global_batch_size=4)

    with pytest.raises(ValueError, match="batch_size"):
        plans_of([3], order, batch_size, 1)

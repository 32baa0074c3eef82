"""The laws of mixtures: exact proportions anywhere, each source's own epochs, and a position that is arithmetic."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.plan import NEVER, Mixture, Order, Position, Share
from dataplane.plan.proportions import MOST_PERIOD, Proportions
from tests.plan.planning import all_samples, flat, global_batches, plans_of, steps_of

WORLD_SIZES = [1, 2, 3, 5, 8]
world_sizes = st.sampled_from(WORLD_SIZES)
batch_sizes = st.integers(1, 7)
amounts = st.lists(st.sampled_from([0, 1, 2, 3, 7, 100, 10**6, 10**9, 7 * 10**10]), min_size=1, max_size=7).filter(any)
sources = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=2, max_size=4)


@st.composite
def orders(draw):
    shuffle = draw(st.booleans())
    return Order(
        seed=draw(st.integers(0, 5)),
        shuffle=shuffle,
        num_lanes=draw(st.integers(1, 14)) if shuffle else 1,
        window_blocks=draw(st.integers(1, 4)),
    )


@st.composite
def mixtures(draw, num_sources, *, endless):
    """Any mixture that is allowed; weights of 0 among them."""
    if not draw(st.booleans()):
        kinds = st.one_of(
            st.just(Share()),
            st.builds(lambda repeat: Share(repeat=repeat), st.sampled_from([0.5, 1.5, 2.0])),
            st.builds(lambda choose: Share(choose=choose), st.integers(1, 12)),
        )
        return Mixture(shares=tuple(draw(kinds) for _ in range(num_sources)))
    weights = draw(st.lists(st.sampled_from([0.0, 0.05, 0.2, 1.0, 3.0]), min_size=num_sources, max_size=num_sources))
    weights[draw(st.integers(0, num_sources - 1))] = 0.7
    stop = draw(st.sampled_from(["first_exhausted", "all_exhausted", *(["never", None] if endless else [])]))
    return Mixture(shares=tuple(Share(weight=weight) for weight in weights), stop=stop)


def weighted(*weights, stop=None):
    return Mixture(shares=tuple(Share(weight=weight) for weight in weights), stop=stop)


def samples_of(rows_of_sources):
    """Each source's samples, in the block numbers of the mixture."""
    found, first = [], 0
    for rows in rows_of_sources:
        found.append([(first + block, row) for block, row in all_samples(rows)])
        first += len(rows)
    return found


def counts_by_source(samples, rows_of_sources):
    ends = np.cumsum([len(rows) for rows in rows_of_sources])
    return np.bincount(np.searchsorted(ends, [block for block, _ in samples], side="right"), minlength=len(ends))


@given(amounts, st.integers(0, 10**11))
def test_any_prefix_holds_each_part_to_within_three(parts, place):
    proportions = Proportions(tuple(parts))
    counts = [int(count) for count in proportions.counts(np.array(place))]

    assert sum(counts) == place
    for count, part in zip(counts, parts, strict=True):
        assert abs(count * sum(parts) - part * place) < 3 * sum(parts)
    assert [int(count) for count in proportions.counts(np.array(sum(parts)))] == parts


@given(amounts, st.integers(0, 10**11))
def test_places_kinds_and_counts_follow_from_one_another(parts, start):
    proportions = Proportions(tuple(parts))
    places = np.arange(start, start + 300)
    kinds, numbers = proportions.locate(places)

    for kind, counts in enumerate(proportions.counts(places)):
        mine = kinds == kind
        assert np.array_equal(numbers[mine], counts[mine])
        assert not mine.any() or np.array_equal(proportions.places(kind, numbers[mine]), places[mine])


@pytest.mark.parametrize("parts", [(), (0, 0), (-1, 2), (MOST_PERIOD, 1)])
def test_amounts_that_are_no_proportions_are_refused(parts):
    with pytest.raises(ValueError, match=r"amounts|empty"):
        Proportions(parts)


@given(sources, orders(), batch_sizes, world_sizes, st.integers(0, 2))
def test_without_weights_a_pass_has_every_sample_once(rows, order, batch_size, world_size, epoch):
    batches, positions = global_batches(plans_of(rows, order, batch_size, world_size), Position(epoch, 0))

    assert sorted(flat(batches)) == sorted(flat(samples_of(rows)))
    assert positions[-1] == Position(epoch + 1, 0)


@given(sources, orders(), st.data(), st.booleans())
def test_global_batches_do_not_depend_on_the_world_size(rows, order, data, endless):
    mixture = data.draw(mixtures(len(rows), endless=endless))
    found = [
        global_batches(plans_of(rows, order, 120 // size, size, mixture=mixture, endless=endless), limit=3)
        for size in WORLD_SIZES
    ]

    assert all(each == found[0] for each in found)


@given(sources, orders(), st.data(), st.booleans(), batch_sizes, world_sizes)
def test_any_stop_continues_the_same_sequence_at_any_size(rows, order, data, endless, batch_size, world_size):
    """Cut at a stop and gone on with at another size, a run is the sequence of single samples."""
    mixture = data.draw(mixtures(len(rows), endless=endless))
    single = flat(global_batches(plans_of(rows, order, 1, 1, mixture=mixture, endless=endless), limit=120)[0])
    options = {"mixture": mixture, "endless": endless}
    batches, positions = global_batches(plans_of(rows, order, batch_size, world_size, **options), limit=6)
    stop = data.draw(st.integers(0, len(batches)))
    position = ([Position(), *positions])[stop]
    new_batch_size, new_world_size = data.draw(batch_sizes), data.draw(world_sizes)
    rest, _ = global_batches(plans_of(rows, order, new_batch_size, new_world_size, **options), position, limit=6)

    done = 0
    for batch in [*batches[:stop], *(rest if position.epoch == 0 or endless else [])]:
        expected = single[done : done + len(batch)]
        assert len(expected) < len(batch) or sorted(batch) == sorted(expected)
        done += len(batch)


@given(sources, orders(), st.data(), batch_sizes, world_sizes)
def test_workers_interleave_to_the_steps_of_their_rank(rows, order, data, batch_size, world_size):
    mixture = data.draw(mixtures(len(rows), endless=True))
    plan = plans_of(rows, order, batch_size, world_size, mixture=mixture, endless=True)[-1]
    workers = [steps_of(plan, first=first, stride=3, limit=5) for first in range(3)]

    assert [step for turn in zip(*workers, strict=True) for step in turn] == steps_of(plan, limit=15)


@given(sources, orders(), st.integers(0, 2), st.data())
def test_stop_rules(rows, order, epoch, data):
    weights = [data.draw(st.sampled_from([0.1, 0.5, 2.0])) for _ in rows]
    each = samples_of(rows)
    passes = {}
    for stop in ("first_exhausted", "all_exhausted"):
        plans = plans_of(rows, order, 4, 2, mixture=weighted(*weights, stop=stop))
        passes[stop] = Counter(flat(global_batches(plans, Position(epoch, 0))[0]))

    assert max(passes["first_exhausted"].values()) == 1
    assert any(all(passes["first_exhausted"][sample] for sample in samples) for samples in each)
    assert all(passes["all_exhausted"][sample] for samples in each for sample in samples)
    assert any(max(passes["all_exhausted"][sample] for sample in samples) == 1 for samples in each)


@given(sources, orders(), st.data())
def test_a_weighted_source_goes_through_its_epochs_one_after_the_other(rows, order, data):
    mixture = weighted(*(data.draw(st.sampled_from([0.1, 0.5, 2.0])) for _ in rows))
    batches, _ = global_batches(plans_of(rows, order, 1, 1, mixture=mixture, endless=True), limit=400)
    for samples in samples_of(rows):
        mine = [sample for sample in flat(batches) if sample in set(samples)]
        for start in range(0, len(mine) - len(samples) + 1, len(samples)):
            assert sorted(mine[start : start + len(samples)]) == samples


@given(st.integers(0, 3000), st.integers(100, 600), st.integers(0, 4))
def test_proportions_are_exact_in_any_stretch(start, length, seed):
    weights = [0.7, 0.2, 0.07, 0.03]
    order = Order.suited(seed=seed, shuffle=True, global_batch_size=1)
    plans = plans_of([[50] * 20] * 4, order, 1, 1, mixture=weighted(*weights), endless=True)
    batches, _ = global_batches(plans, Position(0, start), limit=length)

    counts = counts_by_source(flat(batches), [[50] * 20] * 4)
    assert np.abs(counts - np.array(weights) * length).max() < 3


def test_every_global_batch_has_the_proportions():
    rows = [[64] * 40, [64] * 40, [64] * 3]
    order = Order.suited(seed=1, shuffle=True, global_batch_size=256)
    batches, _ = global_batches(
        plans_of(rows, order, 64, 4, mixture=weighted(0.5, 0.375, 0.125), endless=True), limit=30
    )

    for batch in batches:
        assert np.abs(counts_by_source(batch, rows) - [128, 96, 32]).max() <= 2


def test_a_schedule_changes_the_weights_at_its_samples():
    rows = [[10] * 10, [10] * 10]
    mixture = weighted(((0, 1.0), (600, 0.25)), ((0, 0.0), (300, 1.0), (600, 0.75)))
    order = Order.suited(seed=1, shuffle=True, global_batch_size=6)
    batches, _ = global_batches(plans_of(rows, order, 3, 2, mixture=mixture, endless=True), limit=200)
    counts = [counts_by_source(flat(batches[start : start + 50]), rows).tolist() for start in range(0, 200, 50)]

    assert counts == [[300, 0], [150, 150], [75, 225], [75, 225]]


@given(orders(), st.integers(1, 4))
def test_choosing_takes_other_rows_in_each_pass_until_all_were_taken(order, per_pass):
    rows, mixture = [[5] * 4, [3] * 4], Mixture(shares=(Share(choose=5 * per_pass), Share()))
    passes = [
        Counter(flat(global_batches(plans_of(rows, order, 4, 1, mixture=mixture), Position(e, 0))[0])) for e in range(4)
    ]
    chosen = [Counter({sample: count for sample, count in each.items() if sample[0] < 4}) for each in passes]

    assert [each.total() for each in chosen] == [5 * per_pass] * 4
    assert set(sum(chosen, Counter()).values()) == {per_pass}
    assert all(each.total() - kept.total() == 12 for each, kept in zip(passes, chosen, strict=True))


@given(orders(), st.sampled_from([0.5, 1.5, 2.0, 3.0]))
def test_repeating_brings_rows_equally_often(order, repeat):
    rows, mixture = [[5] * 4, [3] * 4], Mixture(shares=(Share(repeat=repeat), Share()))
    plans = plans_of(rows, order, 4, 1, mixture=mixture)
    two = Counter(flat([sample for e in range(2) for sample in global_batches(plans, Position(e, 0))[0]]))

    assert {count for (block, _), count in two.items() if block < 4} == {int(2 * repeat)}


@given(sources, orders(), batch_sizes, st.integers(0, 2), st.booleans())
def test_one_source_with_a_weight_is_as_if_it_were_alone(rows, order, batch_size, epoch, endless):
    position = Position(epoch, 0)
    mixture = weighted(*([0.3] + [0.0] * (len(rows) - 1)))
    mixed = plans_of(rows, order, batch_size, 2, mixture=mixture, endless=endless)
    alone = plans_of(rows[:1], order, batch_size, 2, endless=endless)

    assert global_batches(mixed, position, limit=9) == global_batches(alone, position, limit=9)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a07_shuffling_a_mixture_removes_no_sample(shuffle):
    rows = [[3], [4], [3]]
    order = Order.suited(seed=0, shuffle=shuffle, global_batch_size=2)
    batches, _ = global_batches(plans_of(rows, order, 2, 1, mixture=weighted(0.2, 0.6, 0.2, stop="all_exhausted")))

    assert set(flat(batches)) == set(flat(samples_of(rows)))


def test_in_order_a_mixture_interleaves_and_each_source_keeps_its_order():
    rows = [[4, 4], [2, 2]]
    order = Order.suited(seed=0, shuffle=False, global_batch_size=4)
    samples = flat(global_batches(plans_of(rows, order, 2, 2))[0])

    assert [s for s in samples if s[0] < 2] == samples_of(rows)[0]
    assert [s for s in samples if s[0] >= 2] == samples_of(rows)[1]
    assert all(counts_by_source(samples[at : at + 3], rows).tolist() == [2, 1] for at in range(0, 12, 3))


@settings(max_examples=60)
@given(sources, orders(), st.data(), st.booleans(), batch_sizes, world_sizes)
def test_a_step_needs_no_more_blocks_than_promised(rows, order, data, endless, batch_size, world_size):
    mixture = data.draw(mixtures(len(rows), endless=endless))
    for plan in plans_of(rows, order, batch_size, world_size, mixture=mixture, endless=endless):
        for reads in itertools.islice(plan.reads(Position()), 2):
            assert max(len(np.unique(step)) for step in reads.block) <= plan.most_blocks_at_once


@settings(max_examples=60)
@given(sources, orders(), st.data(), st.booleans(), batch_sizes, world_sizes)
def test_a_last_element_is_of_one_block_and_nothing_of_its_window_comes_later(
    rows, order, data, endless, batch_size, world_size
):
    mixture = data.draw(mixtures(len(rows), endless=endless))
    block_of = {}
    for plan in plans_of(rows, order, batch_size, world_size, mixture=mixture, endless=endless):
        for reads in itertools.islice(plan.reads(Position()), 2):
            assert (reads.last_element >= reads.start[:, None]).all()
            for block, last in zip(reads.block.ravel().tolist(), reads.last_element.ravel().tolist(), strict=True):
                assert block_of.setdefault(last, block) == block


def test_ranks_keep_to_their_lanes_of_every_source():
    rows = [[20] * 160, [20] * 80]
    order = Order.suited(seed=3, shuffle=True, global_batch_size=48)
    read = Counter()
    for plan in plans_of(rows, order, 6, 8):
        read.update({block for samples, _, _ in steps_of(plan) for block, _ in samples})

    assert len(read) == 240
    assert read.total() < 1.5 * 240  # not by every rank, but for blocks on a border


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: Share(weight=-1.0), "not negative"),
        (lambda: Share(weight=float("nan")), "finite"),
        (lambda: Share(weight=((5, 1.0),)), "begins at sample 0"),
        (lambda: Share(weight=((0, 1.0), (0, 2.0))), "ascends"),
        (lambda: Share(repeat=0), "repeat must be positive"),
        (lambda: Share(choose=0), "choose must be at least 1"),
        (lambda: Share(choose=2, repeat=2.0), "without repeat"),
        (lambda: Mixture(shares=()), "at least one source"),
        (lambda: Mixture(shares=(Share(weight=1.0), Share())), "either every source has a weight or none"),
        (lambda: Mixture(shares=(Share(), Share()), stop="first_exhausted"), "needs weights"),
        (lambda: Mixture(shares=(Share(weight=1.0),), stop="sometimes"), "stop must be one of"),
        (lambda: weighted(1.0, 1.0).sequence([3, 0], endless=True), "source 1 has a weight and no rows"),
        (lambda: weighted(1.0, 1.0, stop="never").sequence([3, 3], endless=False), "needs endless"),
        (lambda: weighted(((0, 1.0), (9, 2.0)), 1.0).sequence([3, 3], endless=False), "schedule"),
        (lambda: weighted(1e-30, 1.0).sequence([10**9, 3], endless=False).length, "more than"),
    ],
)
def test_mistakes_are_named(wrong, named):
    with pytest.raises(ValueError, match=named):
        wrong()


def test_an_endless_mixture_has_one_epoch():
    order = Order.suited(seed=0, shuffle=True, global_batch_size=2)
    plan = plans_of([[3], [3]], order, 2, 1, mixture=weighted(1.0, 2.0), endless=True)[0]

    assert plan.sequence.length == NEVER
    with pytest.raises(ValueError, match="one epoch"):
        next(plan.reads(Position(1, 0)))

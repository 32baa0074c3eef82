"""Ranges are put together and taken apart so that each byte wanted is read, and hardly any other."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.storage.ranges import neighbours, parts


@dataclass(frozen=True)
class Span:
    shard: str
    offset: int
    num_bytes: int


def of(*offsets, size=100, shard="a"):
    return [Span(shard, offset, size) for offset in offsets]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        (of(0), [0]),
        (of(0, 100, 200), [0, 1, 2]),
        (of(200, 0, 100), [1, 2, 0]),
        (of(0, 100, 5000), [0, 1]),
        (of(0, 600, 1300), [0, 1]),  # 500 bytes of padding are read, 600 are not
        (of(0) + of(100, shard="b"), [0]),
        (of(0, 1 << 20, size=1 << 20), [0]),
        (of(0, 50), [0]),  # overlapping: not what a writer makes
        (of(1000, 1000), [0]),
    ],
)
def test_neighbours_are_read_with_the_first(spans, expected):
    assert neighbours(spans) == expected


@given(
    places=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40)), min_size=1, max_size=90, unique=True),
    size=st.sampled_from([1000, 60_000, 300_000]),
)
def test_a_joint_read_is_short_and_holds_the_first(places, size):
    spans = [Span(shard, place * size, size) for shard, place in places]
    chosen = [spans[number] for number in neighbours(spans)]

    assert spans[0] in chosen
    assert {span.shard for span in chosen} == {spans[0].shard}
    assert all(one.offset + size == other.offset for one, other in pairwise(chosen))
    assert len(chosen) * size <= max(size, 1 << 20)


@given(start=st.integers(0, 10**12), num_bytes=st.integers(1, 10**9), room=st.integers(-5, 300))
def test_parts_are_the_whole_and_none_is_small(start, num_bytes, room):
    cut = parts(start, start + num_bytes, room=room)

    assert cut[0][0] == start
    assert cut[-1][1] == start + num_bytes
    assert all(one[1] == other[0] for one, other in pairwise(cut))
    assert len(cut) == 1 or (len(cut) <= room and min(stop - start for start, stop in cut) >= 4 << 20)

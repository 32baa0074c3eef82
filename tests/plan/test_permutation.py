"""Permutations are permutations, differ by key, and are the same for ever."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.plan.permutation import derive_key, permutation, random_words


@given(st.integers(0, 3000), st.integers(0, 2**64 - 1))
def test_every_number_comes_once(count, key):
    assert np.array_equal(np.sort(permutation(count, key)), np.arange(count))


def test_values_never_change_by_accident():
    assert permutation(10, 1).tolist() == [8, 4, 3, 7, 0, 1, 5, 9, 6, 2]
    assert [hex(word) for word in random_words(0, 3).tolist()] == [
        "0xe220a8397b1dcdaf",  # SplitMix64 from seed 0, as its authors publish it
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]
    assert derive_key(1, 2, 3) == 0xA91B493F36DF72ED


def test_parts_of_a_key_and_their_places_matter():
    keys = {derive_key(*parts) for parts in [(1,), (1, 0), (0, 1), (1, 1), (1, 2), (2, 1), (1, 2, 0)]}

    assert len(keys) == 7


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64 + 5])
def test_any_whole_number_is_a_seed(seed):
    assert sorted(permutation(5, derive_key(seed))) == list(range(5))


def test_places_are_spread_evenly():
    count, keys = 16, 4000
    seen = np.zeros((count, count))
    for key in range(keys):
        seen[np.arange(count), permutation(count, derive_key(key))] += 1

    expected = keys / count
    chi_squared = ((seen - expected) ** 2 / expected).sum()
    assert chi_squared < 330  # 225 degrees of freedom: exceeded once in 100,000 runs

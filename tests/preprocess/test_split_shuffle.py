import numpy as np
import pyarrow as pa
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from preprocess import Shuffle, Split

SPLIT = Split(key="id", fractions={"train": 0.9, "validation": 0.1})


@given(st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=40), st.randoms(use_true_random=False))
def test_a_row_keeps_its_part_whatever_stands_around_it(ids, random):
    batch = pa.record_batch({"id": pa.array(ids, pa.string())})
    shuffled = random.sample(range(len(ids)), len(ids))

    parts = SPLIT.assign(batch)

    assert SPLIT.assign(batch.take(pa.array(shuffled, pa.int64()))).tolist() == parts[shuffled].tolist()
    assert [int(SPLIT.assign(batch.slice(row, 1))[0]) for row in range(len(ids))] == parts.tolist()


def test_the_part_is_the_hash_of_the_keys_text():
    ids = [f"row {number}" for number in range(2000)]

    parts = SPLIT.assign(pa.record_batch({"id": ids}))

    numbers = [int.from_bytes(blake3(name.encode()).digest()[:8], "little") for name in ids]
    assert parts.tolist() == [int(number >= 0.9 * 2**64) for number in numbers]
    assert 150 < parts.sum() < 250


def test_integer_keys_of_any_width_and_their_text_agree():
    kinds = [pa.int16(), pa.int64(), pa.uint32(), pa.string(), pa.large_string()]

    found = [SPLIT.assign(pa.record_batch({"id": pa.array(range(500), pa.int64()).cast(kind)})) for kind in kinds]

    assert all((parts == found[0]).all() for parts in found)


def test_without_a_key_equal_rows_stay_together():
    batch = pa.record_batch({"a": [1, 1, 2], "b": [["x"], ["x"], None]})
    whole = Split(fractions={str(number): 1 / 100 for number in range(100)})

    parts = whole.assign(batch)

    assert parts[0] == parts[1] != parts[2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fractions": {}}, "1 to 127 parts, got 0"),
        ({"fractions": {"a": 0.5}}, "must add up to 1, got 0.5"),
        ({"fractions": {"a": 1.5}}, "less than or equal to 1"),
        ({"fractions": {"../a": 1.0}}, "letters, digits"),
        ({"fractions": {"a": 1.0}, "seed": 1}, "seed"),
    ],
)
def test_a_split_is_checked_where_it_is_made(wrong, message):
    with pytest.raises(ValidationError, match=message):
        Split(**wrong)


def test_a_missing_key_is_refused_by_name():
    with pytest.raises(ValueError, match="split: there is no column 'id'; the columns are a, b"):
        SPLIT.check(pa.schema([("a", pa.int8()), ("b", pa.int8())]))


@given(st.integers(0, 2**40), st.integers(0, 50), st.integers(0, 50))
def test_shuffle_keys_do_not_depend_on_how_rows_are_cut(first, one, other):
    shuffle = Shuffle(seed=3)

    whole = shuffle.keys(5, first, one + other)

    parts = [shuffle.keys(5, first, one), shuffle.keys(5, first + one, other)]
    assert whole.tolist() == np.concatenate(parts).tolist()


def test_seeds_tasks_and_rows_have_keys_of_their_own():
    keys = [Shuffle(seed=seed).keys(task, 0, 1000) for seed in range(3) for task in range(3)]

    assert len(set(np.concatenate(keys).tolist())) == 9000

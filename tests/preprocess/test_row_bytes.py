import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.row_bytes import row_bytes, row_digests, value_digests

STRUCT = pa.struct([("a", pa.list_(pa.string())), ("b", pa.int32())])
TYPES = {
    "string": (pa.string(), ["", "a", "ab", "\x00", "\x01", None, "null"]),
    "binary": (pa.binary(), [b"", b"a", b"\x00\x00", None]),
    "bool": (pa.bool_(), [True, False, None]),
    "float": (pa.float64(), [0.0, -0.0, math.inf, math.nan, 1.5, None]),
    "half": (pa.float16(), [0.0, -0.0, 1.5, None]),
    "decimal": (pa.decimal128(9, 2), [Decimal("1.10"), Decimal("11.00"), None]),
    "list": (pa.list_(pa.string()), [[], [""], ["", ""], ["a", "b"], ["ab"], [None], None]),
    "fixed list": (pa.list_(pa.int16(), 2), [[1, 2], [2, 1], None, [None, 1]]),
    "nested list": (pa.list_(pa.list_(pa.int8())), [[], [[]], [[], []], [[1], [2]], [[1, 2]], None]),
    "struct": (STRUCT, [{"a": ["x"], "b": 1}, {"a": [], "b": 1}, {"a": None, "b": None}, None, {"a": [], "b": None}]),
    "map": (pa.map_(pa.string(), pa.int8()), [[("a", 1)], [("a", 2)], [], None, [("a", 1), ("b", 1)]]),
    "timestamp": (pa.timestamp("us", "UTC"), [0, 1, None]),
}


@pytest.mark.parametrize("name", TYPES)
@given(picks=st.lists(st.integers(0, 6), min_size=1, max_size=20), start=st.integers(0, 20))
def test_values_have_equal_bytes_just_when_they_are_equal(name, picks, start):
    kind, values = TYPES[name]
    picks = [pick % len(values) for pick in picks]
    array = pa.array([values[pick] for pick in picks], kind)

    for spelled in (row_bytes(array), pa.array([bytes(row) for row in value_digests(array)])):
        by_value = dict(zip(picks, spelled.to_pylist(), strict=True))
        assert spelled.to_pylist() == [by_value[pick] for pick in picks]
        assert len(set(by_value.values())) == len(by_value)
    assert row_bytes(array.slice(start)).to_pylist() == row_bytes(array).to_pylist()[start:]


def test_rows_are_told_apart_where_columns_meet():
    batch = pa.record_batch({"a": ["x", "xy", None], "b": ["yz", "z", ""]})

    assert len({bytes(row) for row in row_digests(batch, None)}) == 3
    assert (row_digests(batch, ["a"]) == value_digests(batch.column("a"))).all()


def test_text_has_the_same_digest_in_every_type_of_text():
    texts = pa.array(["a", None, "日本"])
    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]

    assert len({row_bytes(texts.cast(kind)).to_string() for kind in kinds}) == 1

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dataplane.errors import InputError
from preprocess.operations import Quantize
from preprocess.operations.quantize import dequantized, from_bfloat16, to_bfloat16
from tests.preprocess.operations.cuts import CUTS, assert_same_however_cut, run

FLOATS = st.floats(-60_000, 60_000, width=32)
LISTS = st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), FLOATS), max_size=5)), max_size=30)
SETTINGS = [("float16", "row"), ("bfloat16", "row"), ("int8", "row"), ("int8", 500.0)]
TYPES = [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.list_(pa.float32()))]


def restored(operation, batch):
    table, _ = run(operation, batch)
    scales = table.column("v_scale").combine_chunks() if "v_scale" in table.schema.names else None
    return dequantized(table.column("v").combine_chunks(), table.schema.field("v"), scales).to_pylist(), table


def bound_of(to, scale, value, largest):
    if to == "float16":
        return max(2**-11 * abs(value), 2**-25)
    if to == "bfloat16":
        return max(2**-8 * abs(value), 2**-133)
    # The scale itself is a float32, whose smallest step counts near zero.
    return 0.501 * max(largest / 127 if scale == "row" else scale, 2**-149) + 2**-23 * abs(value)


@pytest.mark.parametrize(("to", "scale"), SETTINGS)
@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(rows=LISTS, cuts=CUTS)
def test_the_error_keeps_its_bound_and_shapes_stay(to, scale, kind, rows, cuts):
    nested = pa.types.is_list(kind) and pa.types.is_list(kind.value_type)
    values = [row if row is None or not nested else [row, [], None] for row in rows]
    batch = pa.record_batch({"v": pa.array(values, kind)})
    operation = Quantize(columns=("v",), to=to, scale=scale)

    found, _ = restored(operation, batch)

    for row, back in zip(values, found, strict=True):
        if nested and row is not None:
            assert back[1:] == row[1:]
            row, back = row[0], back[0]
        assert (row is None) == (back is None)
        largest = max((abs(value) for value in row or () if value is not None), default=0)
        for value, again in zip(row or (), back or (), strict=True):
            assert (value is None) == (again is None)
            assert value is None or abs(value - again) <= bound_of(to, scale, value, largest)
    assert_same_however_cut(operation, batch, cuts)


@pytest.mark.parametrize(("to", "scale"), SETTINGS)
@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32(), 2), pa.list_(pa.list_(pa.float64(), 2), 1), pa.list_(pa.float32(), 0)], ids=str
)
def test_lists_of_fixed_length_stay_so(to, scale, kind):
    row = {2: [1.0, -2.0], 1: [[1.0, -2.0]], 0: []}[kind.list_size]
    batch = pa.record_batch({"v": pa.array([row, None, row, row], kind)})

    found, table = restored(Quantize(columns=("v",), to=to, scale=scale if scale == "row" else 1.0), batch.slice(1))

    assert table.schema.field("v").type.list_size == kind.list_size
    assert [back is None for back in found] == [True, False, False]
    np.testing.assert_allclose(np.array(found[1:], float), np.array([row, row], float), atol=0.501 * 2 / 127)


def test_tensors_and_plain_columns():
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.float32).reshape(2, 2, 3))
    batch = pa.record_batch({"v": tensors, "x": pa.array([1.5, None], pa.float64())})

    table, _ = run(Quantize(columns=("v", "x"), to="float16"), batch)

    assert table.schema.field("v").type == pa.fixed_shape_tensor(pa.float16(), (2, 3))
    assert table.schema.field("v").metadata == {b"dataplane.quantized": b"float16"}
    assert table.column("v").combine_chunks().to_numpy_ndarray().tolist() == tensors.to_numpy_ndarray().tolist()
    assert table.column("x").to_pylist() == [1.5, None]


def test_bfloat16_keeps_what_is_special_and_rounds_to_even():
    torch = pytest.importorskip("torch")
    values = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1.00390625, 1.01171875, 3.38e38, 1e-40], np.float32)
    values = np.concatenate((values, np.random.default_rng(1).normal(size=10_000).astype(np.float32)))

    words = to_bfloat16(values)

    theirs = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(from_bfloat16(words), theirs)
    assert np.signbit(from_bfloat16(words)[1])


@pytest.mark.parametrize(
    ("to", "scale", "value", "message"),
    [
        ("float16", "row", 70_000.0, "beyond float16, whose largest is 65504"),
        ("bfloat16", "row", 3.4e38, "beyond bfloat16"),
        ("int8", "row", math.nan, "is not finite"),
        ("int8", "row", -math.inf, "is not finite"),
        ("int8", 0.5, 64.0, "is beyond 127 times the scale 0.5"),
    ],
)
def test_what_does_not_fit_is_refused_by_column_value_and_row(to, scale, value, message):
    batch = pa.record_batch({"v": pa.array([[1.0], None, [], [2.0, value]], pa.list_(pa.float64()))})

    with pytest.raises(InputError, match=f"quantize: column 'v' holds .* in row 3 of the batch, which .*{message}"):
        run(Quantize(columns=("v",), to=to, scale=scale), batch)


def test_infinities_and_nan_pass_where_there_are_such_values():
    batch = pa.record_batch({"v": pa.array([math.inf, -math.inf, math.nan, -0.0], pa.float32())})

    for to in ("float16", "bfloat16"):
        assert str(restored(Quantize(columns=("v",), to=to), batch)[0]) == "[inf, -inf, nan, -0.0]"


def test_what_is_not_of_floats_is_refused():
    schema = pa.schema([("v", pa.list_(pa.int8())), ("x", pa.float32()), ("x_scale", pa.float32())])

    with pytest.raises(ValueError, match="column 'v' is of type list<item: int8>, not of floats"):
        Quantize(columns=("v",), to="float16").bind(schema)
    with pytest.raises(ValueError, match="there is a column 'x_scale' already"):
        Quantize(columns=("x",), to="int8").bind(schema)
    with pytest.raises(ValidationError, match="scale goes with int8"):
        Quantize(columns=("x",), to="float16", scale=1.0)

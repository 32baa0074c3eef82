import numpy as np
import pyarrow as pa
import pytest
import torch

from dataplane.buffers import BufferPool
from dataplane.pipeline import Arena, Layout, Ragged
from tests.datasets import SAMPLE_SCHEMA, expected_starts, sample_rows


def test_a_buffer_is_used_again_only_when_nothing_refers_to_it():
    pool = BufferPool(4)
    first = pool.take(120).view(np.int32).reshape(10, 3)
    view = torch.from_numpy(first[2:4])
    address = first.ctypes.data
    del first
    second = pool.take(120)
    assert second.ctypes.data != address
    del view
    third = pool.take(120)

    assert third.ctypes.data == address


def test_kept_buffers_are_left_to_their_keepers():
    pool = BufferPool(2)
    kept = [pool.take(1000) for _ in range(10)]

    assert len({buffer.ctypes.data for buffer in kept}) == 10


def test_gathering_takes_rows_from_any_slots_in_order():
    layout = Layout.of(SAMPLE_SCHEMA)
    arena = Arena(layout, rows_per_slot=6, num_slots=3)
    for slot, ids in enumerate([range(6), range(6, 10), range(10, 15)]):
        arena.fill(slot, sample_rows(ids))
    slot, row = np.array([2, 0, 1, 0, 2]), np.array([4, 5, 0, 0, 1])
    out = np.empty((5, 8), np.uint16)
    arena.gather_fixed("tokens", slot, row, out)

    assert out[:, 0].tolist() == [14, 5, 6, 0, 11]
    assert arena.gather_ragged(slot, row)["starts"].to_pylist() == [expected_starts(i) for i in [14, 5, 6, 0, 11]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
        pa.int64(),
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.bool_(),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 4)], ids=str)
def test_numbers_of_fixed_shape_keep_type_shape_and_bytes(kind, shape):
    count = 5 * int(np.prod(shape, dtype=int))
    values = pa.array(np.arange(count) % 2 if kind == pa.bool_() else np.arange(count)).cast(kind)
    for size in reversed(shape):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    column = Layout.of(pa.schema([("x", values.type)])).fixed[0]

    assert (column.shape, column.to_numpy(values).shape) == (shape, (5, *shape))
    assert column.to_numpy(values).dtype == kind.to_pandas_dtype()
    assert column.to_numpy(values[1:3]).ravel().tolist() == column.to_numpy(values)[1:3].ravel().tolist()


def test_nulls_are_nan_in_floats_and_refused_in_integers():
    floats, integers = Layout.of(pa.schema([("f", pa.float32()), ("i", pa.int32())])).fixed

    assert np.isnan(floats.to_numpy(pa.array([None, 1.0], pa.float32()))).tolist() == [True, False]
    with pytest.raises(ValueError, match="column 'i' holds 1 nulls"):
        integers.to_numpy(pa.array([None, 1], pa.int32()))


def test_ragged_rows_are_views_of_flat_values():
    ragged = Ragged(torch.arange(5), torch.tensor([0, 2, 2, 5]))

    assert [row.tolist() for row in ragged.rows()] == [[0, 1], [], [2, 3, 4]]

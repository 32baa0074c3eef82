"""Tensors and times of every type, from a file to blocks and back: equal, or refused by the name of the type."""

import datetime as dt
import math

import numpy as np
import pyarrow as pa
import pytest

from preprocess import Recipe, preprocess
from preprocess.operations import Derive
from tests.preprocess.datasets import read_table

NUMBERS = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bool",
]
SHAPES = [(), (3,), (2, 3), (0, 3), (2, 0, 4)]


def values_of(kind):
    if kind == "bool":
        return np.array([True, False] * 6)
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        return np.array([math.nan, math.inf, -math.inf, -0.0, 0.0, np.finfo(dtype).max, 1.5, -2.0] * 2, dtype)[:12]
    return np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1] * 3, dtype)


def tensors(kind, shape, rows=2):
    """Rows of the shape, nested fixed-size lists."""
    size = math.prod(shape)
    array = pa.array(np.resize(values_of(kind), rows * size), pa.type_for_alias(kind))
    if not shape:
        return pa.array(np.resize(values_of(kind), rows), pa.type_for_alias(kind))
    for number in range(len(shape) - 1, -1, -1):
        places = rows * math.prod(shape[:number])
        kind_of_list = pa.list_(array.type, shape[number])
        if shape[number] == 0:
            array = pa.array([[]] * places, kind_of_list)
        else:
            array = pa.FixedSizeListArray.from_arrays(array, type=kind_of_list)
    return array


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tensors_of_every_type_come_back_equal(tmp_path, shape):
    columns = {kind: tensors(kind, shape) for kind in NUMBERS}
    batch = pa.record_batch({**columns, "id": [0, 1]})
    with pa.ipc.new_file(str(tmp_path / "in.arrow"), batch.schema) as writer:
        writer.write_batch(batch)

    preprocess(
        [str(tmp_path / "in.arrow")], str(tmp_path / "out"), Recipe(operations=(Derive(columns={"n": "id + 1"}),))
    )

    table = read_table(tmp_path / "out")
    for kind in NUMBERS:
        found = table.column(kind).combine_chunks()
        assert (kind, found.type) == (kind, batch.column(kind).type)
        assert found.to_string() == batch.column(kind).to_string()  # NaN and -0.0 too


TIMES = [dt.datetime(year, 12, 31, 23, 59, 59, 999_999) for year in (1, 1677, 1969, 9999)]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_times_of_every_year_come_back_equal_zone_included(tmp_path, zone):
    times = pa.array(TIMES, pa.timestamp("us")).cast(pa.timestamp("us", zone))
    nanoseconds = pa.array([1, None, -1, 2**62], pa.timestamp("ns", zone))
    batch = pa.record_batch({"time": times, "ns": nanoseconds})
    with pa.ipc.new_file(str(tmp_path / "in.arrow"), batch.schema) as writer:
        writer.write_batch(batch)

    preprocess([str(tmp_path / "in.arrow")], str(tmp_path / "out"))

    table = read_table(tmp_path / "out")
    assert table.column("time").combine_chunks().equals(times)
    assert table.column("ns").combine_chunks().equals(nanoseconds)

"""The native shard keeps the format contract, keeps every value, and is an ordinary Arrow file."""

import contextlib
import datetime
import decimal
import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.errors import CorruptBlockError
from dataplane.formats import ArrowFormat, ShardBuilder, format_named
from dataplane.storage import digest_of
from tests.contracts import SCHEMA, FormatContract, batch_of

CODECS = ["zstd", "lz4", "none"]


def shard_of(batches, codec="zstd"):
    builder = ShardBuilder(batches[0].schema, codec=codec)
    for batch in batches:
        builder.add(batch)
    return builder.finish()


class TestArrowFormat(FormatContract):
    @pytest.fixture
    def form(self):
        return ArrowFormat()

    @pytest.fixture(params=CODECS)
    def shard(self, request):
        return bytes(shard_of(self.batches, request.param)[0])


def through_a_shard(batch, codec="zstd", **options):
    data, (block,) = shard_of([batch], codec)
    return ArrowFormat().decode(
        memoryview(data)[block.offset : block.offset + block.num_bytes], batch.schema, **options
    )


@pytest.mark.parametrize("codec", CODECS)
def test_a_builder_knows_its_blocks_without_reading_them_again(codec):
    data, built = shard_of([batch_of(3), batch_of(500, 3)], codec)
    _, found = ArrowFormat().index(memoryview(data), "")

    for one, other in zip(built, found, strict=True):
        assert (one.offset, one.num_bytes, one.num_rows) == (other.offset, other.num_bytes, other.num_rows)
        assert one.digest == other.digest
        assert one.digest == digest_of(memoryview(data)[one.offset : one.offset + one.num_bytes])


def test_any_arrow_reader_opens_a_shard():
    data, _ = shard_of([batch_of(3), batch_of(4, 3)])

    assert pa.ipc.open_file(data).read_all() == pa.Table.from_batches([batch_of(7)])


def test_a_shard_of_no_blocks_has_none():
    data, blocks = ShardBuilder(SCHEMA).finish()

    assert blocks == []
    assert ArrowFormat().index(bytes(data), "name") == (SCHEMA, [])


def test_the_size_grows_with_each_block():
    builder = ShardBuilder(SCHEMA)
    sizes = [builder.num_bytes]
    for _ in range(3):
        builder.add(batch_of(10))
        sizes.append(builder.num_bytes)

    assert sizes == sorted(set(sizes))


UTC = datetime.UTC
COLUMNS = {
    **{
        str(kind): pa.array([0, 1, None, 2 ** (bits - signed) - 1, -(2 ** (bits - 1)) * signed], kind)
        for kind, bits, signed in [
            (pa.int8(), 8, True),
            (pa.int16(), 16, True),
            (pa.int32(), 32, True),
            (pa.int64(), 64, True),
            (pa.uint8(), 8, False),
            (pa.uint16(), 16, False),
            (pa.uint32(), 32, False),
            (pa.uint64(), 64, False),
        ]
    },
    **{
        str(kind): pa.array(np.array([math.nan, math.inf, -math.inf, -0.0, 1.5], kind.to_pandas_dtype()), kind)
        for kind in (pa.float16(), pa.float32(), pa.float64())
    },
    "bool": pa.array([True, False, None, True]),
    "null": pa.nulls(3),
    "string": pa.array(["", None, "é\u2028\x0b", "long" * 1000]),
    "large_string": pa.array(["", None, "x"], pa.large_string()),
    "binary": pa.array([b"", None, b"\0\xff"]),
    "large_binary": pa.array([b"", None, b"\0\xff"], pa.large_binary()),
    "fixed binary": pa.array([b"abc", None], pa.binary(3)),
    "all null": pa.array([None, None], pa.string()),
    "list": pa.array([[1, None], [], None, [2]]),
    "large_list": pa.array([[1.5], []], pa.large_list(pa.float32())),
    "fixed list": pa.array([[1, 2], None, [3, None]], pa.list_(pa.int16(), 2)),
    "nested fixed list": pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.int8(), 2), 2)),
    "list of nothing": pa.array([[], [], []], pa.list_(pa.string())),
    "list of records": pa.array([[], [{"a": [[1], []], "b": None}], None, [{"a": None, "b": "x"}]]),
    "struct": pa.array([{"a": 1, "b": [True]}, None, {"a": None, "b": []}]),
    "empty struct": pa.array([{}, {}], pa.struct([])),
    "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int8())),
    "decimal": pa.array([decimal.Decimal("1.23"), None], pa.decimal128(10, 2)),
    "decimal256": pa.array([decimal.Decimal("-1.23")], pa.decimal256(60, 2)),
    "timestamp": pa.array([-(2**62), 0, None], pa.timestamp("ns")),
    "timestamp of far years": pa.array(
        [datetime.datetime(year, 1, 2, 3, 4, 5, 6) for year in (1, 1677, 1969, 9999)],
        pa.timestamp("us", "Europe/Berlin"),
    ),
    "date": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
    "date64": pa.array([datetime.date(1, 1, 1)], pa.date64()),
    "time": pa.array([datetime.time(23, 59, 59, 999_999), None]),
    "duration": pa.array([datetime.timedelta(days=-1), None]),
    "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"], pa.binary(16))),
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [2, 0]), pa.array([[], []], pa.list_(pa.float32(), 0))
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("codec", CODECS)
def test_every_value_comes_back(name, codec):
    # Columns on both sides: a slip in counting buffers shows in the next one.
    column = COLUMNS[name]
    marks = pa.array(range(len(column)), pa.int32())
    batch = pa.record_batch({"before": marks, name: column, "after": marks})
    found = through_a_shard(batch, codec)

    assert found.schema == batch.schema
    assert [bits_of(column) for column in found.columns] == [bits_of(column) for column in batch.columns]
    found.validate(full=True)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("codec", CODECS)
def test_columns_that_are_not_asked_for_do_not_disturb_the_others(name, codec):
    marks = pa.array(range(len(COLUMNS[name])), pa.int32())
    batch = pa.record_batch({"before": marks, name: COLUMNS[name], "after": marks})

    assert through_a_shard(batch, codec, columns=["after"]) == batch.select(["after"])
    assert through_a_shard(batch, codec, columns=["after", "before"]) == batch.select(["before", "after"])


def bits_of(column):
    """The values, floating-point numbers as their bytes, since NaN is unequal to itself."""
    if pa.types.is_floating(column.type):
        return column.to_numpy(zero_copy_only=False).tobytes()
    return column if not isinstance(column, pa.ExtensionArray) else column.storage


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 4 * 7 * 4 - 1, 4 * 7 * 4, 1000])
def test_offered_memory_changes_nothing_but_where_values_are(codec, size):
    batch = batch_of(7)
    memory = np.zeros(size, np.uint8)

    assert through_a_shard(batch, codec, out={"tokens": memory}) == batch


def test_values_land_in_offered_memory():
    batch = batch_of(1000)
    memory = np.zeros(4 * 4 * 1000, np.uint8)
    through_a_shard(batch, out={"tokens": memory})

    assert memory.view(np.int32).tolist() == batch["tokens"].flatten().to_pylist()


def test_a_slice_is_written_without_its_surroundings():
    batch = batch_of(1000).slice(500, 10)

    assert through_a_shard(batch) == batch_of(10, 500)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_blocks_are_refused_or_decode_to_sound_arrays(data):
    codec = data.draw(st.sampled_from(CODECS))
    file, (block,) = shard_of([batch_of(20)], codec)
    damaged = bytearray(memoryview(file)[block.offset : block.offset + block.num_bytes])
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))

    with contextlib.suppress(CorruptBlockError):
        ArrowFormat().decode(bytes(damaged), SCHEMA).validate()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_damaged_files_are_refused_or_indexed(place, value):
    data = bytearray(bytes(shard_of([batch_of(20)])[0]))
    data[place % len(data)] = value

    with contextlib.suppress(CorruptBlockError):
        ArrowFormat().index(bytes(data), "name")


@pytest.mark.parametrize("data", [b"", b"ARROW1", b"PAR1" * 100, bytes(1000), b"ARROW1\0\0" + bytes(1000)])
def test_other_files_are_refused_by_name(data):
    with pytest.raises(CorruptBlockError, match=r"photo\.png"):
        ArrowFormat().index(data, "photo.png")


def test_a_file_cut_between_blocks_is_refused():
    data, blocks = shard_of([batch_of(3), batch_of(3), batch_of(3)])
    end_of_stream = struct.pack("<II", 0xFFFFFFFF, 0)

    for block in blocks:
        for tail in (b"", end_of_stream, end_of_stream + b"ARROW1"):
            with pytest.raises(CorruptBlockError, match="name"):
                ArrowFormat().index(bytes(data)[: block.offset] + tail, "name")


DICTIONARY = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(
    "kind",
    [DICTIONARY, pa.list_(DICTIONARY), pa.struct([("x", pa.list_(DICTIONARY, 2))]), pa.map_(pa.int8(), DICTIONARY)],
    ids=str,
)
def test_dictionary_columns_are_refused_by_name_before_anything_is_written(kind):
    with pytest.raises(ValueError, match=r"'colour'.*dictionary"):
        ShardBuilder(pa.schema([("a", pa.int8()), ("colour", kind)]))


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.binary_view(),
        pa.list_view(pa.int8()),
        pa.large_list_view(pa.int8()),
        pa.list_(pa.string_view()),
        pa.struct([("x", pa.binary_view())]),
    ],
    ids=str,
)
def test_view_columns_are_refused_by_name_before_anything_is_written(kind):
    with pytest.raises(ValueError, match=r"'colour'.*view.*cast"):
        ShardBuilder(pa.schema([("a", pa.int8()), ("colour", kind)]))


def test_a_foreign_file_with_dictionaries_is_refused_by_name():
    batch = pa.record_batch({"x": pa.array(["a", "b"]).dictionary_encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)

    with pytest.raises(CorruptBlockError, match=r"name.*dictionary"):
        ArrowFormat().index(memoryview(sink.getvalue()), "name")


def test_an_unknown_codec_is_named():
    with pytest.raises(ValueError, match="brotli"):
        ShardBuilder(SCHEMA, codec="brotli")


def test_formats_are_found_by_name():
    assert format_named("arrow").name == "arrow"
    with pytest.raises(ValueError, match=r"'parquets'.*arrow"):
        format_named("parquets")

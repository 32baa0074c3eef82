"""A schema that is given: what fits it comes back equal, what does not is refused by file and place."""

import datetime as dt
import decimal
import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataplane.errors import InputError
from preprocess import Reading, Recipe, preprocess
from preprocess.type_names import parse_schema
from tests.preprocess.datasets import read_table, write_jsonl

UTC = dt.UTC
NUMBERS = itertools.count()

TYPES = {
    "int64": pa.int64(),
    "float32": pa.float32(),
    "double not null": pa.float64(),
    "utf8": pa.string(),
    "date32": pa.date32(),
    "time64[us]": pa.time64("us"),
    "duration[ms]": pa.duration("ms"),
    "timestamp[ns]": pa.timestamp("ns"),
    "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
    "timestamp[us, tz=+02:00]": pa.timestamp("us", "+02:00"),
    "decimal128(20, 3)": pa.decimal128(20, 3),
    "fixed_size_binary[16]": pa.binary(16),
    "list<float32>": pa.list_(pa.float32()),
    "list<element: int8 not null>": pa.list_(pa.field("item", pa.int8(), False)),
    "fixed_size_list<float32>[4] not null": pa.list_(pa.float32(), 4),
    "large_list<list<int8>>": pa.large_list(pa.list_(pa.int8())),
    "struct<a: int64, b c: list<string> not null, d: struct<>>": pa.struct(
        [("a", pa.int64()), pa.field("b c", pa.list_(pa.string()), False), ("d", pa.struct([]))]
    ),
    "map<string, timestamp[s]>": pa.map_(pa.string(), pa.timestamp("s")),
}


@pytest.mark.parametrize("text", TYPES)
def test_the_names_of_types_are_understood_as_people_and_arrow_write_them(text):
    (field,) = parse_schema([("x", text)])

    assert field.type == TYPES[text]
    assert field.nullable == (
        not text.endswith("> not null") and not text.endswith("] not null") and text[:6] != "double"
    )
    assert parse_schema([("x", str(field.type))]).field("x").type == field.type


@pytest.mark.parametrize(
    "text",
    ["", "int46", "list", "list<", "list<int64", "list<int64>>", "struct<int64>", "timestamp[xs]", "timestamp",
     "map<string>", "int64[us, UTC]", "decimal128(99, 1)", "decimal128(1)", "fixed_size_list<int8>[x]", "null",
     "int64 null",      "timestamp[us,]"],
)  # fmt: skip
def test_a_type_that_is_not_known_is_refused_by_column(text):
    with pytest.raises(ValueError, match=r"schema: column 'x' is of type .*known are bool, int8 to int64"):
        Reading(schema={"x": text})


def read(folder, rows, schema, **recipe):
    source = write_jsonl(folder / "in.jsonl", rows) if isinstance(rows, list) else folder / "in.parquet"
    if isinstance(rows, pa.Table):
        pq.write_table(rows, source, row_group_size=2)
    elif isinstance(rows, str):
        source = folder / "in.csv"
        source.write_text(rows)
    url = f"memory://given/{folder.name}/{next(NUMBERS)}"
    preprocess([str(source)], url, Recipe(reading=Reading(schema=schema), **recipe))
    return read_table(url)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int8", -128, -128),
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("int32", 1.0, 1),
        ("float64", 3, 3.0),
        ("float32", 0.5, 0.5),
        ("float16", 1.5, 1.5),
        ("float32", float("inf"), float("inf")),
        ("string", "1", "1"),
        ("binary", "é", "é".encode()),
        ("bool", True, True),
        ("date32", "0001-12-31", dt.date(1, 12, 31)),
        ("timestamp[us]", "9999-12-31T23:59:59.999999", dt.datetime(9999, 12, 31, 23, 59, 59, 999999)),
        ("timestamp[s]", "1677-01-01 00:00:00", dt.datetime(1677, 1, 1)),
        ("timestamp[us, UTC]", "1969-06-01T02:00:00+02:00", dt.datetime(1969, 6, 1, tzinfo=UTC)),
        ("decimal128(5, 2)", "1.25", decimal.Decimal("1.25")),
        ("list<float32>", [1, 2.5, None], [1.0, 2.5, None]),
        ("fixed_size_list<int16>[2]", [1, 2], [1, 2]),
        ("list<struct<at: date32, n: int8>>", [{"at": "2024-01-01"}], [{"at": dt.date(2024, 1, 1), "n": None}]),
        ("map<string, float32>", {"a": 1.5}, [("a", 1.5)]),
        ("int64", None, None),
    ],
)
def test_values_of_json_become_what_was_asked_for(tmp_path, kind, value, expected):
    table = read(tmp_path, [{"x": value, "other": "left out"}], {"x": kind})

    assert table.schema == parse_schema([("x", kind)])
    assert table.to_pylist() == [{"x": expected}]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int8", 128), ("uint8", -1), ("int64", 1.5), ("int64", "1"), ("int64", True), ("int64", 2**63),
        ("float64", True), ("float64", "1"), ("float64", 2**53 + 1), ("float32", 1e300), ("float16", 1e5),
        ("list<float32>", [1e300]), ("list<float64>", [1.0, True]), ("struct<a: float64>", {"a": True}),
        ("string", 1), ("string", ["a"]), ("bool", 1), ("bool", "true"),
        ("date32", "2024-13-01"), ("date32", 3), ("timestamp[us]", "2024-01-01T00:00:00Z"),
        ("timestamp[us, UTC]", "2024-01-01T00:00:00"), ("timestamp[us]", "2024-01-01T00:00:00.123456789"),
        ("timestamp[ns]", "1677-01-01T00:00:00"), ("decimal128(5, 2)", "1.255"),
        ("fixed_size_list<int16>[2]", [1, 2, 3]), ("list<int8>", 1), ("struct<a: int8>", [1]),
        ("int64 not null", None), ("list<int8 not null>", [None]),
    ],
)  # fmt: skip
def test_a_value_of_json_that_does_not_fit_is_refused_by_line(tmp_path, kind, value):
    with pytest.raises(InputError, match=r"in\.jsonl:3: column 'x' (holds .*, which does not fit|is null)"):
        read(tmp_path, [{"x": None if "not null" not in kind else VALUES[kind]}] * 2 + [{"x": value}], {"x": kind})


VALUES = {"int64 not null": 1, "list<int8 not null>": [1]}


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("string", "007", "007"),
        ("int16", "7", 7),
        ("float32", "nan", "nan"),
        ("date32", "2024-02-29", dt.date(2024, 2, 29)),
        ("timestamp[us, UTC]", "0001-01-02T00:00:00Z", dt.datetime(1, 1, 2, tzinfo=UTC)),
        ("decimal128(9, 3)", "1.125", decimal.Decimal("1.125")),
        ("binary", "x", b"x"),
        ("int64", "", None),
        ("string", "", ""),
    ],
)
def test_fields_of_csv_become_what_was_asked_for(tmp_path, kind, text, expected):
    table = read(tmp_path, f"a,x\n1,{text}\n", {"x": kind, "missing": "int8"})

    assert table.schema.field("x").type == parse_schema([("x", kind)]).field("x").type
    assert str(table.to_pylist()[0]["x"]) == str(expected)
    assert table.column("missing").to_pylist() == [None]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int8", "300"), ("int64", "x"), ("int64", "1.5"), ("float32", "1e300"), ("float64", "1e999"),
        ("bool", "maybe"), ("date32", "yesterday"), ("int64 not null", ""),
    ],
)  # fmt: skip
def test_a_field_of_csv_that_does_not_fit_is_refused_by_line(tmp_path, kind, text):
    first = "1" if "not null" in kind else ""
    with pytest.raises(InputError, match=r"in\.csv:5: column 'x' (holds .*, which does not fit|is null)"):
        read(tmp_path, f'a,x\n"1\n\n",{first}\n2,{text}\n', {"x": kind})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"n": "int8"}, "row 2 .from 0.: column 'n' holds 300, which does not fit int8"),
        ({"f": "float32"}, r"row 1 .from 0.: column 'f' holds 1e\+300"),
        ({"s": "string not null"}, "row 2 .from 0.: column 's' is null"),
        ({"s": "list<int8>"}, "row 0 .from 0.: column 's' holds 'a'"),
    ],
)
def test_columns_of_parquet_are_cast_or_refused_by_row(tmp_path, schema, message):
    table = pa.table({"n": [1, 2, 300, 4], "f": [0.5, 1e300, 2.0, 3.0], "s": ["a", "b", None, "d"]})

    assert read(tmp_path, table, {"s": "large_string", "n": "int16"}).to_pydict() == {
        "s": ["a", "b", None, "d"],
        "n": [1, 2, 300, 4],
    }
    with pytest.raises(InputError, match=rf"in\.parquet: {message}"):
        read(tmp_path, table, schema)


def test_columns_are_chosen_from_the_schema(tmp_path):
    rows = [{"a": 1, "b": 2}]

    assert read(tmp_path, rows, {"a": "int8", "b": "int16"}, columns=("b",)).schema == pa.schema([("b", pa.int16())])
    with pytest.raises(ValueError, match="columns name 'z', which the schema does not have; it has a"):
        read(tmp_path, rows, {"a": "int8"}, columns=("z",))
    assert Reading(schema={"a": "int8"}) == Reading(schema=(("a", "int8"),))
    assert (
        Recipe(reading=Reading(schema={"a": "int8", "b": "int8"})).to_json()
        != Recipe(reading=Reading(schema={"b": "int8", "a": "int8"})).to_json()
    )

import datetime as dt
import math

import pyarrow as pa
import pytest
from hypothesis import given
from pydantic import ValidationError

from dataplane.errors import InputError
from preprocess.operations import Cast, Derive, Drop, Filter, Pipeline, Rename, Select
from tests.preprocess.operations.cuts import CUTS, assert_same_however_cut, run

ROWS = pa.record_batch(
    {
        "id": pa.array(range(40), pa.int64()),
        "text": ["x" * (n % 7) for n in range(40)],
        "score": [None if n % 5 == 0 else n / 8 for n in range(40)],
    },
    schema=pa.schema([pa.field("id", pa.int64(), False), pa.field("text", pa.string(), False), ("score", "float64")]),
)

OPERATIONS = {
    "select": Select(columns=("text", "id")),
    "drop": Drop(columns=("score",)),
    "rename": Rename(columns={"id": "text", "text": "id"}),
    "cast": Cast(columns={"id": "uint8", "score": "float16"}),
    "derive": Derive(columns={"length": "utf8_length(text)", "double": "length * 2", "id": "id + 1"}),
    "filter": Filter(where="score > 1", reason="low score"),
    "pipeline": Pipeline((Filter(where="id % 3 != 0", reason="third"), Filter(where="score > 2", reason="third"))),
}


@pytest.mark.parametrize("name", OPERATIONS)
@given(cuts=CUTS)
def test_rows_do_not_depend_on_how_they_are_cut(name, cuts):
    assert_same_however_cut(OPERATIONS[name], ROWS, cuts)


def test_a_column_that_arrow_cannot_filter_is_refused_before_any_row_is_read():
    schema = pa.schema([("n", pa.int64()), ("view", pa.string_view())])

    with pytest.raises(ValueError, match=r"filter: column 'view' is of type string_view, .* cast it first"):
        Filter(where="n > 1").bind(schema)


def test_columns_are_chosen_renamed_and_dropped():
    assert run(OPERATIONS["select"], ROWS)[0].schema == pa.schema([ROWS.schema.field("text"), ROWS.schema.field("id")])
    assert run(OPERATIONS["rename"], ROWS)[0].schema.names == ["text", "id", "score"]
    assert run(OPERATIONS["drop"], ROWS)[0].schema.names == ["id", "text"]


def test_a_derived_column_is_seen_by_the_next_and_replaces_in_place():
    table, drops = run(OPERATIONS["derive"], ROWS)

    assert table.schema.names == ["id", "text", "score", "length", "double"]
    assert table.column("id").to_pylist() == list(range(1, 41))
    assert table.column("double").to_pylist() == [2 * (n % 7) for n in range(40)]
    assert drops == {}


def test_a_filter_drops_what_is_not_true_and_counts_it():
    table, drops = run(OPERATIONS["filter"], ROWS)

    kept = [n for n in range(40) if n % 5 and n / 8 > 1]
    assert table.column("id").to_pylist() == kept
    assert drops == {"low score": 40 - len(kept)}
    assert run(Filter(where="id < 10"), ROWS)[1] == {"not id < 10": 30}


def test_equal_reasons_add_up_in_a_pipeline():
    table, drops = run(OPERATIONS["pipeline"], ROWS)

    assert drops == {"third": 40 - table.num_rows}


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (Select(columns=("id", "ID")), "select: there is no column 'ID'; the columns are id, text, score"),
        (Drop(columns=("id", "text", "score")), "drop: no column would be left of id, text, score"),
        (Rename(columns={"id": "text"}), "rename: two columns would be named 'text'"),
        (Rename(columns={"a": "b"}), "rename: there is no column 'a'"),
        (Cast(columns={"id": "list<int8>"}), "cast: column 'id': .*cast"),
        (Derive(columns={"n": "utf8_length(id)"}), r"derive: column 'n': 'utf8_length\(id\)'"),
        (Derive(columns={"n": "None"}), "derive: column 'n': 'None' is always null"),
        (Filter(where="id"), "filter: 'id' is of type int64, not a condition"),
        (Filter(where="nothing > 1"), "filter: .*there is no column 'nothing'"),
    ],
)
def test_what_does_not_go_with_the_rows_is_refused_before_any_is_read(operation, message):
    with pytest.raises(ValueError, match=message):
        operation.bind(ROWS.schema)


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([1, 300, 2], "int8", "holds 300 in row 1 of the batch, which is no int8"),
        (["1", "2", "x", "y"], "int64", "holds 'x' in row 2 of the batch, which is no int64: .*'x'"),
        ([1.0, 1.5], "int64", "holds 1.5 in row 1"),
        ([1, 2**53 + 1], "float64", "holds 9007199254740993 in row 1"),
        ([1.0, 1e300], "float32", r"holds 1e\+300 in row 1 .* beyond the range of float"),
        ([dt.datetime(2020, 1, 1, 1, 1, 1, 1)], "timestamp[s]", "holds datetime.* in row 0"),
        ([1, 0, 2], "bool", "holds 2 in row 2 .* it would not come back"),
        ([0.5, 0.25], "decimal128(3, 1)", "holds 0.25 in row 1 .* it would not come back"),
        (["1" * 500], "int64", r"holds '1{75} \.\.\."),
    ],
)
def test_a_cast_that_loses_a_value_names_column_value_and_row(values, kind, message):
    batch = pa.record_batch({"a": values})

    with pytest.raises(InputError, match=f"cast: column 'a' {message}"):
        run(Cast(columns={"a": kind}), batch)


def test_a_cast_keeps_infinities_nan_and_nulls():
    batch = pa.record_batch({"a": [math.inf, -math.inf, math.nan, None, -0.0]})

    table, _ = run(Cast(columns={"a": "float16"}), batch)

    assert str(table.column("a").to_pylist()) == "[inf, -inf, nan, None, -0.0]"


# The years that other tools lose: before Python's and after the 64-bit nanoseconds' range.
TIMES = [dt.datetime(year, 12, 31, 23, 59, 59, 999_999) for year in (1, 1677, 1969, 9999)]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_times_pass_every_operation_on_columns(zone):
    kind = pa.timestamp("us", zone)
    batch = pa.record_batch({"t": pa.array(TIMES, pa.timestamp("us")).cast(kind), "n": range(4)})
    road = Pipeline((Derive(columns={"copy": "t"}), Filter(where="n >= 0"), Rename(columns={"t": "time"})))

    table, _ = run(road, batch)

    assert table.column("time").equals(table.column("copy"))
    assert table.column("time").combine_chunks().equals(batch.column("t"))


def test_a_time_that_nanoseconds_cannot_hold_is_refused_by_column_and_row():
    batch = pa.record_batch({"t": pa.array([dt.datetime(2000, 1, 1), TIMES[3]], pa.timestamp("us"))})

    with pytest.raises(InputError, match=r"cast: column 't' holds datetime.datetime\(9999.* in row 1 of the batch"):
        run(Cast(columns={"t": "timestamp[ns]"}), batch)


@pytest.mark.parametrize(("before", "after"), [(None, "UTC"), ("Europe/Berlin", None)])
def test_a_zone_is_neither_dropped_nor_assumed(before, after):
    schema = pa.schema([("t", pa.timestamp("us", before))])

    with pytest.raises(ValueError, match=r"cast: column 't' is of type .* zone; derive it by assume_timezone"):
        Cast(columns={"t": str(pa.timestamp("us", after))}).bind(schema)


def test_what_fits_passes_a_cast():
    batch = pa.record_batch({"b": [1, 0, None], "d": [0.5, 0.1, None]})

    table, _ = run(Cast(columns={"b": "bool", "d": "decimal128(3, 1)"}), batch)

    assert table.column("b").to_pylist() == [True, False, None]
    assert [str(value) for value in table.column("d").to_pylist()] == ["0.5", "0.1", "None"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Select(columns=()), "at least 1"),
        (lambda: Select(columns=("a", "a")), "names a column twice"),
        (lambda: Cast(columns={"a": "itn8"}), "did you mean 'int8'"),
        (lambda: Filter(where="a >"), "is not an expression"),
        (lambda: Derive(columns={"a": "b("}), "is not an expression"),
    ],
)
def test_settings_are_checked_where_they_are_made(make, message):
    with pytest.raises(ValidationError, match=message):
        make()

import pickle

import pyarrow as pa
import pytest
from hypothesis import given

from preprocess.operations import FilterFunction, MapFunction
from tests.preprocess.operations.cuts import CUTS, assert_same_however_cut, run

HERE = "tests.preprocess.operations.user_functions"
ROWS = pa.record_batch({"text": ["", "a", "bb bb", "ccc", "   ", "dddd", "eee e e"]})


def map_by(name, **settings):
    return MapFunction(function=f"{HERE}:{name}", **settings)


def filter_by(name, **settings):
    return FilterFunction(function=f"{HERE}:{name}", **settings)


OPERATIONS = [
    map_by("with_length"),
    map_by("words"),
    map_by("with_length", schema={"text": "large_string", "length": "int64"}),
    filter_by("is_long"),
    filter_by("is_long_numpy"),
    filter_by("reasons"),
    filter_by("no_reasons"),
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
@given(cuts=CUTS)
def test_rows_do_not_depend_on_how_they_are_cut(operation, cuts):
    assert_same_however_cut(pickle.loads(pickle.dumps(operation)), ROWS, cuts)


def test_a_map_gives_other_columns_and_counts_what_it_drops():
    table, drops = run(map_by("words"), ROWS)

    assert table.column("word").to_pylist() == ["a", "bb", "bb", "ccc", "dddd", "eee", "e", "e"]
    assert set(drops) == {"no words"}


def test_the_schema_decides_the_types():
    table, _ = run(OPERATIONS[2], ROWS)

    assert table.schema.types == [pa.large_string(), pa.int64()]


def test_dropped_rows_are_counted_by_reason():
    assert run(filter_by("is_long"), ROWS)[1] == {f"{HERE}:is_long": 2}
    assert run(filter_by("is_long", reason="short", arguments={"least": 4}), ROWS)[1] == {"short": 4}
    table, drops = run(filter_by("reasons"), ROWS)
    assert (table.column("text").to_pylist(), drops) == (["a", "ccc", "   ", "dddd"], {"empty": 1, "too long": 2})


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (map_by("absent"), f"map {HERE}:absent: module .* has no 'absent'"),
        (MapFunction(function="no.such:thing"), "there is no module 'no.such'"),
        (map_by("CONSTANT"), "is a int, not a function"),
        (map_by("half"), "made 3 rows of 7; if that is meant, give a pair"),
        (map_by("none"), "must give a pyarrow.RecordBatch, gave NoneType"),
        (map_by("failing"), "raised KeyError on a batch of 0 rows: 'lost'"),
        (map_by("changing"), "column 'a' is of type string, before int64"),
        (map_by("with_length", arguments={"column": "text", "more": 1}), "unexpected keyword argument 'more'"),
        (map_by("with_length", schema={"length": "int8"}), "gave columns text, length, before length"),
        (filter_by("unsure"), "gave null, which is neither true nor false"),
        (filter_by("numbers"), "must give booleans, or reasons and nulls, gave int64"),
        (filter_by("none"), "must give an array, gave NoneType"),
    ],
    ids=str,
)
def test_a_function_that_does_not_keep_its_side_is_refused_by_name(operation, message):
    with pytest.raises(ValueError, match=message):
        run(operation, ROWS)


def test_a_recipe_knows_when_the_file_of_a_function_changes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "my_functions.py"
    path.write_text("def f(batch): return batch\n")
    before = MapFunction(function="my_functions:f").depends_on()

    path.write_text("def f(batch): return batch.slice(0)\n")

    assert set(before) == {"module my_functions"}
    assert MapFunction(function="my_functions:f").depends_on() != before

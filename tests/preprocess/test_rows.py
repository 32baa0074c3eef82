"""Rows mode: what goes in comes out, under one schema, or is refused by name."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataplane.catalog import open_dataset
from dataplane.errors import DatasetNotFoundError, InputError
from preprocess import Reading, Recipe, preprocess
from tests.preprocess.datasets import read_rows, read_table, write_jsonl

NESTED = [
    {"x": [{"n": [1, 2], "s": "a"}, {"n": []}, None, {"n": None, "s": None}]},
    {"x": None},
    {"x": []},
]


def run(tmp_path, *inputs, **recipe):
    """Each input is a list of rows or a table; returns the dataset's URL."""
    sources = []
    for number, rows in enumerate(inputs):
        path = tmp_path / f"{number}.{'parquet' if isinstance(rows, pa.Table) else 'jsonl'}"
        sources.append(str(path))
        if isinstance(rows, pa.Table):
            pq.write_table(rows, path)
        else:
            write_jsonl(path, rows)
    preprocess(sources, str(tmp_path / "out"), Recipe(**recipe))
    return str(tmp_path / "out")


def filled(row, names):
    return {name: row.get(name) for name in names}


def test_nulls_first_and_strings_later(tmp_path):
    first, second = [{"s": None, "n": 1}] * 10_000, [{"s": "2024-01-01T00:00:00Z", "n": 2}, {"n": 3}]

    rows = read_rows(run(tmp_path, first, second))

    assert rows == [*first, *(filled(row, ["s", "n"]) for row in second)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_empty_lists_then_lists_of_objects_in_both_orders(tmp_path, order):
    files = [[{"x": []}] * 3, NESTED]

    rows = read_rows(run(tmp_path, *(files[number] for number in order)))

    expected = [row for number in order for row in files[number]]
    objects = [[filled(o, ["n", "s"]) if o else None for o in row["x"]] if row["x"] else row["x"] for row in expected]
    assert [row["x"] for row in rows] == objects


def test_a_field_that_a_file_lacks_is_null_there(tmp_path):
    files = [[{"a": 1, "b": "x"}], [{"b": "y", "c": [1.5]}], pa.table({"c": [[2.5]], "d": [True]})]

    url = run(tmp_path, *files)

    rows = [*files[0], *files[1], *files[2].to_pylist()]
    assert read_rows(url) == [filled(row, "abcd") for row in rows]


def test_a_field_is_nullable_only_if_it_has_nulls(tmp_path):
    rows = [{"a": 1, "o": {"k": 1, "m": 2}, "l": [1]}, {"a": 2, "o": {"k": 1}, "l": [], "b": 1}]

    schema = read_table(run(tmp_path, rows)).schema

    assert [field.nullable for field in schema] == [False, False, False, True]
    assert [field.nullable for field in schema.field("o").type.fields] == [False, True]
    assert not schema.field("l").type.value_field.nullable


def test_integers_and_floats_become_doubles_while_exact(tmp_path):
    rows = read_rows(run(tmp_path, [{"x": 1}, {"x": 2**53}, {"x": 0.5}, {"x": math.inf}]))

    assert [row["x"] for row in rows] == [1.0, 2.0**53, 0.5, math.inf]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"x": 1}, {"x": "1"}], r"1\.jsonl:1: column 'x' is of type string, and of type integer at .*0\.jsonl:1"),
        ([{"x": True}, {"x": 1}], r"1\.jsonl:1: column 'x' is of type integer, and of type boolean"),
        ([{"x": [1]}, {"x": {"a": 1}}], "column 'x' is of type object, and of type list"),
        ([{"x": {"y": [[1]]}}, {"x": {"y": [["a"]]}}], r"column 'x\.y\[\]\[\]' is of type string"),
        ([{"x": 2**53 + 1}, {"x": 0.5}], r"has floats \(first at .*1\.jsonl:1\) and an integer that no float"),
        ([{"x": 0.5}, {"x": -(2**60)}], "an integer that no float holds exactly"),
        ([{"x": 2**63}], r"0\.jsonl:1: column 'x' holds 9223372036854775808, outside of int64"),
        ([{"x": "\ud800"}], r"0\.jsonl:1: holds '\\ud800', half of a surrogate pair"),
        ([{"\ud800": 1}], "half of a surrogate pair"),
        ([{}], "no columns"),
        (
            [pa.table({"x": [1]}), pa.table({"x": ["a"]})],
            r"1\.parquet: column 'x' is of type string, and of type int64",
        ),
        ([pa.table({"x": [1]}), pa.table({"x": [1.5]})], r"1\.parquet: column 'x'"),
        ([[{"x": 1}], pa.table({"x": ["a"]})], r"1\.parquet: column 'x'"),
        ([pa.Table.from_arrays([pa.array([1])] * 2, ["x", "x"])], "more than one column named x"),
    ],
)
def test_what_one_type_cannot_hold_is_refused_by_name(tmp_path, rows, message):
    inputs = [row if isinstance(row, pa.Table | list) else [row] for row in rows]
    with pytest.raises(InputError, match=message):
        run(tmp_path, *inputs)
    with pytest.raises(DatasetNotFoundError):
        open_dataset(str(tmp_path / "out"))


def test_columns_are_chosen_and_ordered_and_others_are_not_looked_at(tmp_path):
    rows = [{"a": 1, "b": "x", "c": 1}, {"c": "mixed", "b": "y", "a": 2}]

    assert read_table(run(tmp_path, rows, columns=("b", "a"))).to_pydict() == {"b": ["x", "y"], "a": [1, 2]}
    with pytest.raises(InputError, match="no input has a column 'z'; the columns are a, b, c"):
        preprocess([str(tmp_path / "0.jsonl")], str(tmp_path / "other"), Recipe(columns=("z",)))


def test_parquet_keeps_its_types(tmp_path):
    table = pa.table(
        {
            "time": pa.array([1, None], pa.timestamp("us", "Europe/Berlin")),
            "u": pa.array([1, 2], pa.uint16()),
            "f": pa.array(np.array([1, 2], np.float16)),
            "text": pa.array(["a", "a"]).dictionary_encode(),
            "list": pa.array([["a"], []], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
            "decimal": pa.array([1, 2], pa.decimal128(20, 3)),
            "vector": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)),
            "a.b": pa.array([1, 2]),
            "a": pa.array([{"b": 1}, {"b": 2}]),
        }
    )

    found = read_table(run(tmp_path, table))

    assert found.to_pylist() == table.to_pylist()
    values = {"text": pa.string(), "list": pa.list_(pa.string())}
    assert all(found.schema.field(f.name).type == values.get(f.name, f.type) for f in table.schema)
    assert [field.name for field in found.schema if field.nullable] == ["time"]


def test_parquet_files_of_compatible_schemas_are_unified(tmp_path):
    one = pa.table({"n": pa.array([1], pa.int16()), "x": pa.nulls(1), "s": pa.array([{"a": 1}])})
    other = pa.table({"x": ["a"], "n": pa.array([2**40]), "s": pa.array([{"b": 1.5}])})

    rows = read_rows(run(tmp_path, one, other))

    assert rows == [
        {"n": 1, "x": None, "s": {"a": 1, "b": None}},
        {"n": 2**40, "x": "a", "s": {"a": None, "b": 1.5}},
    ]


@pytest.mark.parametrize("block_bytes", [1, 1000, 50_000, 1 << 30])
def test_blocks_are_as_large_as_asked_for_whatever_the_row_groups(tmp_path, block_bytes):
    table = pa.table({"id": range(1000), "text": ["x" * (number % 97) for number in range(1000)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=150)

    preprocess([str(tmp_path / "in.parquet")], str(tmp_path / "out"), Recipe(block_bytes=block_bytes))

    index = open_dataset(str(tmp_path / "out")).index
    full, rows = index.raw_bytes[:-1], index.num_rows
    assert (index.raw_bytes <= block_bytes).all() or (rows[index.raw_bytes > block_bytes] == 1).all()
    assert (full > block_bytes - 300).all()
    assert read_table(tmp_path / "out").column("id").to_pylist() == list(range(1000))


@pytest.mark.parametrize("character", "\u2028\u2029\x85\v\f\x1c")
def test_only_a_newline_ends_a_line(tmp_path, character):
    texts = [f"a{character}b", character, f"{character}{character}z"]
    rows = [{"text": text} for text in texts]
    (tmp_path / "plain.txt").write_bytes("\n".join(f"<{text}>" for text in texts).encode())

    assert read_rows(run(tmp_path, rows)) == rows
    recipe = Recipe(reading=Reading(records="line"))
    preprocess([str(tmp_path / "plain.txt")], str(tmp_path / "lines"), recipe)
    assert read_rows(tmp_path / "lines") == [{"text": f"<{text}>"} for text in texts]


def test_blank_lines_and_a_byte_order_mark_cost_nothing(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b'\xef\xbb\xbf\n  \n{"a":1}\r\n\t\n\n{"a":2}\n\n\n')

    preprocess([str(tmp_path / "in.jsonl")], str(tmp_path / "out"))

    assert read_rows(tmp_path / "out") == [{"a": 1}, {"a": 2}]


def test_plain_text_is_a_record_per_file_or_per_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    (tmp_path / "b.txt").write_bytes(b"three\n \nfour")
    sources = [str(tmp_path / name) for name in ("a.txt", "b.txt")]

    preprocess(sources, str(tmp_path / "files"))
    report = preprocess(sources, str(tmp_path / "lines"), Recipe(reading=Reading(records="line", text_column="line")))

    assert read_rows(tmp_path / "files") == [{"text": "one\r\ntwo\n"}, {"text": "three\n \nfour"}]
    assert [row["line"] for row in read_rows(tmp_path / "lines")] == ["one", "two", "three", "four"]
    assert report.dropped == {"blank lines": 1}


def test_appended_rows_take_the_schema_of_the_dataset_or_are_refused(tmp_path):
    url = run(tmp_path, [{"a": 1, "b": ["x"]}, {"a": None, "b": []}])
    fitting = write_jsonl(tmp_path / "fitting.jsonl", [{"a": 2, "b": []}])
    other = write_jsonl(tmp_path / "other.jsonl", [{"a": "text", "b": []}])

    report = preprocess([fitting], url, append=True)

    assert (report.version, report.rows) == (2, 1)
    assert [row["a"] for row in read_rows(url)] == [1, None, 2]
    with pytest.raises(ValueError, match="rows to append have columns"):
        preprocess([other], url, append=True)

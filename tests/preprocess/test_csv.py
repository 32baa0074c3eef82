"""CSV and TSV: what Python's csv module reads, with types that lose nothing over all rows of all files."""

import csv
import io
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.errors import InputError
from dataplane.metrics import Metrics
from preprocess import Reading, Recipe, preprocess
from preprocess.schema import Survey
from preprocess.sources import delimited, find_inputs, reader_for
from preprocess.text_column import TextColumn
from tests.preprocess.datasets import read_rows, read_table, write_jsonl


def read(folder, *contents, name="{}.csv", columns=None, **reading):
    """The rows of files with these contents."""
    for number, content in enumerate(contents):
        content = content if isinstance(content, bytes) else content.encode()
        (folder / name.format(number)).write_bytes(content)
    preprocess([str(folder)], f"memory://csv/{folder.name}", Recipe(reading=Reading(**reading), columns=columns))
    return read_table(f"memory://csv/{folder.name}")


@pytest.mark.parametrize(
    ("fields", "kind", "values"),
    [
        (["1", "-20", ""], pa.int64(), [1, -20, None]),
        (["1", "2.5"], pa.float64(), [1.0, 2.5]),
        (["1e5", ".5", "-0", "nan", "-Infinity"], pa.float64(), [1e5, 0.5, -0.0, math.nan, -math.inf]),
        (["true", "False", ""], pa.bool_(), [True, False, None]),
        (["007"], pa.string(), ["007"]),
        (["1", "+1"], pa.string(), ["1", "+1"]),
        (["9223372036854775807"], pa.int64(), [2**63 - 1]),
        (["9223372036854775808"], pa.string(), [str(2**63)]),
        (["9007199254740993", "0.5"], pa.string(), ["9007199254740993", "0.5"]),
        (["3.14159265358979323846"], pa.string(), ["3.14159265358979323846"]),
        (["0.30000000000000004"], pa.float64(), [0.30000000000000004]),
        (["1e999"], pa.string(), ["1e999"]),
        (["1e-999"], pa.string(), ["1e-999"]),
        (["nan", "inf"], pa.string(), ["nan", "inf"]),
        (["2024-01-01"], pa.string(), ["2024-01-01"]),
        (["true", "1"], pa.string(), ["true", "1"]),
        (["x", ""], pa.string(), ["x", ""]),
        ([" 1"], pa.string(), [" 1"]),
        (["NULL", "NA"], pa.string(), ["NULL", "NA"]),
        (["1"] * 50_000 + ["x"], pa.string(), ["1"] * 50_000 + ["x"]),
    ],
)
@pytest.mark.parametrize("split", [False, True], ids=["one file", "file by file"])
def test_a_column_is_what_all_of_its_fields_are(tmp_path, fields, kind, values, split):
    parts = [fields[:1], fields[1:]] if split and len(fields) > 1 else [fields]

    table = read(tmp_path, *("id,x\n" + "".join(f"a,{field}\n" for field in part) for part in parts))

    assert table.schema.field("x").type == kind
    assert table.schema.field("x").nullable == (None in values)
    assert repr(table.column("x").to_pylist()) == repr(values)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)


@given(st.lists(st.tuples(texts, texts, texts), max_size=8), st.sampled_from(",\t"), st.booleans())
def test_fields_come_back_as_the_csv_module_reads_them(rows, delimiter, final_newline):
    target = io.StringIO()
    csv.writer(target, delimiter=delimiter, lineterminator="\n").writerows([("a", "b", "c"), *rows])
    data = target.getvalue() if final_newline else target.getvalue().removesuffix("\n")
    path = f"/fields/in.{'csv' if delimiter == ',' else 'tsv'}"
    import fsspec

    fsspec.filesystem("memory").pipe_file(path, data.encode())
    (file,) = find_inputs([f"memory:/{path}"]).files
    reader = reader_for(file.form, Reading(), Metrics())
    (piece,) = reader.cut(file, 1)

    found = [batch.to_pylist() for batch in reader.batches(piece, pa.schema([(name, pa.string()) for name in "abc"]))]

    assert [tuple(row.values()) for batch in found for row in batch] == rows


def test_quoted_newlines_crlf_and_a_byte_order_mark(tmp_path):
    table = read(tmp_path, b'\xef\xbb\xbfa,"b\n2"\r\n1,"x\r\ny, ""z"""\r\n\r\n2,\r\n')

    assert table.to_pydict() == {"a": [1, 2], "b\n2": ['x\r\ny, "z"', ""]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n\n3\n4,5\n", r"0\.csv:4: has 1 fields, and there are 2 columns"),
        ('a,b\n"x\ny",2\n1,2,3\n', r"0\.csv:4: has 3 fields"),
        ('a,b\n1,2\n3,"x\n4,5\n', r"0\.csv: ends inside quotes, in the row that begins at line 3"),
        (b"a,b\n1,2\n3,\xff\n", r"0\.csv:3: not UTF-8"),
        (b"a,\xff\n1,2\n", r"0\.csv:1: not UTF-8"),
        ("a,a\n1,2\n", r"0\.csv:1: has more than one column named 'a'"),
        ("\n\n", r"0\.csv: has no header"),
        ("a,b\n", "nothing to write"),
        ("a,b", "nothing to write"),
    ],
)
def test_what_is_not_a_table_is_refused_by_file_and_line(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, content)


def test_a_header_can_be_given(tmp_path):
    assert read(tmp_path, "1,x\n2,y\n", column_names=("n", "s")).to_pydict() == {"n": [1, 2], "s": ["x", "y"]}


@pytest.mark.parametrize("block_bytes", [16, 100, 1 << 20])
def test_rows_longer_than_a_block_are_read_whole(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(delimited, "_BLOCK_BYTES", block_bytes)
    rows = [(str(number), "x\n" * (number % 40)) for number in range(300)]
    target = io.StringIO()
    csv.writer(target).writerows([("n", "text"), *rows])

    table = read(tmp_path, target.getvalue())

    assert table.column("n").to_pylist() == list(range(300))
    assert table.column("text").to_pylist() == [text for _, text in rows]


def test_files_of_other_columns_and_other_forms_come_together(tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [{"b": "j", "d": 1}])

    rows = read(tmp_path, "a,b\n1,x\n", "b,c\ny,\nz,2.5\n").to_pylist()

    assert sorted(rows, key=str) == sorted(
        [
            {"b": "j", "d": 1, "a": None, "c": None},
            {"b": "x", "d": None, "a": 1, "c": None},
            {"b": "y", "d": None, "a": None, "c": None},
            {"b": "z", "d": None, "a": None, "c": 2.5},
        ],
        key=str,
    )


def test_columns_are_chosen_and_texts_are_read(tmp_path):
    assert read(tmp_path, "a,b,c\n1,x,2\n", columns=("c", "a")).to_pydict() == {"c": [2], "a": [1]}
    (file,) = find_inputs([str(tmp_path)]).files
    reader = reader_for(file.form, Reading(text_column="b"), Metrics())
    assert list(reader.texts(reader.cut(file, 1)[0])) == [["x"]]
    missing = reader_for(file.form, Reading(text_column="z"), Metrics())
    with pytest.raises(InputError, match=r"0\.csv: has no column 'z'; its columns are a, b, c"):
        list(missing.texts(reader.cut(file, 1)[0]))


def test_appended_numbers_can_be_the_strings_of_the_dataset(tmp_path):
    url = str(tmp_path / "out")
    for number, content in enumerate(["a,b\nx,1\n", "a,b\n1,2\n"]):
        source = tmp_path / f"{number}.csv"
        source.write_text(content)
        preprocess([str(source)], url, append=number > 0)

    assert read_rows(url) == [{"a": "x", "b": 1}, {"a": "1", "b": 2}]


fields = st.sampled_from(["", "1", "-0", "2.5", "x", "true", "nan", "9" * 17, "9" * 25, "007"])


@given(st.lists(st.lists(fields), max_size=3))
def test_text_columns_and_surveys_of_them_merge(parts):
    whole, merged = TextColumn(), Survey()
    for part in parts:
        whole.add(pa.array(part, pa.string()))
        column = TextColumn()
        column.add(pa.array(part, pa.string()))
        alone = Survey()
        alone.add_texts({"x": column}, len(part), pa.schema([]), ["x"])
        merged.merge(Survey.from_json(alone.to_json()))

    total = sum(map(len, parts))
    expected = pa.schema([whole.arrow_field("x", total)] if parts else [])
    assert merged.schema() == expected

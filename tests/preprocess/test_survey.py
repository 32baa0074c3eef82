"""Surveys of pieces, merged in order, say and refuse what one survey of everything does."""

import json
import pickle
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.errors import InputError
from dataplane.metrics import Metrics
from preprocess.schema import Survey
from preprocess.sources import Form, Reading, find_inputs, reader_for

NAMES = st.sampled_from(["a", "b", "c.d", "é"])
scalars = st.sampled_from([None, True, 1, 2**53 + 1, 2**63, 10**40, 1.5, "x", ""])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
# Mostly rows of one schema, so that refusals come late or never.
plain_rows = st.fixed_dictionaries(
    {}, optional={"a": st.integers(0, 9), "b": st.none(), "c.d": st.lists(st.none() | st.integers(0, 1))}
)
rows = st.lists(plain_rows | st.dictionaries(NAMES, values, max_size=3), max_size=12)


def outcome(survey):
    try:
        return survey.schema()
    except InputError as refusal:
        return str(refusal)


def written(folder, files):
    for number, rows in enumerate(files):
        lines = [b"" if number % 3 == 2 else b" \n", *(json.dumps(row).encode() for row in rows)]
        (Path(folder) / f"{number}.jsonl").write_bytes(b"\n".join(lines))
    return find_inputs([str(folder)]).files


@given(st.lists(rows, min_size=1, max_size=3), st.integers(1, 80), st.booleans(), st.booleans())
def test_merging_the_surveys_of_pieces_is_surveying_everything(files, piece_bytes, known, chosen):
    arguments = (("b", "a") if chosen else None, pa.schema([("b", pa.list_(pa.int64()))]) if known else None)
    reader = reader_for(Form.JSONL, Reading(), Metrics())
    with tempfile.TemporaryDirectory() as folder:
        inputs = written(folder, files)
        together, merged = Survey(*arguments), Survey(*arguments)
        for file in inputs:
            reader.survey(reader.cut(file, file.num_bytes)[0], together)
            for piece in reader.cut(file, piece_bytes):
                alone = Survey(*arguments)
                reader.survey(piece, alone)
                sent = Survey.from_json(alone.to_json())
                assert sent.to_json() == alone.to_json()
                merged.merge(sent)

    assert outcome(merged) == outcome(together)
    if not together.is_refused:
        assert merged.to_json() == together.to_json()


@given(st.lists(rows, min_size=3, max_size=3))
def test_merging_is_associative(files):
    surveys = []
    for number, found in enumerate(files):
        surveys.append(Survey())
        for line, row in enumerate(found, 1):
            surveys[-1].add_row(row, f"{number // 2}.jsonl", line)
        surveys[-1].add_lines(f"{number // 2}.jsonl", len(found))
    left, right = Survey(), pickle.loads(pickle.dumps(surveys[1]))
    left.merge(surveys[0])
    left.merge(surveys[1])
    left.merge(surveys[2])
    right.merge(surveys[2])
    other = Survey()
    other.merge(surveys[0])
    other.merge(right)

    assert outcome(left) == outcome(other)


def test_tables_are_merged_in_order_and_each_kind_is_kept_once():
    one, other = pa.schema([("x", pa.int32())]), pa.schema([("x", pa.int64()), ("y", pa.null())])
    surveys = [Survey() for _ in range(3)]
    for number, survey in enumerate(surveys):
        for _ in range(100):
            survey.add_schema(other if number == 1 else one, f"{number}.parquet")
    for survey in surveys[1:]:
        surveys[0].merge(survey)

    assert surveys[0].schema() == pa.schema([("x", pa.int64()), ("y", pa.null())])
    assert len(surveys[0].to_json()) < 1500
    surveys[0].add_schema(pa.schema([("x", pa.string())]), "bad.parquet")
    with pytest.raises(InputError, match=r"bad\.parquet: column 'x' is of type string, and of type int64"):
        surveys[0].schema()


def test_the_first_refusal_in_the_order_of_the_inputs_counts():
    rows = [{"a": 1}, {"b": 1}, {"b": "x"}, {"a": "y"}]
    one, other = Survey(), Survey()
    one.add_row(rows[0], "f", 1)
    one.add_lines("f", 1)
    for line, row in enumerate([{"a": "y"}, *rows[1:3]], 1):
        other.add_row(row, "f", line)
    other.add_lines("f", 3)

    assert other.is_refused
    one.merge(other)

    assert outcome(one).startswith("f:2: column 'a' is of type string, and of type integer at f:1")

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.operations import Deduplicate, DeduplicateNear, deduplicate
from tests.preprocess.datasets import plain_lines
from tests.preprocess.operations.cuts import CUTS, pieces


def kept(operation, batch, cuts=()):
    """The mask of rows kept, with the rows in as many parts as there are cuts."""
    keys = operation.bind(batch.schema)
    tables = [pa.Table.from_batches([keys(piece)], keys.schema) for piece in pieces(batch, cuts)]
    masks = list(operation.keep([lambda table=table: table for table in tables]))
    assert [len(mask) for mask in masks] == [table.num_rows for table in tables]
    return np.concatenate(masks).tolist()


def texts(*values):
    return pa.record_batch({"text": pa.array(values, pa.string()), "n": range(len(values))})


@given(st.lists(st.sampled_from(["a", "b", "", None, "ab"]), max_size=50), CUTS, st.integers(1, 60))
def test_the_first_of_equal_rows_stays_however_they_are_cut_and_held(values, cuts, held):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplicate, "_MAX_DIGESTS", held)
        mask = kept(Deduplicate(columns=("text",)), texts(*values), cuts)

    assert mask == [value not in values[:place] for place, value in enumerate(values)]


def test_whole_rows_are_compared_by_default():
    batch = pa.record_batch({"a": [1, 1, 1, 1], "b": [["x"], ["x"], ["y"], None]})

    assert kept(Deduplicate(), batch) == [True, False, True, True]
    assert kept(Deduplicate(columns=("a",)), batch) == [True, False, False, False]


def test_the_repeats_of_real_texts_are_found_exactly(data):
    rows = [json.loads(line) for line in plain_lines(data / "text" / "tldr_short_docs.jsonl.zst")]
    batch = texts(*(row["text"] for row in rows))

    mask = kept(Deduplicate(columns=("text",)), batch, [5_000, 9_999])

    seen = set()
    assert mask == [not (row["text"] in seen or seen.add(row["text"])) for row in rows]
    assert mask.count(False) == 30


def edited(text, every):
    """With every so many words another one."""
    words = text.split()
    return " ".join(f"{word}x" if place % every == every - 1 else word for place, word in enumerate(words))


@pytest.mark.parametrize("unit", ["word", "character"])
def test_small_edits_of_real_texts_are_near_duplicates_and_other_texts_are_not(data, unit):
    originals = [json.loads(line)["text"] for line in plain_lines(data / "text" / "peps.jsonl.gz")[:60]]
    words = {text: text.split()[:800] for text in originals}
    originals = [" ".join(words[text]) for text in originals if len(words[text]) == 800][:30]
    edits = [edited(text, every=100) for text in originals]
    operation = DeduplicateNear(unit=unit, shingle=5 if unit == "word" else 12, threshold=0.7)

    mask = kept(operation, texts(*originals, *edits))

    assert mask == [True] * len(originals) + [False] * len(edits)


@given(CUTS)
def test_near_duplicates_do_not_depend_on_parts(cuts):
    base = " ".join(f"word{number}" for number in range(200))
    values = [base, None, edited(base, 100), "", "other words here", None, "", edited(base, 3), base]

    mask = kept(DeduplicateNear(), texts(*values), cuts)

    assert mask == [True, True, False, True, True, True, False, True, False]


def test_the_settings_decide_the_keys():
    batch = texts("a b c d e f g")
    keys = [DeduplicateNear(seed=seed).bind(batch.schema)(batch) for seed in (1, 1, 2)]

    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (Deduplicate(columns=("id",)), "deduplicate: there is no column 'id'; the columns are text, n"),
        (DeduplicateNear(column="n"), "deduplicate_near: column 'n' is of type int64, not string"),
    ],
)
def test_what_is_not_there_is_refused(operation, message):
    with pytest.raises(ValueError, match=message):
        operation.bind(texts("a").schema)

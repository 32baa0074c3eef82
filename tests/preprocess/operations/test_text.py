import json
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.operations import Normalize
from tests.preprocess.datasets import plain_lines
from tests.preprocess.operations.cuts import CUTS, assert_same_however_cut, run

TEXTS = st.lists(
    st.one_of(
        st.none(), st.text(alphabet=st.sampled_from("aé e\u0301\u00a0\u2003\t\n\r\x00\x85ﬁ①\u0308 가")), st.text()
    )
)
SETTINGS = [
    Normalize(),
    Normalize(unicode="NFKC", whitespace="collapse"),
    Normalize(unicode="NFD", control="keep", newlines=False),
    Normalize(unicode=None, whitespace="collapse"),
]


def normalized(operation, texts, kind=None):
    batch = pa.record_batch({"text": pa.array(texts, kind or pa.string()), "other": pa.array(texts, pa.string())})
    table, drops = run(operation, batch)
    assert not drops
    assert table.column("other").to_pylist() == texts
    return table.column("text").to_pylist()


@pytest.mark.parametrize("operation", SETTINGS, ids=lambda operation: f"{operation.unicode}")
@given(texts=TEXTS, cuts=CUTS)
def test_twice_is_once_and_cuts_do_not_show(operation, texts, cuts):
    once = normalized(operation, texts)

    assert normalized(operation, once, pa.large_string()) == once
    assert_same_however_cut(operation, pa.record_batch({"text": pa.array(texts, pa.string())}), cuts)


@pytest.mark.parametrize(
    ("settings", "text", "expected"),
    [
        ({}, "a\r\nb\rc\x00\x1b\x7f\x9fd\te", "a\nb\ncd\te"),
        ({}, "e\u0301\x00", "é"),
        ({}, "e\x00\u0301", "é"),
        ({"unicode": "NFKC"}, "ﬁ①", "fi1"),
        ({"control": "keep", "newlines": False}, "a\r\n\x00", "a\r\n\x00"),
        ({"whitespace": "collapse"}, "  a \u00a0\t b \n\n\n\n c\t\n", "a b\n\nc"),
        ({"fix": True}, "schÃ¶n", "schön"),
    ],
)
def test_what_each_setting_does(settings, text, expected):
    assert normalized(Normalize(**settings), [text, None, ""]) == [expected, None, ""]


def test_real_texts_are_normalized_as_python_does_it(data):
    lines = plain_lines(data / "text" / "multilingual.jsonl.zst")[::10]
    texts = [json.loads(line)["text"] for line in lines]

    for form in ("NFC", "NFKC", "NFD", "NFKD"):
        found = normalized(Normalize(unicode=form, newlines=False, control="keep"), texts)
        assert found == [unicodedata.normalize(form, text) for text in texts]


def test_only_texts_are_normalized():
    with pytest.raises(ValueError, match="normalize: column 'n' is of type int64, not string"):
        Normalize(columns=("n",)).bind(pa.schema([("n", pa.int64())]))

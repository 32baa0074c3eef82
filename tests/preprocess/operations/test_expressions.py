import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.errors import InputError
from preprocess.operations.expressions import Expression, row_wise_functions

ROWS = pa.record_batch(
    {
        "text": ["Hello", "", None, "日本"],
        "n": pa.array([7, -7, 0, None], pa.int64()),
        "small": pa.array([1, 2, 3, 4], pa.int8()),
        "x": [0.5, -1.5, None, math.nan],
        "meta": [{"lang": "en"}, {"lang": "de"}, None, {"lang": None}],
        "list": [[1, 2], [3], [4, 5], [6]],
        "odd name": [1, 2, 3, 4],
    }
)


def value(text, batch=ROWS):
    return Expression(text).bind(batch.schema)(batch).to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("utf8_length(text)", [5, 0, None, 2]),
        ("n + 1", [8, -6, 1, None]),
        ("n // 2", [3, -4, 0, None]),
        ("n % 2", [1, 1, 0, None]),
        ("n / 2", [3.5, -3.5, 0.0, None]),
        ("-n", [-7, 7, 0, None]),
        ("small ** 2", [1, 4, 9, 16]),
        ("0 <= n < 8", [True, False, True, None]),
        ("n > 0 or text == 'Hello' or small > 3", [True, False, None, True]),
        ("not (n > 0 and small > 0)", [False, True, True, None]),
        ("text in ['', 'Hello']", [True, True, False, False]),
        ("small not in [1, 4]", [False, True, True, False]),
        ("text is None", [False, False, True, False]),
        ("text is not None and n is None", [False, False, False, True]),
        ("'long' if utf8_length(text) > 2 else 'short'", ["long", "short", None, "short"]),
        ("meta.lang", ["en", "de", None, None]),
        ("meta['lang']", ["en", "de", None, None]),
        ("list[0]", [1, 3, 4, 6]),
        ("col('odd name') + small", [2, 4, 6, 8]),
        ("text + '!' + text", ["Hello!Hello", "!", None, "日本!日本"]),
        ("cast(n, 'string')", ["7", "-7", "0", None]),
        ("utf8_slice_codeunits(text, 0, 1)", ["H", "", None, "日"]),
        ("replace_substring(text, pattern='l', replacement='L')", ["HeLLo", "", None, "日本"]),
        ("is_in(text, value_set=['Hello'])", [True, False, False, False]),
        ("coalesce(text, meta.lang, 'none')", ["Hello", "", "none", "日本"]),
        ("make_struct(n, text, field_names=['a', 'b'])", [{"a": r["n"], "b": r["text"]} for r in ROWS.to_pylist()]),
        ("'wiki'", ["wiki"] * 4),
    ],
)
def test_an_expression_has_the_value_that_python_or_arrow_gives(text, expected):
    assert value(text) == expected


@given(st.integers(-(2**62), 2**62), st.integers(-100, 100).filter(bool))
def test_integer_arithmetic_is_that_of_python(a, b):
    batch = pa.record_batch({"a": [a], "b": [b]})

    assert value("a // b", batch) == [a // b]
    assert value("a % b", batch) == [a % b]
    assert value("a // b * b + a % b == a", batch) == [True]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "text.__class__.__init__('x')",
        "(lambda: 1)()",
        "[x for x in text]",
        "f'{text}'",
        "open('/etc/passwd')",
        "eval('1')",
        "random()",
        "unique(text)",
        "sum(n)",
        "sort_indices(n)",
        "cumulative_sum(n)",
        "filter(n, small > 1)",
        "{'a': 1}",
        "text if",
        "n; n",
        "n = 1",
        "(n := 1)",
        "n & 1",
        "~n",
        "list[n]",
        "list[0:1]",
        "n is 1",
        "n == None",
        "n != None",
        "text in n",
        "cast(n)",
        "cast(n, text)",
        "cast(n, 'flaot')",
        "col(text)",
        "utf8_length(text, options=None)",
        "utf8_length(**text)",
        "replace_substring(text, pattern=text, replacement='')",
        "*n",
        "print",
        "",
        "1_" + "0" * 11_000,
        "(" * 500 + "n" + ")" * 500,
        "...",
        "1j",
        "n" + " + n" * 2400,
        r"match_substring_regex(text, pattern='\d')",
    ],
)
def test_what_is_no_expression_over_rows_is_refused(text):
    with pytest.raises(ValueError, match=r".") as refusal:
        Expression(text).bind(ROWS.schema)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("utf8_lenght(text)", "did you mean 'utf8_length'"),
        ("txt", "there is no column 'txt'; the columns are text, n, small"),
        ("utf8_length(n)", "no kernel matching input types"),
        ("meta.language", "language"),
        ("n == 'a'", "n == 'a'"),
        ("text + n", "cannot be joined"),
    ],
)
def test_a_mistake_names_the_expression_and_its_cause(text, message):
    with pytest.raises(ValueError, match=message):
        Expression(text).bind(ROWS.schema)


@pytest.mark.parametrize(
    ("text", "row", "message"),
    [
        ("7 / n", 2, "n = 0: divide by zero"),
        ("n + 9223372036854775801", 0, "n = 7: overflow"),
        ("cast(text, 'int64')", 0, "text = 'Hello'"),
        ("cast(meta.lang, 'int8')", 0, "'en'"),
    ],
)
def test_a_refused_row_is_named_with_its_values(text, row, message):
    with pytest.raises(InputError, match=f"fails in row {row} of the batch, where .*{message}"):
        value(text)


def test_no_function_looks_beyond_its_row():
    assert not row_wise_functions() & {"random", "sum", "unique", "rank", "sort_indices", "cumulative_sum", "drop_null"}
    assert {"utf8_length", "if_else", "and", "year"} <= row_wise_functions()

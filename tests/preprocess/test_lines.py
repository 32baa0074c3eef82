import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.errors import InputError
from preprocess.sources.lines import split_lines


@given(st.binary(), st.integers(1, 9))
def test_lines_do_not_depend_on_the_chunks(data, size):
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()

    lines = [line for _, line in split_lines(chunks, "f")]

    assert [line.removeprefix(b"\xef\xbb\xbf") for line in expected[:1]] + expected[1:] == lines


@pytest.mark.parametrize("newlines", [0, 1])
def test_a_line_over_the_limit_is_refused_with_its_number_before_it_ends(newlines):
    chunks = [b"short\n" * newlines, b"x" * 50, b"x" * 50, b"never read" * 100]

    with pytest.raises(InputError, match=f"f:{newlines + 1}: the line has more than 80 bytes"):
        list(split_lines(iter(chunks), "f", max_bytes=80))

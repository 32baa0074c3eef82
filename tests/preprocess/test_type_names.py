import pyarrow as pa
import pytest

from preprocess.type_names import parse_type

TYPES = [
    *(pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.string(), pa.large_binary(), pa.date32()),
    *(pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("s", "+02:00"), pa.duration("ms")),
    *(pa.time32("s"), pa.binary(16), pa.decimal128(12, 2), pa.decimal256(40, 0)),
    *(pa.list_(pa.int8()), pa.list_(pa.float32(), 3), pa.large_list(pa.field("item", pa.int8(), False))),
    *(pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]), pa.map_(pa.string(), pa.list_(pa.int8()))),
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_type_is_read_as_arrow_prints_it(kind):
    assert parse_type(str(kind)) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("list<float32>[3]", pa.list_(pa.float32(), 3)),
        ("timestamp[us, UTC]", pa.timestamp("us", "UTC")),
        (" struct < a : int , b : text > ", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ("bytes[4]", pa.binary(4)),
    ],
)
def test_shorter_forms(text, kind):
    assert parse_type(text) == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flaot32", "there is no type 'flaot32', did you mean 'float32'"),
        ("list<int8", "expected '>', found 'the end'"),
        ("list<int8>[x]", "expected a number, found 'x'"),
        ("int8 int8", "expected 'the end', found 'int8'"),
        ("timestamp[m]", "a timestamp counts s, ms, us or ns, not 'm'"),
        ("", "there is no type ''"),
        ("decimal128(99, 2)", "precision"),
        ("list<" * 30, "there is no type ''"),
    ],
)
def test_another_text_is_refused_by_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=message):
        parse_type(text)

"""Real texts and odd files: the rows that Python's own reader of the form gives, or a refusal by name."""

import json
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataplane.catalog import open_dataset
from dataplane.errors import DatasetNotFoundError, InputError
from preprocess import Packing, Recipe, preprocess
from preprocess.tokenizer import load_vocabulary
from tests.preprocess.datasets import plain_lines, read_documents, read_rows, read_table

END = "<|endoftext|>"
REFUSED_JSONL = {
    "bad_rows.jsonl": "bad_rows.jsonl:8: not UTF-8, found 0xd8 at byte 544",
    "blns.json": "blns.json:1:2: not JSON",
    "line_separators_inside_strings.jsonl": "line_separators_inside_strings.jsonl:5: holds",
    "truncated.jsonl.gz": "the gzip stream ends too early",
    "truncated.jsonl.zst": "the zstd stream ends too early",
}
READ_JSONL = [
    "blns.jsonl",
    "bom_crlf_no_final_newline.jsonl",
    "multi_frame.jsonl.zst",
    "multi_frame_skippable.jsonl.zst",
    "multi_member.jsonl.gz",
    "streaming_no_content_size.jsonl.zst",
    "test_file.json.bz2",
    "test_file.json.gz",
    "test_file.json.xz",
    "trailing_garbage.jsonl.gz",
]
REFUSED_PARQUET = {
    "datapage_v1-corrupt-checksum": "CRC checksum verification failed",
    "rle-dict-uncompressed-corrupt-checksum": "CRC checksum verification failed",
    "incorrect_map_schema": "Map keys must be annotated as required",
    "ARROW-GH-41317": "row group 0 gave 0 rows, its header says 3",
    "ARROW-GH-41321": "not readable as Parquet",
    "ARROW-GH-45185": "repetition level",
    "ARROW-GH-47662": "Unexpected end of stream",
    "ARROW-RS-GH-6229-DICTHEADER": "not readable as Parquet",
    "ARROW-RS-GH-6229-LEVELS": "rep / def levels",
    "PARQUET-1481": "Invalid physical column type",
}
# Two rows of a gigabyte from four kilobytes: read, but it takes half a minute.
SLOW = {"large_string_map.brotli"}
# Damaged, and still read as pyarrow reads it.
READ_ALTHOUGH_BAD = {"ARROW-GH-43605"}


def spelled(table):
    """The values of a table, NaN and times out of Python's range included."""
    return [column.combine_chunks().to_string(window=1 << 20) for column in table.columns]


@pytest.mark.parametrize("name", ["emoji.jsonl.gz", "rust_book.jsonl.gz", "multilingual.jsonl.zst"])
def test_tokens_of_real_texts_decode_to_the_texts(data, tmp_path, name):
    lines = list(islice(plain_lines(data / "text" / name), 0, None, 8))
    source, tokenizer = tmp_path / "in.jsonl", data / "tokenizers" / "gpt-3.5-turbo.tokenizer.json"
    source.write_bytes(b"\n".join(lines))

    packing = Packing(tokenizer=str(tokenizer), sequence_length=512, eos_token=END)
    preprocess([str(source)], str(tmp_path / "out"), Recipe(packing=packing))

    vocabulary = load_vocabulary(str(tokenizer))
    documents = read_documents(read_table(tmp_path / "out"), end=vocabulary.id_of(END))
    assert [vocabulary.decode(np.array(tokens)) for tokens in documents] == [json.loads(line)["text"] for line in lines]
    assert open_dataset(str(tmp_path / "out")).version.metadata["vocab_size"] == "100277"


def test_a_long_document_is_packed_whole(data, tmp_path):
    longest = max(plain_lines(data / "text" / "books_whole.jsonl.zst"), key=len)
    (tmp_path / "in.jsonl").write_bytes(longest)
    tokenizer = str(data / "tokenizers" / "torchtitan-test.tokenizer.json")

    report = preprocess(
        [str(tmp_path / "in.jsonl")], str(tmp_path / "out"), Recipe(packing=Packing(tokenizer=tokenizer))
    )

    table = read_table(tmp_path / "out")
    assert report.documents == 1
    assert table.column("tokens").type.value_type == pa.uint16()
    (document,) = read_documents(table)
    tokens, _ = load_vocabulary(tokenizer).encode([json.loads(longest)["text"]])
    assert document == tokens.tolist()


@pytest.mark.parametrize("name", READ_JSONL)
def test_odd_json_lines_give_the_rows_that_json_gives(data, tmp_path, name):
    source = data / "odd" / "jsonl" / name

    preprocess([str(source)], str(tmp_path / "out"))

    expected = [json.loads(line) for line in plain_lines(source)]
    names = list(dict.fromkeys(name for row in expected for name in row))
    assert read_rows(tmp_path / "out") == [{name: row.get(name) for name in names} for row in expected]


@pytest.mark.parametrize("name", REFUSED_JSONL)
def test_broken_json_lines_are_refused_by_name(data, tmp_path, name):
    with pytest.raises(InputError) as refusal:
        preprocess([str(data / "odd" / "jsonl" / name)], str(tmp_path / "out"))

    assert name in str(refusal.value)
    assert REFUSED_JSONL[name] in str(refusal.value)
    with pytest.raises(DatasetNotFoundError):
        open_dataset(str(tmp_path / "out"))


def test_every_odd_json_line_file_is_decided(data):
    packed = {"JSONTestSuite_test_parsing.tar.gz"}
    assert {path.name for path in (data / "odd" / "jsonl").iterdir()} - packed == {*READ_JSONL, *REFUSED_JSONL}


def test_json_parser_cases_are_read_or_refused(data, tmp_path):
    import tarfile

    with tarfile.open(data / "odd" / "jsonl" / "JSONTestSuite_test_parsing.tar.gz") as archive:
        files = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}
    for number, (name, content) in enumerate(files.items()):
        line = b'{"v": ' + content.replace(b"\n", b" ").removesuffix(b" ") + b"}\n"
        source = tmp_path / f"{number}.jsonl"
        source.write_bytes(line)
        try:
            expected = [json.loads(line.decode())]
        except (ValueError, RecursionError):
            expected = []
        assert _rows_or_refusal(source, f"memory://parser/{number}", expected) == repr(expected), name


def _rows_or_refusal(source, url, expected):
    """What was read, spelled out; the expected rows if they were refused by the name of the file."""
    try:
        preprocess([str(source)], url)
    except InputError as refusal:
        return repr(expected) if str(source) in str(refusal) else str(refusal)
    return repr(read_rows(url))


@pytest.mark.parametrize("folder", ["parquet", "parquet_bad"])
def test_odd_parquet_gives_the_rows_that_pyarrow_gives_or_is_refused(data, tmp_path, folder):
    paths = sorted((data / "odd" / folder).iterdir())
    decided = {*REFUSED_PARQUET, *READ_ALTHOUGH_BAD}
    assert folder == "parquet" or {path.stem for path in paths} <= decided
    for path in paths:
        url = f"memory://odd/{path.stem}"
        if path.stem in REFUSED_PARQUET:
            with pytest.raises(InputError, match=REFUSED_PARQUET[path.stem]) as refusal:
                preprocess([str(path)], url)
            assert path.name in str(refusal.value)
            continue
        if path.stem in SLOW:
            continue
        try:
            preprocess([str(path)], url)
        except InputError as refusal:
            assert "nothing to write" in str(refusal)  # noqa: PT017  # some have no rows
            assert pq.read_table(path).num_rows == 0
            continue
        found = read_table(url)
        expected = pq.read_table(path).cast(found.schema)
        assert found.equals(expected) or spelled(found) == spelled(expected), path.name


@pytest.mark.parametrize("name", ["Barclay_Postern_1911.txt", "blns.txt", "udhr_German_Deutsch-Latin1.txt"])
def test_odd_text_is_read_whole_or_refused(data, tmp_path, name):
    source = data / "odd" / "text" / name
    if "Latin1" in name:
        with pytest.raises(InputError, match=f"{name}: not UTF-8, found 0xe4 at byte 19"):
            preprocess([str(source)], str(tmp_path / "out"))
        return

    preprocess([str(source)], str(tmp_path / "out"))

    assert read_rows(tmp_path / "out") == [{"text": source.read_bytes().decode("utf-8-sig")}]

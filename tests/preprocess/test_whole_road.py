"""From sources to a committed version, and what holds whatever goes wrong on the way."""

import threading

import fsspec
import numpy as np
import pytest

from dataplane.catalog import Encoding, open_dataset
from dataplane.errors import DatasetExistsError, DatasetNotFoundError, InputError
from dataplane.storage import open_store
from preprocess import Packing, Reading, Recipe, preprocess
from preprocess.tokenizer import load_vocabulary
from tests.preprocess.datasets import files_of, read_documents, read_rows, read_table, write_jsonl

TEXTS = [f"the cat {number} sat on " + "the mat " * (number % 50) for number in range(400)]
ROWS = [{"text": text, "number": number} for number, text in enumerate(TEXTS)]


@pytest.fixture
def source(tmp_path):
    for number in range(4):
        write_jsonl(tmp_path / "in" / f"{number}.jsonl.zst", ROWS[number * 100 :][:100])
    return str(tmp_path / "in")


@pytest.fixture(params=["rows", "tokens"])
def recipe(request, tokenizer_file):
    packing = Packing(tokenizer=tokenizer_file, sequence_length=64, eos_token="<end>")
    return Recipe(
        packing=packing if request.param == "tokens" else None,
        block_bytes=4096,
        encoding=Encoding(shard_bytes=8192),
    )


def test_the_documents_come_back_in_order(source, tmp_path, recipe, tokenizer_file):
    report = preprocess([source], str(tmp_path / "out"), recipe)

    table = read_table(tmp_path / "out")
    if recipe.packing is None:
        assert table.to_pylist() == ROWS
    else:
        vocabulary = load_vocabulary(tokenizer_file)
        documents = read_documents(table, end=vocabulary.id_of("<end>"))
        assert [vocabulary.decode(np.array(document)) for document in documents] == TEXTS
        assert report.tokens == sum(len(document) + 1 for document in documents)
    version = open_dataset(str(tmp_path / "out")).version
    assert (report.input_files, report.documents, report.rows) == (4, 400, table.num_rows)
    assert (report.blocks, report.shards, report.raw_bytes) == (
        version.num_blocks,
        version.num_shards,
        version.raw_bytes,
    )
    assert report.shards > 1
    assert report.blocks > report.shards


def test_a_repeat_is_byte_identical(source, tmp_path, recipe):
    for name in ("one", "two"):
        preprocess([source], str(tmp_path / name), recipe)

    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_append_goes_on_where_the_version_before_ended(source, tmp_path, recipe):
    url = str(tmp_path / "out")
    preprocess([f"{source}/0.jsonl.zst", f"{source}/1.jsonl.zst"], url, recipe)
    before = read_table(url)

    report = preprocess([f"{source}/[23].jsonl.zst"], url, recipe, append=True)

    table = read_table(url)
    assert report.version == 2
    assert report.rows == table.num_rows - before.num_rows
    assert table.slice(0, before.num_rows).equals(before)
    if recipe.packing is not None:
        ids = table.column("id").to_pylist()
        assert ids == sorted(set(ids))
        assert open_dataset(url).version.metadata["num_documents"] == "400"
    else:
        assert table.to_pylist() == ROWS


@pytest.mark.parametrize(
    "change", [{"sequence_length": 32}, {"eos_token": None}], ids=["another length", "no end token"]
)
def test_append_refuses_rows_made_otherwise(source, tmp_path, tokenizer_file, change):
    url = str(tmp_path / "out")
    made = {"tokenizer": tokenizer_file, "sequence_length": 64, "eos_token": "<end>"}
    preprocess([source], url, Recipe(packing=Packing(**made)))

    with pytest.raises(ValueError, match=url):
        preprocess([source], url, Recipe(packing=Packing(**made | change)), append=True)
    assert open_dataset(url).version.number == 1


def test_an_existing_dataset_is_refused_before_the_inputs_are_read(source, tmp_path, recipe):
    preprocess([source], str(tmp_path / "out"), recipe)
    before = files_of(tmp_path / "out")
    (tmp_path / "bad.jsonl").write_text("not JSON")
    not_json = str(tmp_path / "bad.jsonl")

    with pytest.raises(DatasetExistsError, match="--append"):
        preprocess([not_json], str(tmp_path / "out"), recipe)
    assert files_of(tmp_path / "out") == before


def test_nothing_is_visible_after_a_failure_and_an_old_version_stays(source, tmp_path, recipe):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good", "number": 1}\n' * 5000 + '{"text": 1}\n')

    with pytest.raises(InputError, match=r"bad\.jsonl:5001"):
        preprocess([source, str(bad)], str(tmp_path / "out"), recipe)
    with pytest.raises(DatasetNotFoundError):
        open_dataset(str(tmp_path / "out"))

    preprocess([source], str(tmp_path / "out"), recipe)
    with pytest.raises(InputError):
        preprocess([str(bad)], str(tmp_path / "out"), recipe, append=True)
    assert open_dataset(str(tmp_path / "out")).version.number == 1


def test_empty_inputs_are_reported_and_cost_nothing(source, tmp_path, recipe):
    (tmp_path / "in" / "1a.jsonl").touch()
    (tmp_path / "in" / "2a.parquet").touch()
    (tmp_path / "in" / ".hidden").touch()

    report = preprocess([source], str(tmp_path / "out"), recipe)

    assert (report.input_files, report.empty_files, report.hidden_files) == (6, 2, 1)
    assert report.documents == 400


def test_no_rows_at_all_is_refused(tmp_path, recipe):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "blank.jsonl").write_text(" \n\n")

    with pytest.raises(InputError, match="nothing to write: 1 inputs and 1 empty ones"):
        preprocess([str(tmp_path)], str(tmp_path / "out"), recipe)
    assert files_of(tmp_path / "out") == {}


def test_documents_without_a_token_are_dropped_and_counted(tmp_path, tokenizer_file):
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in ("", "a", "", "b")])

    report = preprocess(
        [source], str(tmp_path / "out"), Recipe(packing=Packing(tokenizer=tokenizer_file, sequence_length=8))
    )

    assert (report.documents, report.dropped) == (2, {"no tokens": 2})
    assert read_rows(tmp_path / "out")[0]["document_starts"] == [0, 1]


@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
def test_every_codec_reads_back(source, tmp_path, codec):
    report = preprocess([source], str(tmp_path / "out"), Recipe(encoding=Encoding(codec=codec)))

    assert read_rows(tmp_path / "out") == ROWS
    assert (report.ratio > 1.5) == (codec != "none")


def test_shards_open_with_plain_arrow(source, tmp_path):
    import pyarrow as pa

    preprocess([source], str(tmp_path / "out"))

    (shard,) = (tmp_path / "out" / "shards").iterdir()
    assert pa.ipc.open_file(pa.memory_map(str(shard))).read_all().to_pylist() == ROWS


def test_a_memory_store_serves_as_source_and_destination(tmp_path):
    place = f"memory://road/{tmp_path.name}"
    fsspec.filesystem("memory").pipe_file(f"/road/{tmp_path.name}/in/[a] #1.jsonl", b'{"a":1}\n')

    preprocess([f"{place}/in/[a] #1.jsonl"], f"{place}/out")

    assert read_rows(f"{place}/out") == [{"a": 1}]


def test_no_thread_is_left_behind(source, tmp_path, recipe):
    preprocess([source], str(tmp_path / "out"), recipe)

    assert [
        thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon
    ] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_bytes": 0},
        {"encoding": Encoding(codec="brotli")},
        {"encoding": Encoding(level=99)},
        {"columns": ("a", "a")},
        {"columns": ("a",), "packing": Packing(tokenizer="t")},
    ],
    ids=str,
)
def test_a_recipe_is_checked_where_it_is_made(wrong):
    with pytest.raises(ValueError, match=r"block_bytes must be|codec must be|level of zstd must be|columns (must|are)"):
        Recipe(**wrong)
    with pytest.raises(ValueError, match="sequence_length must be at least 1, got 0"):
        Packing(tokenizer="t", sequence_length=0)
    with pytest.raises(ValueError, match="zstd_window_log"):
        Reading(zstd_window_log=40)


def test_more_inputs_than_a_page_of_a_listing_on_s3(s3, s3_url):
    store = open_store(f"{s3_url}/in [x]", s3.storage_options)
    for number in range(1001):
        store.write(f"part {number:04}#.jsonl", b'{"n": %d}\n' % number)

    report = preprocess([f"{s3_url}/in [x]"], f"{s3_url}/out", storage_options=s3.storage_options)

    assert report.input_files == 1001
    assert [row["n"] for row in read_rows(f"{s3_url}/out", storage_options=s3.storage_options)] == list(range(1001))
    single = preprocess([f"{s3_url}/in [x]/part 0007#.jsonl"], f"{s3_url}/one", storage_options=s3.storage_options)
    assert single.rows == 1
    pattern = preprocess([f"{s3_url}/in [[]x]/part 000?#*"], f"{s3_url}/ten", storage_options=s3.storage_options)
    assert pattern.rows == 10

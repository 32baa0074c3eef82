"""The tars that are written: webdataset reads them without this package, and this package gives the columns back."""

import gc
import io
import json
import math
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import webdataset

from dataplane import DatasetWriter, Encoding, StreamingLoader, compact, open_dataset
from dataplane.errors import CorruptBlockError
from dataplane.formats import TarFormat, TarShardBuilder, TarZstFormat
from dataplane.storage import open_store
from tests.catalog.places import rows_of
from tests.cli.test_commands import run
from tests.contracts import FormatContract, batch_of
from tests.resume import flat

FORMATS = ["tar", "tar.zst"]

# webdataset leaves the closing of its files to the garbage collector.
leaky = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def program(name):
    """Its path; without it there is nothing to compare with."""
    return shutil.which(name) or pytest.skip(f"there is no program {name} here")


def shard_of(batches, form="tar.zst", **options):
    builder = TarShardBuilder(batches[0].schema, level=3 if form == "tar.zst" else None, **options)
    for batch in batches:
        builder.add(batch)
    return builder.finish()


def decoded(batches, form):
    data, blocks = shard_of(batches, form)
    reader = {"tar": TarFormat(), "tar.zst": TarZstFormat()}[form]
    return [reader.decode(data[block.offset : block.offset + block.num_bytes], batches[0].schema) for block in blocks]


KEYED = pa.schema([pa.field("__key__", pa.string(), nullable=False), pa.field("cls", pa.binary())])


def keyed(numbers):
    return pa.record_batch([[f"{n:05d}" for n in numbers], [str(n % 10).encode() for n in numbers]], schema=KEYED)


class TestTarZstFormat(FormatContract):
    batches = [keyed(range(3)), keyed(range(3, 4)), keyed(range(4, 200))]

    @pytest.fixture
    def form(self):
        return TarZstFormat()

    @pytest.fixture
    def shard(self):
        return bytes(shard_of(self.batches)[0])


@pytest.mark.parametrize("form", FORMATS)
def test_a_builder_knows_its_blocks_without_reading_them_again(form):
    batches = [keyed(range(3)), keyed(range(3, 300))]
    data, built = shard_of(batches, form)
    _, found = {"tar": TarFormat(), "tar.zst": TarZstFormat()}[form].index(data, "")

    assert sum(block.num_rows for block in built) == sum(block.num_rows for block in found) == 300
    if form == "tar.zst":  # of a plain tar any cut between samples is a block
        assert [(b.offset, b.num_bytes, b.digest) for b in built] == [(b.offset, b.num_bytes, b.digest) for b in found]


NAN, INF = math.nan, math.inf
LONG = [7, None, [1, 2, 3]]
COLUMNS = {
    "binary": pa.array([b"", None, b"\0\xff" * 700]),
    "large binary": pa.array([b"x", None], pa.large_binary()),
    "fixed binary": pa.array([b"abc", None], pa.binary(3)),
    "string": pa.array(["", None, "é\u2028\n漢"]),
    "large string": pa.array(["a", None], pa.large_string()),
    "bool": pa.array([True, None, False]),
    **{str(k): pa.array([0, None, 2**b - 1], k) for k, b in [(pa.uint8(), 8), (pa.uint32(), 32), (pa.uint64(), 64)]},
    **{str(k): pa.array([-(2**b), None, 2**b - 1], k) for k, b in [(pa.int8(), 7), (pa.int16(), 15), (pa.int64(), 63)]},
    "half": pa.array(np.array([-0.0, INF, 0.1], np.float16)),
    "float": pa.array([0.1, None, -INF], pa.float32()),
    "double": pa.array([0.1, 1e-320, 1e308]),
    "list": pa.array([[1, 2], [], None, [3]], pa.list_(pa.uint16())),
    "large list": pa.array([[1.5], [], None], pa.large_list(pa.float32())),
    "list of bool": pa.array([[True, False], [], None]),
    "fixed list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
    "nested fixed list": pa.array([[[1, 2], [3, 4], [5, 6]], None], pa.list_(pa.list_(pa.int8(), 2), 3)),
    "pairs": pa.array([[[1, 2], [3, 4]], [], None], pa.list_(pa.list_(pa.float64(), 2))),
    "empty fixed list": pa.array([[], None], pa.list_(pa.float32(), 0)),
    "ragged list": pa.array([[[1], []], [], None]),
    "list of strings": pa.array([["a", None], [], None]),
    "struct": pa.array([{"a": 1, "b": ["x"]}, {"a": None, "b": []}, None]),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", COLUMNS)
def test_every_value_comes_back(name, form):
    column = COLUMNS[name]
    batch = pa.record_batch({"before": pa.array(range(len(column))), "column": column})
    (found,) = decoded([batch], form)

    found.validate(full=True)
    assert found == batch


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_not_a_number_comes_back(kind):
    column = pa.array(np.array([NAN, 1, NAN], kind.to_pandas_dtype()))
    (found,) = decoded([pa.record_batch({"x": column, "y": pa.array([[v] for v in column], pa.list_(kind))})], "tar")

    assert np.isnan(found["x"].to_numpy()).tolist() == [True, False, True]
    assert np.isnan(found["y"].flatten().to_numpy()).tolist() == [True, False, True]


@leaky
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_webdataset_reads_them_without_this_package(tmp_path, request, form, kind):
    schema = pa.schema(
        {
            "__key__": pa.string(),
            "flac": pa.binary(),
            "json": pa.string(),
            "caption": pa.string(),
            "cls": pa.int64(),
            "score": pa.float32(),
            "tokens": pa.list_(pa.uint16()),
            "box": pa.struct([("x", pa.int8())]),
        }
    )
    rows = [
        {
            "__key__": f"set [a] (1)/song {n} é",
            "flac": bytes([n]) * n,
            "json": json.dumps({"n": n}),
            "caption": f"caption {n}",
            "cls": n,
            "score": n / 2,
            "tokens": list(range(n)),
            "box": {"x": n},
        }
        for n in range(1, 30)
    ]
    url, options = (str(tmp_path / "data"), {})
    if kind == "s3":
        url, options = request.getfixturevalue("s3_url"), request.getfixturevalue("s3").storage_options
    writer = DatasetWriter(open_store(url, options), schema, Encoding(format=form, shard_bytes=2000, level=9))
    for start in range(0, len(rows), 5):
        writer.write(pa.RecordBatch.from_pylist(rows[start : start + 5], schema=schema))
    writer.commit(metadata={})
    dataset = open_dataset(url, storage_options=options)
    assert len(dataset.index.shards) > 1
    for path in dataset.index.shards:  # what follows is done by others: a download, zstd, webdataset
        (tmp_path / Path(path).name).write_bytes(dataset.store.read(path))
    names = [str(tmp_path / Path(path).name) for path in dataset.index.shards]
    urls = names if form == "tar" else [f"pipe:{program('zstd')} -dc {name}" for name in names]
    samples = list(webdataset.WebDataset(urls, shardshuffle=False).decode())

    assert [sample["__key__"] for sample in samples] == [row["__key__"] for row in rows]
    for sample, row in zip(samples, rows, strict=True):
        assert sample["flac"] == row["flac"]
        assert sample["json"] == json.loads(row["json"])
        assert sample["caption.txt"] == row["caption"]
        assert (sample["cls"], sample["score.json"], sample["box.json"]) == (row["cls"], row["score"], row["box"])
        assert sample["tokens.npy"].dtype == np.uint16
        assert sample["tokens.npy"].tolist() == row["tokens"]
    assert rows_of(dataset).to_pylist() == rows
    loader = StreamingLoader(url, batch_size=4, storage_options=options, cache_dir=None)
    assert sorted(flat(batch["__key__"] for batch in loader)) == sorted(row["__key__"] for row in rows)
    gc.collect()


@pytest.mark.parametrize("form", FORMATS)
def test_other_programs_read_the_whole(tmp_path, form):
    data, _ = shard_of([batch_of(3), batch_of(4, 3)], form)
    (tmp_path / f"x.{form}").write_bytes(data)
    if form == "tar.zst":
        subprocess.run([program("zstd"), "-dq", "x.tar.zst"], cwd=tmp_path, check=True)
    listed = subprocess.run([program("tar"), "-tvf", "x.tar"], cwd=tmp_path, check=True, capture_output=True, text=True)

    assert listed.stderr == ""
    assert len(listed.stdout.splitlines()) == 14
    assert "000000000006.text" in listed.stdout


@pytest.mark.parametrize("form", FORMATS)
def test_equal_rows_make_equal_bytes_and_keys_go_on_from_shard_to_shard(tmp_path, form):
    versions = []
    for name in "ab":
        writer = DatasetWriter(
            open_store(str(tmp_path / name)), batch_of(0).schema, Encoding(format=form, shard_bytes=1)
        )
        for number in range(3):
            writer.write(batch_of(2, 2 * number))
        versions.append(writer.commit(metadata={}))

    assert versions[0] == versions[1]
    keys = []
    for path in open_dataset(str(tmp_path / "a")).index.shards:
        data = (tmp_path / "a" / path).read_bytes()
        if form == "tar.zst":
            data = subprocess.run([program("zstd"), "-dc"], input=data, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            keys += [member.name.split(".")[0] for member in archive if member.name.endswith(".text")]
            assert {(member.mtime, member.uid, member.gid, member.uname) for member in archive} == {(0, 0, 0, "")}
    assert keys == [f"{row:012d}" for row in range(6)]


@pytest.mark.parametrize("form", FORMATS)
def test_compaction_keeps_the_form_and_the_keys(tmp_path, form):
    parent = None
    for numbers in (range(3), range(3, 5), range(5, 9)):
        writer = DatasetWriter(open_store(str(tmp_path)), KEYED, Encoding(format=form))
        writer.write(keyed(numbers))
        parent = writer.commit(metadata={}, parent=parent)
    made = compact(str(tmp_path))

    assert (made.block_format, made.num_shards, made.num_blocks) == (form, 1, 1)
    assert rows_of(open_dataset(str(tmp_path))) == pa.Table.from_batches([keyed(range(9))])


@pytest.mark.parametrize(
    "key", ["song.v1", "a/b.c", "__x__", "__x__/a", "a/", "", "/", "a\0b", ".hidden", None], ids=repr
)
def test_keys_that_would_not_come_back_are_refused_with_a_hint(key):
    builder = TarShardBuilder(KEYED.set(0, pa.field("__key__", pa.string())))
    batch = pa.record_batch([[key], [b"1"]], names=["__key__", "cls"])

    with pytest.raises(ValueError, match=r"write arrow|must be there"):
        builder.add(batch)
    assert (builder.num_blocks, builder.num_bytes) == (0, 0)


@pytest.mark.parametrize(
    "key", ["a b", "[x]{y}", "dir.with.dots/a", "#%?*", "漢é", "n" * 300, "a\\b", "-", "a\nb"], ids=repr
)
@leaky
def test_other_keys_come_back(tmp_path, key):
    batch = pa.record_batch([[key, "z"], [b"1", b"2"]], names=["__key__", "cls"])
    (tmp_path / "x.tar").write_bytes(shard_of([batch], "tar")[0])

    samples = list(webdataset.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False))
    assert [sample["__key__"] for sample in samples] == [key, "z"]
    assert decoded([batch], "tar")[0]["__key__"].to_pylist() == [key, "z"]
    gc.collect()


def test_a_key_twice_in_a_shard_is_refused():
    builder = TarShardBuilder(KEYED)
    builder.add(keyed([1]))

    with pytest.raises(ValueError, match="key '00001' of an earlier one"):
        builder.add(keyed([2, 1]))
    builder.add(keyed([2]))
    assert builder.num_blocks == 2


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ([("when", pa.timestamp("us"))], "'when' has type timestamp.*write arrow"),
        ([("x", pa.decimal128(5))], "'x' has type decimal"),
        ([("x", pa.list_(pa.binary()))], "'x' has type list"),
        ([("x", pa.string_view())], "'x' has type string_view"),
        ([("x", pa.map_(pa.string(), pa.int8()))], "'x' has type map"),
        ([("Text", pa.string())], "'Text' has capitals"),
        ([("a/b", pa.binary())], "'a/b' cannot be a field"),
        ([("__url__", pa.binary())], "'__url__' cannot be a field"),
        ([("", pa.binary())], "'' cannot be a field"),
        ([("a", pa.string()), ("a.txt", pa.binary())], "two columns would be the field 'a.txt'"),
        ([("__key__", pa.string())], "needs a column besides '__key__'"),
        ([("__key__", pa.int64()), ("x", pa.int8())], "'__key__' has type int64"),
    ],
    ids=str,
)
def test_columns_that_would_not_come_back_are_refused_by_name(tmp_path, schema, named):
    with pytest.raises(ValueError, match=named):
        DatasetWriter(open_store(str(tmp_path)), pa.schema(schema), Encoding(format="tar"))


def test_rows_without_a_value_and_lists_with_nulls_are_refused_by_row():
    builder = TarShardBuilder(pa.schema([("x", pa.int64()), ("y", pa.list_(pa.int8()))]))

    with pytest.raises(ValueError, match=r"row 1 of its block.*no value"):
        builder.add(
            pa.record_batch(
                [[1, None], [None, None]], schema=pa.schema([("x", pa.int64()), ("y", pa.list_(pa.int8()))])
            )
        )
    with pytest.raises(ValueError, match=r"column 'y' holds a null within row 1"):
        builder.add(
            pa.record_batch([[1, 2], [[1], [None]]], schema=pa.schema([("x", pa.int64()), ("y", pa.list_(pa.int8()))]))
        )


@pytest.mark.parametrize("value", [b"", b"nonsense", b"\x93NUMPY\1\0"])
def test_a_field_that_is_no_array_is_refused_by_name(value):
    data, (block,) = shard_of([pa.record_batch({"x.npy": pa.array([value])})], "tar")

    with pytest.raises(CorruptBlockError, match=r"'x\.npy'"):
        TarFormat().decode(data[: block.num_bytes], pa.schema([("x.npy", pa.list_(pa.int8()))]))


def test_a_foreign_compressed_tar_is_refused_with_what_to_do():
    data, _ = shard_of([keyed(range(20))], "tar")
    whole = subprocess.run([program("zstd"), "-c"], input=bytes(data), check=True, capture_output=True).stdout

    with pytest.raises(CorruptBlockError, match=r"x\.tar\.zst: .*"):
        TarZstFormat().index(whole, "x.tar.zst")


def test_an_unknown_format_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"format must be arrow, tar or tar\.zst, got 'zip'"):
        DatasetWriter(open_store(str(tmp_path)), KEYED, Encoding(format="zip"))


@leaky
def test_the_command_writes_tars_and_its_other_commands_read_them(tmp_path, capsys):
    source, url = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text(
        "".join(json.dumps({"text": f"row {n}", "n": n, "list": list(range(n))}) + "\n" for n in range(50))
    )
    assert run(capsys, "preprocess", source, url, "--output-format", "tar", "--block-bytes", 1000, "--quiet")[0] == 0
    urls = [str(path) for path in sorted(url.glob("shards/*.tar"))]
    samples = list(webdataset.WebDataset(urls, shardshuffle=False).decode())

    assert sorted(sample["n.json"] for sample in samples) == list(range(50))
    assert run(capsys, "verify", url)[0] == 0
    assert "row 0" in run(capsys, "inspect", url)[1]
    status, _, err = run(capsys, "preprocess", source, url, "--append", "--quiet")
    assert (status, "its blocks are tar, those to append would be arrow" in err) == (1, True)
    gc.collect()

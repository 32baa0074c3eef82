"""Arrow IPC and WebDataset tars, plain and packed: all rows, or a refusal that names the file."""

import bz2
import gzip
import io
import lzma
import tarfile

import pyarrow as pa
import pytest
import zstandard

from dataplane.errors import InputError
from dataplane.metrics import Metrics
from preprocess import Reading, Recipe, preprocess
from preprocess.sources import find_inputs, reader_for
from tests.preprocess.datasets import read_table

PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
TABLE = pa.table(
    {
        "n": pa.array(range(1000), pa.int16()),
        "text": pa.array([f"row {number}" for number in range(1000)]),
        "kind": pa.array(["a", "b"] * 500).dictionary_encode(),
        "list": pa.array([[number] * (number % 3) if number % 5 else None for number in range(1000)]),
    }
)


def arrow_bytes(kind, table=TABLE, **options):
    target = io.BytesIO()
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(target, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=300)
    return target.getvalue()


def read(folder, name, data, **recipe):
    (folder / name).write_bytes(data)
    preprocess([str(folder / name)], f"memory://forms/{folder.name}", Recipe(**recipe))
    return read_table(f"memory://forms/{folder.name}")


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_arrow_files_and_streams_give_their_rows(tmp_path, kind, codec, packed):
    table = read(tmp_path, f"in.arrow{packed}", PACK[packed](arrow_bytes(kind, compression=codec)))

    assert table.to_pylist() == TABLE.to_pylist()
    assert [field.type for field in table.schema] == [pa.int16(), pa.string(), pa.string(), pa.list_(pa.int64())]
    assert [field.name for field in table.schema if field.nullable] == ["list"]


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_arrow_that_was_cut_anywhere_is_refused(tmp_path, kind, packed):
    whole = arrow_bytes(kind)
    borders = [number for number in range(8, len(whole), 8) if whole[number : number + 4] == b"\xff" * 4]
    cuts = {*range(1, len(whole), 997), *borders, *range(len(whole) - 20, len(whole)), 1, 4, 8}
    for cut in sorted(cuts):
        (tmp_path / f"in.arrow{packed}").write_bytes(PACK[packed](whole[:cut]))
        (file,) = find_inputs([str(tmp_path / f"in.arrow{packed}")]).files
        reader = reader_for(file.form, Reading(), Metrics())
        with pytest.raises(InputError, match=r"in\.arrow"):
            list(reader.batches(reader.cut(file, 1)[0], TABLE.schema))


def test_arrow_texts(tmp_path):
    (tmp_path / "in.arrow").write_bytes(arrow_bytes("stream"))
    (file,) = find_inputs([str(tmp_path)]).files
    piece = reader_for(file.form, Reading(), Metrics()).cut(file, 1)[0]

    (texts,) = reader_for(file.form, Reading(), Metrics()).texts(piece)

    assert texts == TABLE.column("text").to_pylist()
    with pytest.raises(InputError, match=r"in\.arrow: column 'n' is of type int16, not string"):
        list(reader_for(file.form, Reading(text_column="n"), Metrics()).texts(piece))


SAMPLES = [
    {"__key__": f"a/{number:03}", "jpg": bytes([number]) * 700, "CLS": b"%d" % (number % 3)} for number in range(10)
]
SAMPLES[3].pop("CLS")
EXPECTED = [{"__key__": s["__key__"], "jpg": s["jpg"], "cls": s.get("CLS")} for s in SAMPLES]


def tar_bytes(members, format=tarfile.PAX_FORMAT):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def members(samples):
    return [(f"{s['__key__']}.{name}", s[name]) for s in samples for name in s if name != "__key__"]


@pytest.mark.parametrize("suffix", [*(f".tar{packed}" for packed in PACK), ".tgz", ".tbz2", ".txz"])
def test_a_tar_gives_a_row_per_sample(tmp_path, suffix):
    pack = PACK[{".tgz": ".gz", ".tbz2": ".bz2", ".txz": ".xz"}.get(suffix, suffix.removeprefix(".tar"))]

    table = read(tmp_path, f"in{suffix}", pack(tar_bytes(members(SAMPLES))))

    assert table.to_pylist() == EXPECTED
    assert [field.name for field in table.schema if field.nullable] == ["cls"]


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_a_tar_that_was_cut_anywhere_is_refused(tmp_path, packed):
    whole = tar_bytes(members(SAMPLES))
    end = max(number for number in range(len(whole)) if whole[number]) + 1
    for cut in [*range(512, end + 1024, 512), *range(1, 3000, 331)]:
        with pytest.raises(InputError, match=rf"in\.tar{packed}: "):
            read(tmp_path, f"in.tar{packed}", PACK[packed](whole[:cut]))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([("0.a", b"x"), ("1.a", b"x"), ("0.b", b"x")], "the members of key '0' do not stand together"),
        ([("0.a", b"x"), ("0.A", b"x")], "key '0' has field 'a' twice"),
        ([("name", b"x")], "member 'name' has no key and field"),
        ([("0.__key__", b"x")], "is named like the column of keys"),
    ],
)
def test_what_is_no_webdataset_is_refused_by_member(tmp_path, found, message):
    with pytest.raises(InputError, match=rf"in\.tar: .*{message}"):
        read(tmp_path, "in.tar", tar_bytes(found))


def test_what_follows_the_end_of_a_tar_is_refused(tmp_path):
    one = tar_bytes(members(SAMPLES))

    with pytest.raises(InputError, match=r"in\.tar: has something after byte"):
        read(tmp_path, "in.tar", one + one)
    with pytest.raises(InputError, match="not a readable tar"):
        read(tmp_path, "in.tar", b"no tar at all" * 100)


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_long_and_awkward_keys_are_kept(tmp_path, format):
    names = ["with space [x] {y}", "é日本", "d/" * 20 + "n" * (200 if format != tarfile.USTAR_FORMAT else 60)]

    rows = read(tmp_path, "in.tar", tar_bytes([(f"{name}.seg.png", b"1") for name in names], format)).to_pylist()

    assert rows == [{"__key__": name, "seg.png": b"1"} for name in names]


def test_fields_are_chosen_and_texts_decoded(tmp_path):
    data = tar_bytes([("0.txt", "é".encode()), ("0.jpg", b"1"), ("1.txt", b"b")])

    assert read(tmp_path, "in.tar", data, columns=("txt",)).to_pydict() == {"txt": ["é".encode(), b"b"]}
    (file,) = find_inputs([str(tmp_path)]).files
    reader = reader_for(file.form, Reading(text_column="txt"), Metrics())
    assert list(reader.texts(reader.cut(file, 1)[0])) == [["é", "b"]]
    with pytest.raises(InputError, match=r"in\.tar: sample '1' has no field 'jpg'; its fields are txt"):
        list(reader_for(file.form, Reading(text_column="jpg"), Metrics()).texts(reader.cut(file, 1)[0]))

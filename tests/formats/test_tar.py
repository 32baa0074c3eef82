"""A WebDataset tar keeps the format contract, and gives what the webdataset library gives."""

import gc
import io
import tarfile

import pyarrow as pa
import pytest
import webdataset

from dataplane import StreamingLoader
from dataplane.errors import CorruptBlockError, InputError
from dataplane.formats import TarFormat
from preprocess import index_in_place
from tests.contracts import FormatContract
from tests.resume import flat

FIELDS = pa.schema(
    [pa.field("__key__", pa.string(), nullable=False), pa.field("cls", pa.binary()), pa.field("jpg", pa.binary())]
)


def samples_of(numbers, size=700):
    return pa.record_batch(
        [
            pa.array([f"{number:06d}" for number in numbers]),
            pa.array([str(number % 10).encode() for number in numbers]),
            pa.array([None if number % 7 == 3 else bytes([number % 256]) * size for number in numbers], pa.binary()),
        ],
        schema=FIELDS,
    )


def tar_of(rows):
    """The archive that the webdataset library writes."""
    sink = io.BytesIO()
    with webdataset.TarWriter(sink, encoder=False) as writer:
        for row in rows:
            writer.write({name: value for name, value in row.items() if value is not None})
    return sink.getvalue()


def plain_tar(members):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


class TestTarFormat(FormatContract):
    batches = [samples_of(range(600)), samples_of(range(600, 1100)), samples_of(range(1100, 1101), size=3 << 20)]

    @pytest.fixture
    def form(self):
        return TarFormat()

    @pytest.fixture
    def shard(self):
        # The records after the end mark are padding: an archive without them is complete.
        return tar_of(row for batch in self.batches for row in batch.to_pylist()).rstrip(b"\0") + bytes(1024 + 511)

    def test_a_cut_file_is_never_read_as_a_shorter_one(self, form):
        shard = tar_of(samples_of(range(10)).to_pylist())
        whole, messages = form.index(shard, "name"), []
        for length in range(0, len(shard), 512):
            try:
                found = form.index(shard[:length], "name")
            except CorruptBlockError as error:
                messages.append(str(error))
            else:
                assert found == whole
        assert all(message.startswith("name: ") for message in messages)

    def test_a_cut_block_is_never_read_as_a_shorter_one(self, form):
        """But at the border of samples, where a piece of a tar is a block too: there the digest tells."""
        data = tar_of(samples_of(range(3)).to_pylist())
        schema, (block,) = form.index(data, "name")
        for length in range(block.num_bytes):
            try:
                found = form.decode(data[:length], schema)
            except CorruptBlockError:
                continue
            assert length % 512 == 0
            assert found["__key__"].to_pylist() == [f"{number:06d}" for number in range(found.num_rows)]


# webdataset leaves the closing of its files to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_folder_of_tars_streams_what_webdataset_reads(tmp_path):
    for shard in range(4):
        rows = samples_of(range(shard * 100, shard * 100 + 60)).to_pylist()
        (tmp_path / f"part [{shard}].tar").write_bytes(tar_of(rows))
    index_in_place(str(tmp_path))
    batches = list(StreamingLoader(str(tmp_path), batch_size=8, seed=2))
    urls = [str(path) for path in sorted(tmp_path.glob("*.tar"))]
    expected = {
        row["__key__"]: (row["cls"], row.get("jpg"))
        for url in urls
        for row in webdataset.WebDataset(url, shardshuffle=False)
    }

    keys = flat(batch["__key__"] for batch in batches)
    assert (
        dict(zip(keys, zip(flat(b["cls"] for b in batches), flat(b["jpg"] for b in batches), strict=True), strict=True))
        == expected
    )
    assert len(keys) == 240
    gc.collect()


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ([("0.a", b"1"), ("1.a", b"1"), ("0.b", b"1"), ("1.b", b"1")], "key '0' do not stand together"),
        ([("0.a", b"1"), ("0.a", b"2")], "key '0' has field 'a' twice"),
        ([("readme", b"1")], "'readme' has no key and field"),
        ([], "without a sample"),
    ],
)
def test_what_is_no_webdataset_is_refused_by_name(tmp_path, members, named):
    (tmp_path / "x.tar").write_bytes(plain_tar(members))

    with pytest.raises(InputError, match=named):
        index_in_place(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


def test_keys_keep_their_folders_and_fields_all_their_dots(tmp_path):
    data = plain_tar([("a/b.c/0.seg.png", b"1"), ("a/b.c/0.JPG", b"2"), ("a/b.c/1.jpg", b"3")])
    schema, (block,) = TarFormat().index(data, "x")

    rows = TarFormat().decode(data[block.offset : block.offset + block.num_bytes], schema).to_pylist()
    assert rows == [
        {"__key__": "a/b.c/0", "seg.png": b"1", "jpg": b"2"},
        {"__key__": "a/b.c/1", "seg.png": None, "jpg": b"3"},
    ]

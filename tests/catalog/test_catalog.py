"""A dataset is a version: visible when it is whole, pinned when it is opened, refused by name when it is not right."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from dataplane.catalog import (
    DatasetVersion,
    DatasetWriter,
    Encoding,
    list_versions,
    parent_for,
    refuse_existing,
)
from dataplane.catalog.index_file import decode_index, encode_index
from dataplane.catalog.version import inside_root
from dataplane.errors import (
    CorruptBlockError,
    DatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    StoreUnavailableError,
    VersionConflictError,
)
from dataplane.plan import Block, BlockIndex
from dataplane.storage import open_store
from tests.catalog.places import opened, rows_of, write
from tests.contracts import AWKWARD_NAMES, SCHEMA, batch_of


def test_what_was_written_is_read(place):
    version = write(place, [batch_of(3), batch_of(4, 3)])
    dataset = opened(place)

    assert dataset.version == version
    assert rows_of(dataset) == pa.Table.from_batches([batch_of(7)])
    assert (version.num_rows, version.num_blocks, version.num_shards) == (7, 2, 1)
    assert version.metadata == {"source": "test"}


def test_a_small_shard_size_makes_more_shards(place):
    version = write(place, [batch_of(50, 50 * n) for n in range(10)], encoding=Encoding(shard_bytes=1000))

    assert version.num_shards > 3
    assert len(set(opened(place).index.shards)) == version.num_shards
    assert rows_of(opened(place)) == pa.Table.from_batches([batch_of(500)])
    assert version.num_bytes == int(opened(place).index.num_bytes.sum())


def test_appending_keeps_what_was_there_and_the_pinned_version(place):
    first = write(place, [batch_of(3)])
    pinned = opened(place)
    second = write(place, [batch_of(4, 3)], parent=parent_for(pinned, SCHEMA))

    assert rows_of(opened(place)) == pa.Table.from_batches([batch_of(7)])
    assert rows_of(pinned) == rows_of(opened(place, version=1)) == pa.Table.from_batches([batch_of(3)])
    assert (second.number, second.parent, second.num_rows) == (2, 1, 7)
    assert list_versions(pinned.store) == [1, 2]
    assert first.fingerprint != second.fingerprint


def test_equal_data_has_an_equal_fingerprint(tmp_path):
    versions = [write((str(tmp_path / name), {}), [batch_of(3), batch_of(2)]) for name in "ab"]

    assert versions[0].fingerprint == versions[1].fingerprint
    assert versions[0].fingerprint != write((str(tmp_path / "c"), {}), [batch_of(2), batch_of(3)]).fingerprint


def test_a_dataset_without_rows_opens_and_is_empty(place):
    version = write(place, [])

    assert (version.num_rows, version.num_shards) == (0, 0)
    assert len(opened(place).index) == 0
    assert rows_of(opened(place)).num_rows == 0


def test_of_concurrent_writers_one_commits_and_the_others_change_nothing(place):
    def commit(number):
        try:
            return write(place, [batch_of(number + 1)]).num_rows
        except VersionConflictError:
            return None

    with ThreadPoolExecutor(6) as pool:
        committed = [rows for rows in pool.map(commit, range(6)) if rows is not None]
    assert committed == [rows_of(opened(place)).num_rows]


def test_an_uncommitted_dataset_is_not_there(place):
    writer = DatasetWriter(open_store(*place), SCHEMA, Encoding(shard_bytes=1))
    writer.write(batch_of(3))

    with pytest.raises(DatasetNotFoundError, match="no dataset here"):
        opened(place)
    writer.commit(metadata={})
    assert opened(place).version.num_rows == 3


def test_a_version_that_does_not_exist_is_named_with_those_that_do(place):
    write(place, [batch_of(3)])

    with pytest.raises(DatasetNotFoundError, match=r"version 7 does not exist; there are 1"):
        opened(place, version=7)


class FailingStore:
    """A store that fails for good with the write number `failing`."""

    def __init__(self, store, failing):
        self.url = store.url
        self._store, self._left = store, failing

    def write(self, path, data):
        self._count(path)
        self._store.write(path, data)

    def create(self, path, data):
        self._count(path)
        self._store.create(path, data)

    def __getattr__(self, name):
        return getattr(self._store, name)

    def _count(self, path):
        self._left -= 1
        if self._left < 0:
            raise StoreUnavailableError(f"{self.url}/{path}: gone")


@pytest.mark.parametrize("failing", range(5))
def test_a_write_that_fails_is_named_and_nothing_becomes_visible(place, failing):
    store = open_store(*place)
    write(place, [batch_of(9)])
    parent = parent_for(opened(place), SCHEMA)

    def append():
        writer = DatasetWriter(FailingStore(store, failing), SCHEMA, Encoding(shard_bytes=1))
        for number in range(3):
            writer.write(batch_of(3, number))
        writer.commit(metadata={}, parent=parent)

    with pytest.raises(StoreUnavailableError, match=r"shards/|index/|versions/"):
        append()
    assert list_versions(store) == [1]
    assert rows_of(opened(place)).num_rows == 9


def test_an_existing_dataset_is_refused(place):
    store = open_store(*place)
    refuse_existing(store)
    write(place, [batch_of(3)])

    with pytest.raises(DatasetExistsError, match="version 1"):
        refuse_existing(store)


def test_rows_of_another_schema_are_not_appended(local):
    write(local, [batch_of(3)])

    with pytest.raises(ValueError, match="text"):
        parent_for(opened(local), pa.schema([("text", pa.int8())]))


@pytest.mark.parametrize("batch", [batch_of(0), batch_of(3).select(["text"])], ids=["empty", "columns"])
def test_a_block_needs_rows_of_the_schema(local, batch):
    with pytest.raises(ValueError, match="a block needs rows"):
        write(local, [batch])


@pytest.mark.parametrize("name", AWKWARD_NAMES)
def test_a_dataset_may_have_any_name(place, name):
    below = f"{place[0]}/{name}", place[1]
    write(below, [batch_of(3)])

    assert rows_of(opened(below)) == pa.Table.from_batches([batch_of(3)])


def test_a_dataset_that_appears_later_is_found(place):
    with pytest.raises(DatasetNotFoundError):
        opened(place)
    write(place, [batch_of(3)])

    assert opened(place).version.number == 1


def test_other_files_in_the_folder_of_versions_are_no_versions(local):
    write(local, [batch_of(3)])
    store = open_store(*local)
    for name in ("versions/notes.txt", "versions/1.json", "versions/00000002.json.bak", "versions2/00000003.json"):
        store.write(name, b"{}")

    assert list_versions(store) == [1]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:99] + b"?" + data[100:]])
def test_a_damaged_index_is_named(local, damage):
    (part,) = write(local, [batch_of(3)]).index
    store = open_store(*local)
    store.write(part.path, damage(store.read(part.path)))

    with pytest.raises(CorruptBlockError, match=f"{part.path}.*expected {part.digest}"):
        _ = opened(local).index


def test_a_missing_index_is_named(local):
    (part,) = write(local, [batch_of(3)]).index
    open_store(*local).delete(part.path)

    with pytest.raises(CorruptBlockError, match=f"{part.path}.*missing"):
        _ = opened(local).index


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"layout": 2}, "layout"),
        ({"kind": "other"}, "kind"),
        ({"arrow_schema": "!!"}, "arrow_schema"),
        ({"arrow_schema": ""}, "arrow_schema"),
        ({"arrow_schema": "AAAA"}, "arrow_schema"),
        ({"num_rows": -1}, "num_rows"),
        ({"surprise": 1}, "surprise"),
        ({"index": [{"path": "../x", "num_bytes": 1, "digest": "0" * 64, "num_blocks": 1, "num_rows": 1}]}, "path"),
    ],
    ids=str,
)
def test_a_version_file_that_is_not_right_names_its_field(local, change, word):
    version = write(local, [batch_of(3)])
    open_store(*local).write("versions/00000001.json", json.dumps({**version.model_dump(), **change}).encode())

    with pytest.raises(DatasetError, match=rf"versions/00000001\.json.*{word}"):
        opened(local)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"{}"])
def test_a_version_file_that_is_none_is_named(data):
    with pytest.raises(DatasetError, match="here"):
        DatasetVersion.from_json(data, "here")


def test_blocks_of_an_unknown_format_are_named(local):
    version = write(local, [batch_of(3)])
    document = {**version.model_dump(), "block_format": "parquet9"}
    open_store(*local).write("versions/00000001.json", json.dumps(document).encode())

    with pytest.raises(DatasetError, match="parquet9"):
        _ = opened(local).format


def test_a_version_survives_its_file(local):
    version = write(local, [batch_of(3)])

    assert DatasetVersion.from_json(version.to_json(), "here") == version
    assert version.schema == SCHEMA


def index_of(paths):
    return BlockIndex.from_blocks(
        Block(
            shard=path,
            offset=8 * number,
            num_bytes=2**40 + number,
            num_rows=number,
            raw_bytes=number,
            digest=bytes([number]) * 32,
        )
        for number, path in enumerate(paths)
    )


PATHS = ["shards/a.arrow", "b", "shards/a.arrow", "back\\slash", "é/[x]", "b"]


def test_an_index_survives_its_file():
    index = index_of(PATHS)
    found = decode_index(encode_index(index).to_pybytes(), "here")

    assert [found[number] for number in range(len(found))] == [index[number] for number in range(len(index))]


def test_parts_of_an_index_are_concatenated_in_order():
    index = index_of(PATHS)
    parts = [index_of(PATHS), BlockIndex.from_blocks([]), index_of(["c"])]
    found = BlockIndex.concatenate(parts)

    assert [found[n] for n in range(len(found))] == [
        *(index[n] for n in range(len(index))),
        index_of(["c"])[0],
    ]
    assert found.total_rows == index.total_rows


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a/", "a\0b", ".."])
def test_paths_that_lead_out_of_the_dataset_are_refused(path):
    with pytest.raises(ValueError, match="leads out"):
        inside_root(path)
    with pytest.raises(DatasetError, match="leads out"):
        decode_index(encode_index(index_of([path])).to_pybytes(), "here")


def _columns():
    batch = pa.ipc.open_file(encode_index(index_of(["a", "b"]))).read_all().combine_chunks().to_batches()[0]
    return batch.schema, {name: batch[name] for name in batch.schema.names}


def _file_of(schema, columns):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(list(columns.values()), schema=schema))
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("name", _columns()[1])
def test_an_index_with_missing_values_is_refused(name):
    schema, columns = _columns()
    columns[name] = pa.nulls(2, schema.field(name).type)

    with pytest.raises(DatasetError, match=f"here.*{name}"):
        decode_index(_file_of(schema, columns), "here")


@pytest.mark.parametrize("name", ["offset", "num_bytes", "num_rows", "raw_bytes"])
def test_an_index_with_negative_numbers_is_refused(name):
    schema, columns = _columns()
    columns[name] = pa.array(np.array([1, -5]))

    with pytest.raises(DatasetError, match=f"here.*{name}.*-5"):
        decode_index(_file_of(schema, columns), "here")


@pytest.mark.parametrize("data", [b"", b"ARROW1", bytes(100)])
def test_a_file_that_is_no_index_is_named(data):
    with pytest.raises(DatasetError, match="here"):
        decode_index(data, "here")


def test_an_arrow_file_with_other_columns_is_no_index():
    schema = pa.schema([("x", pa.int8())])

    with pytest.raises(DatasetError, match=r"here.*\['x'\]"):
        decode_index(_file_of(schema, {"x": pa.array([1], pa.int8())}), "here")

"""Writers make shards anywhere; a commit names what is whole and in the store, after what others committed."""

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pyarrow as pa
import pytest

from dataplane.catalog import Encoding, Shard, ShardWriter, append_shards, commit_shards, list_versions
from dataplane.errors import DatasetError, DatasetNotFoundError
from dataplane.storage import open_store
from tests.catalog.places import opened, rows_of, write
from tests.contracts import SCHEMA, batch_of

OF_ONE_BLOCK = Encoding(shard_bytes=1)


def shards_of(place, batches, encoding=OF_ONE_BLOCK):
    writer = ShardWriter(open_store(*place), SCHEMA, encoding)
    for batch in batches:
        writer.write(batch)
    return writer.finish()


def processes(count):
    """Fresh processes, forked from one that has imported this module and used no store."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(count, context)


def commit(place, shards, **options):
    return commit_shards(
        open_store(*place), shards, schema=SCHEMA, block_format="arrow", metadata={}, **{"parent": None, **options}
    )


def shards_as_text(place, first):
    """What a worker process does: writes, and says in words what it wrote."""
    return json.dumps([shard.to_json() for shard in shards_of(place, [batch_of(2, first), batch_of(1, first + 2)])])


def test_what_workers_wrote_is_committed_by_another_process(place):
    with processes(2) as pool:
        texts = list(pool.map(shards_as_text, [place] * 3, [0, 3, 6]))
    shards = [Shard.from_json(document) for text in texts for document in json.loads(text)]

    with pytest.raises(DatasetNotFoundError):
        opened(place)
    version = commit(place, shards)
    assert rows_of(opened(place)) == pa.Table.from_batches([batch_of(9)])
    assert version.num_shards == len(shards) == 6


def test_a_writer_and_a_commit_make_what_one_writer_makes(tmp_path):
    one, other = (str(tmp_path / "one"), {}), (str(tmp_path / "other"), {})
    batches = [batch_of(50, 50 * number) for number in range(5)]
    encoding = Encoding(shard_bytes=1500)

    assert (
        commit(one, shards_of(one, batches, encoding)).fingerprint
        == write(other, batches, encoding=encoding).fingerprint
    )
    assert [s.to_json() for s in shards_of(one, batches, encoding)] == [
        s.to_json() for s in shards_of(other, batches, encoding)
    ]


@pytest.mark.parametrize(("num_blocks", "num_shards"), [(0, 0), (1, 1), (2, 2)])
def test_no_shard_is_empty(place, num_blocks, num_shards):
    shards = shards_of(place, [batch_of(3, 3 * number) for number in range(num_blocks)])
    version = commit(place, shards)

    assert len(shards) == version.num_shards == num_shards == len(open_store(*place).list("shards"))
    assert rows_of(opened(place)).num_rows == 3 * num_blocks


def test_a_finished_writer_may_be_asked_again(local):
    writer = ShardWriter(open_store(*local), SCHEMA)
    writer.write(batch_of(3))

    assert writer.finish() == writer.finish()
    assert writer.num_bytes == writer.finish()[0].num_bytes


@pytest.mark.parametrize("which", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_a_shard_that_is_not_whole_in_the_store_is_named_and_nothing_is_committed(place, which, harm):
    store = open_store(*place)
    shards = shards_of(place, [batch_of(3, 3 * number) for number in range(3)])
    path = shards[which].path
    if harm == "cut":
        store.write(path, store.read(path)[:-1])
    else:
        store.delete(path)

    with pytest.raises(DatasetError, match=rf"{path}: .*nothing was committed"):
        commit(place, shards)
    assert list_versions(store) == []
    assert store.list("index") == []


@pytest.mark.parametrize(
    "change",
    [{"path": "../x"}, {"path": None}, {"blocks": [[1, 2]]}, {"blocks": [[0, 1, 1, 1, "zz"]]}, {"num_bytes": "many"}],
    ids=str,
)
def test_a_description_that_is_none_is_refused(local, change):
    (shard,) = shards_of(local, [batch_of(3)])

    with pytest.raises(DatasetError, match="not the description of a shard"):
        Shard.from_json({**shard.to_json(), **change})
    with pytest.raises(DatasetError, match="not the description of a shard"):
        Shard.from_json({})


def test_rows_of_another_schema_or_format_are_not_committed_after_others(local):
    parent = write(local, [batch_of(3)])
    store = open_store(*local)

    with pytest.raises(ValueError, match="text"):
        commit_shards(store, [], schema=pa.schema([]), block_format="arrow", metadata={}, parent=parent)
    with pytest.raises(ValueError, match="its blocks are arrow, those to append tar"):
        commit_shards(store, [], schema=SCHEMA, block_format="tar", metadata={}, parent=parent)


def append(place, number):
    """What each of several processes does at once; the number of the version that it made."""
    shards = shards_of(place, [batch_of(2, 2 * number)])
    options = {"schema": SCHEMA, "block_format": "arrow", "metadata": {"writer": str(number)}}
    return append_shards(open_store(*place), shards, **options).number


@pytest.mark.parametrize("rows_before", [0, 3])
def test_of_eight_processes_that_append_at_once_nothing_is_lost(place, rows_before):
    if rows_before:
        write(place, [batch_of(rows_before, 1000)])
    with processes(8) as pool:
        numbers = list(pool.map(append, [place] * 8, range(8)))

    store = open_store(*place)
    assert sorted(numbers) == [number + bool(rows_before) for number in range(1, 9)]
    assert list_versions(store) == list(range(1, 9 + bool(rows_before)))
    texts = rows_of(opened(place))["text"].to_pylist()
    order = sorted(range(8), key=numbers.__getitem__)
    assert texts[rows_before:] == [f"row {row}" for number in order for row in (2 * number, 2 * number + 1)]


def test_rows_of_another_schema_are_not_appended_in_a_race_either(local):
    write(local, [batch_of(3)])
    other = SCHEMA.append(pa.field("more", pa.int8()))

    with pytest.raises(ValueError, match="more"):
        append_shards(open_store(*local), [], schema=other, block_format="arrow", metadata={})


def wide(num_columns, num_bytes):
    """A row with many columns that share their memory: it weighs more than it takes."""
    text = pa.array(["x" * num_bytes])
    return pa.record_batch({f"column {number}": text for number in range(num_columns)})


def test_a_block_past_the_limit_is_refused_at_once_with_its_size(local):
    batch = wide(128, 16 << 20)
    writer = ShardWriter(open_store(*local), batch.schema)

    with pytest.raises(ValueError, match=rf"1 rows takes {batch.nbytes} bytes, more than 2147483647, the limit"):
        writer.write(batch)
    assert writer.finish() == []


@pytest.mark.parametrize("form", ["arrow", "tar"])
def test_a_shard_ends_in_time_whatever_size_is_asked_for(local, monkeypatch, form):
    monkeypatch.setattr("dataplane.catalog.shards.MOST_SHARD_BYTES", 3000)
    shards = shards_of(local, [batch_of(50, 50 * n) for n in range(9)], Encoding(format=form, shard_bytes=1 << 60))

    assert len(shards) > 1
    assert all(shard.num_bytes - shard.blocks[-1].num_bytes < 3000 + 1024 for shard in shards)
    assert (
        commit_shards(open_store(*local), shards, schema=SCHEMA, block_format=form, metadata={}).num_rows
        == rows_of(opened(local)).num_rows
        == 450
    )


@pytest.mark.parametrize("failing", range(3))
def test_an_exception_on_the_way_to_a_shard_leaves_earlier_ones_and_nothing_half(place, failing):
    earlier = shards_of(place, [batch_of(3)])
    store = open_store(*place)
    before = {path: store.read(path) for path in store.list("")}
    writer = ShardWriter(store, SCHEMA)
    for number in range(failing):
        writer.write(batch_of(5, 5 * number))
    with pytest.raises(ValueError, match="a block needs rows"):
        writer.write(batch_of(0))

    assert {path: store.read(path) for path in store.list("")} == before
    assert commit(place, earlier).num_rows == 3

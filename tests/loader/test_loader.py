import gc
import json
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from itertools import islice

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dataplane import DatasetWriter, Position, Ragged, StreamingDataset, StreamingLoader, Topology, open_dataset
from dataplane.catalog import commit_blocks
from dataplane.errors import CorruptBlockError, DatasetNotFoundError, StateMismatchError
from dataplane.storage import open_store
from tests.datasets import expected_starts, expected_text, write_samples
from tests.processes import in_child
from tests.resume import assert_resumes_exactly, flat, ids_of

BLOCK_ROWS = [3, 5, 4, 7, 1, 9, 6, 2, 8, 8]
NUM_ROWS = sum(BLOCK_ROWS)  # 53: six global batches of 8 and a rest of 5
WORLD_SIZES = [1, 2, 3, 5, 8]

# Torch warns of more workers than cores; here they are wanted.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    return write_samples(str(tmp_path_factory.mktemp("samples")), BLOCK_ROWS)


def loaders(url, world_size, **options):
    return [
        StreamingLoader(url, topology=Topology(rank=rank, world_size=world_size), **options)
        for rank in range(world_size)
    ]


def global_batches(url, world_size, **options):
    """Each step's ids over all ranks, in rank order; checks that all ranks take the same number of steps."""
    by_rank = [ids_of(loader) for loader in loaders(url, world_size, **options)]
    return [flat(parts) for parts in zip(*by_rank, strict=True)]


@pytest.mark.parametrize("columns", [None, ["id"], ["tokens", "text"], ["starts", "id"]])
def test_every_column_comes_back_as_it_was_written(url, columns):
    for batch in StreamingLoader(url, batch_size=4, columns=columns):
        assert set(batch) - {"is_filler"} == set(columns or ["id", "tokens", "starts", "text"])
        if columns is not None and "id" not in columns:
            continue
        ids = batch["id"].tolist()
        if columns is None:
            assert batch["tokens"].dtype == torch.uint16
            assert batch["tokens"].tolist() == [[number] * 8 for number in ids]
            assert batch["text"] == [expected_text(number) for number in ids]
        if columns is None or "starts" in columns:
            assert [row.tolist() for row in batch["starts"].rows()] == [expected_starts(number) for number in ids]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("batch_size", [1, 2, 5, 60])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_delivers_every_sample_once(url, world_size, batch_size, shuffle):
    batches = global_batches(url, world_size, batch_size=batch_size, shuffle=shuffle)

    assert sorted(flat(batches)) == list(range(NUM_ROWS))


@pytest.mark.parametrize(("drop_last", "steps", "delivered"), [(True, 6, 48), (False, 7, 53)])
def test_dropped_and_filled_samples_are_counted(url, drop_last, steps, delivered, caplog):
    ranks = loaders(url, 4, batch_size=2, drop_last=drop_last)
    by_rank = [list(loader) for loader in ranks]

    assert [len(batches) for batches in by_rank] == [steps] * 4
    assert sum(len(ids) for batches in by_rank for ids in ids_of(batches)) == delivered
    assert sum(batch.num_filler for batches in by_rank for batch in batches) == (0 if drop_last else 3)
    assert ranks[0].metrics.snapshot().get("dropped_samples", 0) == (5 if drop_last else 0)
    assert ("left out 5 of 53" in caplog.text) == drop_last


def test_filler_is_marked_in_the_batch(url):
    last = [list(loader)[-1] for loader in loaders(url, 4, batch_size=2)]

    assert [int(batch["is_filler"].sum()) for batch in last] == [batch.num_filler for batch in last]
    assert all(len(batch["id"]) == 2 for batch in last)


@pytest.mark.parametrize("world_size", [2, 3, 4, 6])
def test_global_batches_do_not_depend_on_the_world_size(url, world_size):
    assert global_batches(url, world_size, batch_size=12 // world_size) == global_batches(url, 1, batch_size=12)


@pytest.mark.parametrize(
    "options", [{}, {"decode_threads": 7, "fetch_threads": 1}, {"prefetch_batches": 1}, {"memory_bytes": 9 << 20}]
)
def test_the_order_does_not_depend_on_threads_or_memory(url, options):
    assert ids_of(StreamingLoader(url, batch_size=4, **options)) == ids_of(StreamingLoader(url, batch_size=4))


def test_in_order_means_the_writing_order(url):
    loader = StreamingLoader(url, batch_size=5, shuffle=False)

    assert [flat(ids_of(loader)) for _ in range(2)] == [list(range(NUM_ROWS))] * 2


def test_epochs_and_seeds_differ_and_repeat(url):
    loader = StreamingLoader(url, batch_size=4, seed=1)
    epochs = [flat(ids_of(loader)) for _ in range(3)]
    again = StreamingLoader(url, batch_size=4, seed=1)
    again.set_epoch(2)

    assert len({tuple(order) for order in [*epochs, flat(ids_of(StreamingLoader(url, batch_size=4, seed=2)))]}) == 4
    assert flat(ids_of(again)) == epochs[2]


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"shuffle": False}, {"endless": True}])
@pytest.mark.parametrize("stops", [[0], [1], [2, 3, 5, 9, 11], [13], [14, 15], list(range(1, 30))])
def test_any_stop_resumes_exactly(url, options, stops):
    class Passes:
        """A loader as one sequence over epochs."""

        def __init__(self):
            self.loader = StreamingLoader(url, batch_size=4, **options)
            self.state_dict, self.load_state_dict = self.loader.state_dict, self.loader.load_state_dict
            self.close = self.loader.close

        def __iter__(self):
            while True:
                yield from self.loader

    assert_resumes_exactly(Passes, stops, steps=33)


@settings(max_examples=40, deadline=None)
@given(
    before=st.tuples(st.sampled_from(WORLD_SIZES), st.integers(1, 7)),
    after=st.tuples(st.sampled_from(WORLD_SIZES), st.integers(1, 7)),
    stop=st.integers(0, 9),
    shuffle=st.booleans(),
)
def test_resuming_at_any_size_loses_and_repeats_nothing(url, before, after, stop, shuffle):
    def started(size, state=None):
        ranks = loaders(url, size[0], batch_size=size[1], shuffle=shuffle)
        for loader in ranks if state else []:
            loader.load_state_dict(state)
        return ranks

    first = started(before)
    iterators = [iter(loader) for loader in first]
    head = [ids for iterator in iterators for ids in ids_of(islice(iterator, stop))]
    states = [loader.state_dict() for loader in first]
    for loader in first:
        loader.close()
    assert all(state == states[0] for state in states)
    tail = [] if states[0]["epoch"] else [ids for loader in started(after, states[0]) for ids in ids_of(loader)]

    assert sorted(flat(head + tail)) == list(range(NUM_ROWS))


def test_the_end_of_an_epoch_is_the_start_of_the_next(url):
    loader = StreamingLoader(url, batch_size=4)
    for _ in range(2):
        list(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    fresh = StreamingLoader(url, batch_size=4)
    fresh.load_state_dict(state)

    assert fresh.state_dict() == state
    assert fresh.position == Position(2, 0)
    assert next(iter(fresh))["id"].tolist() == next(iter(loader))["id"].tolist()
    loader.close()
    fresh.close()


def test_state_is_what_the_loop_received(url):
    loader = StreamingLoader(url, batch_size=2, prefetch_batches=8)
    iterator = iter(loader)
    received = ids_of(islice(iterator, 3))
    resumed = StreamingLoader(url, batch_size=2)
    resumed.load_state_dict(loader.state_dict())

    assert loader.position == Position(0, 6)
    assert sorted(flat(received + ids_of(resumed))) == list(range(NUM_ROWS))
    loader.close()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 5}, "seed"),
        ({"shuffle": False}, "shuffle"),
        ({"num_lanes": 3}, "num_lanes"),
        ({"version": 2}, "version"),
    ],
)
def test_a_state_of_another_order_is_refused(url, change, named):
    state = StreamingLoader(url, batch_size=2).state_dict()

    with pytest.raises(StateMismatchError, match=named):
        StreamingLoader(url, batch_size=2, **change).load_state_dict(state)


def test_a_state_of_other_data_is_refused(url, tmp_path):
    state = StreamingLoader(url, batch_size=2).state_dict()
    other = write_samples(str(tmp_path), BLOCK_ROWS, salt=1)

    with pytest.raises(StateMismatchError, match="other data"):
        StreamingLoader(other, batch_size=2).load_state_dict(state)


def test_a_rewritten_dataset_is_never_served_from_the_cache_of_the_old(tmp_path):
    import shutil

    url, cache = str(tmp_path / "data"), tmp_path / "cache"
    for salt in (0, 1000):
        write_samples(url, BLOCK_ROWS, salt=salt)
        for batch in StreamingLoader(url, batch_size=4, cache_dir=cache, cache_bytes=1 << 30):
            assert batch["tokens"][:, 0].tolist() == (batch["id"] + salt).tolist()
        shutil.rmtree(url)


def test_with_a_full_cache_the_store_is_not_asked_for_blocks(tmp_path):
    import shutil

    url = write_samples(str(tmp_path / "data"), BLOCK_ROWS)
    options = {"batch_size": 4, "cache_dir": tmp_path / "cache", "cache_bytes": 1 << 30}
    expected = ids_of(StreamingLoader(url, **options))
    shutil.rmtree(f"{url}/shards")

    assert ids_of(StreamingLoader(url, **options)) == expected


@pytest.mark.parametrize("num_workers", [0, 1, 4])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_data_loader_delivers_the_same(url, num_workers, method):
    if num_workers != 1 and method != "fork":
        pytest.skip("start methods are tried with one worker, worker counts with fork")
    dataset = StreamingDataset(url, batch_size=4)
    context = method if num_workers else None
    batches = list(DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=context))

    assert ids_of(batches) == ids_of(StreamingLoader(url, batch_size=4))
    assert [batch.position.consumed for batch in batches[:-1]] == list(range(4, NUM_ROWS, 4))


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_data_loader_resumes_from_a_batch(url, num_workers):
    dataset = StreamingDataset(url, batch_size=4)
    received = list(islice(DataLoader(dataset, batch_size=None, num_workers=num_workers), 5))
    resumed = StreamingDataset(url, batch_size=4)
    resumed.load_state_dict(dataset.state_dict(received[-1]))
    rest = list(DataLoader(resumed, batch_size=None, num_workers=num_workers))

    assert ids_of(received + rest) == ids_of(StreamingLoader(url, batch_size=4))


def test_batches_may_be_kept(url):
    kept = list(StreamingLoader(url, batch_size=4))

    assert all(batch["tokens"][:, 0].tolist() == batch["id"].tolist() for batch in kept)


def test_leaving_a_loop_leaves_no_thread(url):
    before = threading.active_count()
    for _ in StreamingLoader(url, batch_size=2):
        break
    for _ in range(3):
        loader = StreamingLoader(url, batch_size=2, endless=True)
        next(iter(loader))
    gc.collect()

    assert threading.active_count() == before


def test_an_interpreter_that_exits_in_mid_epoch_does_not_hang(url):
    program = f"""
from dataplane import StreamingLoader
iterator = iter(StreamingLoader({url!r}, batch_size=2, endless=True))
print(next(iterator)["id"].tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_damaged_block_stops_the_loop_and_is_named(tmp_path):
    url = write_samples(str(tmp_path), BLOCK_ROWS)
    shard = sorted((tmp_path / "shards").iterdir())[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)

    with pytest.raises(CorruptBlockError, match=f"{shard.name}.*expected"):
        list(StreamingLoader(url, batch_size=2))


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"columns": ["nothing"]}, ValueError, "nothing.*id, tokens"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"version": 9}, DatasetNotFoundError, "version 9 does not exist; there are 1"),
        ({"memory_bytes": 1}, ValueError, "memory_bytes=1 is too little.*give at least"),
        ({"cache_dir": "unused", "cache_bytes": 1}, ValueError, "cache_bytes=1 is less than the largest block"),
        ({"endless": True, "drop_last": True}, ValueError, "exclude each other"),
    ],
)
def test_mistakes_are_named(url, options, error, named):
    with pytest.raises(error, match=named):
        list(StreamingLoader(url, **{"batch_size": 2, **options}))


def test_a_missing_dataset_is_named(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="no dataset here"):
        list(StreamingLoader(str(tmp_path / "nothing"), batch_size=2))


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_epoch_from_s3_is_exact(s3, s3_url, tmp_path, world_size):
    options = {"storage_options": s3.storage_options, "cache_dir": tmp_path, "cache_bytes": 1 << 30}
    write_samples(s3_url, BLOCK_ROWS, options=s3.storage_options)

    batches = global_batches(s3_url, world_size, batch_size=4, **options)
    assert sorted(flat(batches)) == list(range(NUM_ROWS))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_s3_after_their_parent_did(s3, s3_url, method):
    write_samples(s3_url, BLOCK_ROWS, options=s3.storage_options)
    dataset = StreamingDataset(s3_url, batch_size=4, storage_options=s3.storage_options, cache_dir=None)
    expected = ids_of(dataset)

    batches = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method, timeout=60)
    assert ids_of(batches) == expected


@pytest.mark.parametrize(("block_rows", "world_size", "batch_size"), [(8, 2, 2), (16, 4, 4), (3, 1, 8)])
def test_an_endless_run_resumes_across_epochs_with_more_blocks_than_memory(
    tmp_path, block_rows, world_size, batch_size
):
    """A block that is read in two windows must not keep its memory between them."""
    num_blocks = 731
    url = write_samples(str(tmp_path), [block_rows] * num_blocks, shard_bytes=1 << 20)
    loader = StreamingLoader(
        url, batch_size=batch_size, topology=Topology(rank=0, world_size=world_size), endless=True, columns=["id"]
    )
    half = loader.state_dict() | {"consumed": num_blocks * block_rows // 2}
    loader.load_state_dict(half)
    steps = 2 * num_blocks * block_rows // (batch_size * world_size)
    ids = flat(ids_of(islice(loader, steps)))

    assert max(Counter(ids).values()) <= 3
    loader.close()


def test_a_finite_pass_always_ends_its_epoch(url):
    state = StreamingLoader(url, batch_size=4).state_dict() | {"consumed": 44}
    loader = StreamingLoader(url, batch_size=16, drop_last=True)
    loader.load_state_dict(state)

    assert (list(loader), loader.position) == ([], Position(1, 0))
    assert loader.metrics.snapshot()["dropped_samples"] == 9


def test_drop_last_of_everything_is_refused(url):
    with pytest.raises(ValueError, match="53 rows, fewer than a global batch of 64"):
        list(StreamingLoader(url, batch_size=64, drop_last=True))


def test_a_batch_knows_the_version_it_came_from(tmp_path):
    url = write_samples(str(tmp_path), BLOCK_ROWS)
    dataset = StreamingDataset(url, batch_size=4)
    batch = next(iter(dataset))
    version = open_dataset(url).version
    commit_blocks(
        open_store(url), [], schema=version.schema, block_format="arrow", num_shards=0, metadata={}, parent=version
    )

    assert dataset.state_dict(batch)["sources"][0]["version"] == 1
    assert dataset.state_dict(batch) == StreamingLoader(url, batch_size=4, version=1).state_dict() | {"consumed": 4}


def test_persistent_workers_follow_set_epoch(url):
    dataset = StreamingDataset(url, batch_size=4)
    workers = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    epochs = []
    for epoch in (2, 0, 1):
        dataset.set_epoch(epoch)
        epochs.append(ids_of(workers))
    loader = StreamingLoader(url, batch_size=4)
    expected = [ids_of(loader) for _ in range(3)]

    assert epochs == [expected[2], expected[0], expected[1]]


def test_a_block_with_other_rows_than_its_index_says_is_refused(tmp_path):
    url = write_samples(str(tmp_path), [3, 3])
    dataset = open_dataset(url)
    lying = [replace(dataset.index[number], num_rows=8) for number in range(2)]
    version = dataset.version
    commit_blocks(
        dataset.store, lying, schema=version.schema, block_format="arrow", num_shards=0, metadata={}, parent=version
    )

    with pytest.raises(CorruptBlockError, match="holds 3 rows, the index says 8"):
        list(StreamingLoader(url, batch_size=2))


def test_a_misspelt_option_is_answered_with_the_nearest(url):
    with pytest.raises(TypeError, match="no option 'sedd'; did you mean seed"):
        StreamingLoader(url, batch_size=2, sedd=1)


def test_lists_of_numbers_are_always_ragged_and_nulls_are_named(tmp_path):
    lists = pa.array([[1.0, None], [], [2.0]] * 4, pa.list_(pa.float32()))
    for name, column in (
        ("floats", lists),
        ("null_list", pa.array([[1], None] * 6)),
        ("null_item", pa.array([[1, None]] * 12)),
    ):
        schema = pa.schema([pa.field("x", column.type)])
        writer = DatasetWriter(open_store(str(tmp_path / name)), schema)
        writer.write(pa.record_batch([column], schema=schema))
        writer.commit(metadata={})

    assert all(isinstance(batch["x"], Ragged) for batch in StreamingLoader(str(tmp_path / "floats"), batch_size=1))
    for name in ("null_list", "null_item"):
        with pytest.raises(ValueError, match=r"column 'x' holds .* null"):
            list(StreamingLoader(str(tmp_path / name), batch_size=12))


def test_few_batches_wait_whatever_their_size(url):
    loader = StreamingLoader(url, batch_size=1, prefetch_batches=2, endless=True, columns=["id"])
    iterator = iter(loader)
    first = next(iterator)
    kept = [first, *islice(iterator, 20)]

    assert len({batch["id"].untyped_storage().data_ptr() for batch in kept}) == len(kept)
    loader.close()


def test_a_forked_child_leaves_its_parents_claim(url, tmp_path):
    loader = StreamingLoader(url, batch_size=2, cache_dir=tmp_path, cache_bytes=1 << 30)
    iterator = iter(loader)
    next(iterator)

    def let_go():
        iterator.close()
        return len(list((tmp_path / "claims").iterdir()))

    assert in_child("fork", let_go) == 1
    loader.close()
    assert list((tmp_path / "claims").iterdir()) == []


def test_a_pass_that_another_ended_does_not_seem_complete(url):
    loader = StreamingLoader(url, batch_size=4)

    with pytest.raises(RuntimeError, match="ended by another iteration"):
        list(zip(loader, loader, strict=False))


def test_a_state_beyond_the_dataset_is_refused(url):
    state = StreamingLoader(url, batch_size=4).state_dict() | {"consumed": 10**9}
    loader = StreamingLoader(url, batch_size=4)

    with pytest.raises(StateMismatchError, match="has only 53"):
        loader.load_state_dict(state)
    assert loader.position == Position(0, 0)


def test_workers_that_start_around_an_append_read_one_version(tmp_path):
    url = write_samples(str(tmp_path), BLOCK_ROWS)
    version = open_dataset(url).version
    dataset = StreamingDataset(url, batch_size=4)
    first = next(iter(dataset))
    more = [open_dataset(url).index[0]]
    commit_blocks(
        open_store(url), more, schema=version.schema, block_format="arrow", num_shards=1, metadata={}, parent=version
    )

    batches = list(DataLoader(dataset, batch_size=None, num_workers=2))
    assert {batch.origin["sources"][0]["version"] for batch in [first, *batches]} == {1}
    assert sorted(flat(ids_of(batches))) == list(range(NUM_ROWS))


def test_a_column_named_like_the_mark_of_fillers_is_refused(tmp_path):
    schema = pa.schema([pa.field("is_filler", pa.int64(), nullable=False)])
    writer = DatasetWriter(open_store(str(tmp_path)), schema)
    writer.write(pa.record_batch([pa.array([1, 2])], schema=schema))
    writer.commit(metadata={})

    with pytest.raises(ValueError, match="column 'is_filler'"):
        list(StreamingLoader(str(tmp_path), batch_size=1))
    assert len(list(StreamingLoader(str(tmp_path), batch_size=1, drop_last=True))) == 2

"""Mixtures through the loader: real datasets, real batches."""

import json
from collections import Counter
from itertools import islice

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dataplane import DatasetWriter, Source, StreamingDataset, StreamingLoader, Topology
from dataplane.errors import StateMismatchError
from dataplane.storage import open_store
from tests.datasets import SAMPLE_SCHEMA, expected_starts, expected_text, sample_rows, write_samples
from tests.resume import assert_resumes_exactly, flat, ids_of

# Torch warns of more workers than cores; here they are wanted.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ROWS = [[3, 5, 4, 7], [2, 2, 9], [1, 4]]
SIZES = [19, 13, 5]
WEIGHTS = [0.5, 0.3, 0.2]


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return [
        write_samples(str(folder / f"part{number}"), rows, first_id=1000 * number) for number, rows in enumerate(ROWS)
    ]


def weighted(urls, weights=WEIGHTS):
    return [Source(url, weight=weight) for url, weight in zip(urls, weights, strict=True)]


def every_id():
    return [1000 * source + number for source, size in enumerate(SIZES) for number in range(size)]


def global_batches(data, world_size, batch_size, *, state=None, limit=None, **options):
    ranks = [
        StreamingLoader(data, batch_size=batch_size, topology=Topology(rank=rank, world_size=world_size), **options)
        for rank in range(world_size)
    ]
    for loader in ranks if state is not None else []:
        loader.load_state_dict(state)
    by_rank = [ids_of(islice(loader, limit)) for loader in ranks]
    states = [loader.state_dict() for loader in ranks]
    for loader in ranks:
        loader.close()
    assert all(each == states[0] for each in states)
    return [flat(parts) for parts in zip(*by_rank, strict=True)], states[0]


def test_columns_of_every_source_come_back_as_they_were_written(urls):
    for batch in StreamingLoader(urls, batch_size=4):
        ids = batch["id"].tolist()
        assert batch["tokens"].tolist() == [[number] * 8 for number in ids]
        assert batch["text"] == [expected_text(number) for number in ids]
        assert [row.tolist() for row in batch["starts"].rows()] == [expected_starts(number) for number in ids]


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_several_sources_without_weights_are_one_dataset(urls, world_size):
    for epoch in range(2):
        batches, state = global_batches(
            urls, world_size, 2, state={**StreamingLoader(urls, batch_size=2).state_dict(), "epoch": epoch}
        )
        assert sorted(flat(batches)) == every_id()
        assert (state["epoch"], state["consumed"]) == (epoch + 1, 0)


def test_a_loader_knows_how_long_a_mixture_is(urls):
    assert StreamingLoader(urls, batch_size=2).num_rows == sum(SIZES)
    assert len(StreamingLoader(urls, batch_size=2, drop_last=True)) == sum(SIZES) // 2
    with pytest.raises(TypeError, match="no length"):
        len(StreamingLoader(weighted(urls), batch_size=2, endless=True))
    with pytest.raises(TypeError, match="never stops"):
        StreamingLoader(weighted(urls), batch_size=2, endless=True).num_rows  # noqa: B018


@settings(max_examples=25, deadline=None)
@given(
    before=st.tuples(st.sampled_from([1, 2, 3]), st.integers(1, 5)),
    after=st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 5)),
    stop=st.integers(0, 8),
    shuffle=st.booleans(),
)
def test_any_stop_goes_on_with_the_same_sequence_at_any_size(urls, before, after, stop, shuffle):
    options = {"shuffle": shuffle, "endless": True, "num_lanes": 6 if shuffle else 1}
    single = flat(global_batches(weighted(urls), 1, 1, limit=80, **options)[0])
    head, state = global_batches(weighted(urls), *before, limit=stop, **options)
    tail, _ = global_batches(weighted(urls), *after, state=json.loads(json.dumps(state)), limit=3, **options)

    done = 0
    for batch in head + tail:
        assert len(single) < done + len(batch) or sorted(batch) == sorted(single[done : done + len(batch)])
        done += len(batch)


@pytest.mark.parametrize("options", [{"endless": True}, {"stop": "first_exhausted"}, {"stop": "all_exhausted"}])
def test_the_pieces_of_an_interrupted_mixture_are_the_whole(urls, options):
    class Passes:
        def __init__(self):
            self.loader = StreamingLoader(weighted(urls), batch_size=4, **options)
            self.state_dict, self.load_state_dict = self.loader.state_dict, self.loader.load_state_dict
            self.close = self.loader.close

        def __iter__(self):
            while True:
                yield from self.loader

    assert_resumes_exactly(Passes, [0, 2, 3, 9, 12], steps=20)


def test_proportions_are_exact(urls):
    loader = StreamingLoader(weighted(urls), batch_size=10, endless=True)
    counts = [Counter(number // 1000 for number in ids) for ids in ids_of(islice(loader, 20))]
    loader.close()

    for done in range(1, 21):
        total = sum(counts[:done], Counter())
        assert all(abs(total[source] - weight * done * 10) < 2 for source, weight in enumerate(WEIGHTS))


def test_what_the_first_exhausted_leaves_out_is_counted(urls, caplog):
    loader = StreamingLoader(weighted(urls), batch_size=1, stop="first_exhausted")
    delivered = flat(ids_of(loader))

    assert len(set(delivered)) == len(delivered) == loader.num_rows
    assert loader.metrics.snapshot()["unused_samples"] == sum(SIZES) - len(delivered)
    assert "epoch 0 ended with the first source used up" in caplog.text


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_loader_delivers_the_same_mixture(urls, num_workers):
    dataset = StreamingDataset(weighted(urls), batch_size=3)
    batches = list(DataLoader(dataset, batch_size=None, num_workers=num_workers))

    assert ids_of(batches) == ids_of(StreamingLoader(weighted(urls), batch_size=3))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda urls: weighted(urls, [0.5, 0.3, 0.1]), r"weight of source part2=0.2 and the loader has .*=0.1"),
        (lambda urls: weighted(urls[:2], [0.5, 0.3]), r"sources=\['part0', 'part1', 'part2'\]"),
        (lambda urls: weighted([urls[1], urls[0], urls[2]]), r"holds other data.*source part0"),
        (lambda urls: urls, "weight of source part0=0.5 and the loader has .*=None"),
    ],
)
def test_a_state_of_another_mixture_is_refused(urls, change, named):
    state = StreamingLoader(weighted(urls), batch_size=2).state_dict()

    with pytest.raises(StateMismatchError, match=named):
        StreamingLoader(change(urls), batch_size=2).load_state_dict(state)


def test_a_state_of_another_stop_rule_is_refused(urls):
    state = StreamingLoader(weighted(urls), batch_size=2).state_dict()

    with pytest.raises(StateMismatchError, match="stop=all_exhausted and the loader has stop=never"):
        StreamingLoader(weighted(urls), batch_size=2, endless=True).load_state_dict(state)


def test_a_schedule_survives_its_state(urls):
    sources = [Source(urls[0], weight=[(0, 1), (8, 0)]), Source(urls[1], weight=[(0, 0), (8, 1)])]
    loader = StreamingLoader(sources, batch_size=4, endless=True)
    head = ids_of(islice(loader, 1))
    resumed = StreamingLoader(sources, batch_size=4, endless=True)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    rest = ids_of(islice(resumed, 2))
    loader.close()
    resumed.close()

    assert [[number // 1000 for number in ids] for ids in head + rest] == [[0] * 4, [0] * 4, [1] * 4]


def test_sources_that_differ_in_a_column_are_refused_unless_it_is_left_out(urls, tmp_path):
    schema = pa.schema([SAMPLE_SCHEMA.field("id").with_nullable(True), pa.field("text", pa.int8())])
    writer = DatasetWriter(open_store(str(tmp_path)), schema)
    writer.write(pa.record_batch([pa.array([7000, 7001]), pa.array([1, 2], pa.int8())], schema=schema))
    writer.commit(metadata={})

    with pytest.raises(ValueError, match=r"column 'starts' is list.* and absent in .*columns="):
        list(StreamingLoader([urls[0], str(tmp_path)], batch_size=2))
    with pytest.raises(ValueError, match=r"column 'text' is string in .* and int8 in"):
        list(StreamingLoader([urls[0], str(tmp_path)], batch_size=2, columns=["id", "text"]))
    assert len(flat(ids_of(StreamingLoader([urls[0], str(tmp_path)], batch_size=2, columns=["id"])))) == 21


def test_sources_may_differ_in_what_they_say_of_nulls(urls, tmp_path):
    schema = pa.schema([field.with_nullable(True) for field in SAMPLE_SCHEMA])
    writer = DatasetWriter(open_store(str(tmp_path)), schema)
    writer.write(pa.RecordBatch.from_arrays(sample_rows([7000, 7001]).columns, schema=schema))
    writer.commit(metadata={})

    assert len(flat(ids_of(StreamingLoader([urls[0], str(tmp_path)], batch_size=7)))) == 21


def test_h03_a_source_of_weight_zero_changes_nothing(urls):
    mixed = StreamingLoader(weighted(urls[:2], [1.0, 0.0]), batch_size=4)
    alone = StreamingLoader(urls[0], batch_size=4)
    epochs = [flat(ids_of(mixed)) for _ in range(2)]

    assert epochs == [flat(ids_of(alone)) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert epochs[0] != list(range(SIZES[0]))


@pytest.mark.parametrize(
    ("data", "options", "named"),
    [
        (lambda urls: [], {}, "at least one source"),
        (lambda urls: urls, {"version": 1}, "of which source"),
        (lambda urls: [Source(urls[0], weight=1.0), urls[1]], {}, "either every source has a weight or none"),
        (lambda urls: weighted(urls), {"stop": "never"}, "needs endless"),
        (lambda urls: [Source(urls[0], choose=3, repeat=2)], {}, "without repeat"),
    ],
)
def test_mistakes_are_named(urls, data, options, named):
    with pytest.raises(ValueError, match=named):
        list(StreamingLoader(data(urls), batch_size=2, **options))


def test_a_source_with_a_weight_and_no_rows_is_named(urls, tmp_path):
    DatasetWriter(open_store(str(tmp_path)), SAMPLE_SCHEMA).commit(metadata={})

    with pytest.raises(ValueError, match=f"{tmp_path}.* has a weight and no rows"):
        list(StreamingLoader(weighted([urls[0], str(tmp_path)], [1, 1]), batch_size=2))

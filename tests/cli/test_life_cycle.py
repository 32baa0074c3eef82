"""The commands of a dataset's later life say what they did, and fail in one line."""

import json
from dataclasses import replace

import pytest

from dataplane.catalog import (
    collect_garbage,
    commit_blocks,
    compact,
    copy_dataset,
    list_versions,
    open_dataset,
    rollback,
)
from dataplane.cli.gc import seconds_of
from dataplane.storage import open_store
from preprocess import preprocess
from tests.catalog.places import rows_of, write
from tests.cli.test_commands import run
from tests.contracts import batch_of


@pytest.fixture
def dataset(tmp_path):
    place = str(tmp_path / "data"), {}
    first = write(place, [batch_of(3)])
    write(place, [batch_of(2, 3)], parent=first)
    return tmp_path / "data"


def test_a_life(dataset, tmp_path, capsys):
    before = rows_of(open_dataset(str(dataset)))

    assert "version 3" in run(capsys, "compact", dataset)[1]
    assert "nothing to do" in run(capsys, "compact", dataset)[1]
    assert "version 4" in run(capsys, "rollback", dataset, 1)[1]
    assert "version 5" in run(capsys, "rollback", dataset, 3)[1]
    status, out, _ = run(capsys, "versions", dataset, "--json")
    assert (status, [(v["version"], v["made_by"]) for v in json.loads(out)]) == (
        0,
        [
            (1, "write"),
            (2, "append"),
            (3, "compaction of version 2"),
            (4, "rollback to version 1"),
            (5, "rollback to version 3"),
        ],
    )
    assert "rollback to" in run(capsys, "versions", dataset)[1]
    assert "copied 4 files" in run(capsys, "copy", dataset, tmp_path / "copy", "--version", 2)[1]
    assert rows_of(open_dataset(str(tmp_path / "copy"))) == before
    assert "would delete" in run(capsys, "gc", dataset, "--keep", 1, "--older-than", "0s")[1]
    assert list_versions(open_store(str(dataset))) == [1, 2, 3, 4, 5]
    assert "deleted 8 objects" in run(capsys, "gc", dataset, "--keep", 1, "--older-than", "0s", "--delete")[1]
    assert list_versions(open_store(str(dataset))) == [5]
    assert rows_of(open_dataset(str(dataset))) == before
    assert run(capsys, "verify", dataset, "--quiet")[0] == 0


def test_parts_are_merged_at_their_root(dataset, tmp_path, capsys):
    run(capsys, "copy", dataset, tmp_path / "again")

    status, out, _ = run(capsys, "merge", tmp_path, "data", tmp_path / "again")
    assert (status, "10 rows" in out) == (0, True)
    assert run(capsys, "verify", tmp_path, "--quiet")[0] == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("rollback DATA 2", "version 2 is the newest already"),
        ("rollback DATA 9", "version 9 does not exist; there are 1, 2"),
        ("versions NOTHING", "no dataset here"),
        ("gc DATA --older-than soon", "--older-than needs a number"),
        ("compact DATA --codec brotli", "codec must be zstd, lz4 or none"),
        ("copy NOTHING OUT", "no dataset here"),
        ("merge DATA .", "only what lies below"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(dataset, tmp_path, capsys, command, words):
    places = {"DATA": dataset, "NOTHING": tmp_path / "nothing", "OUT": tmp_path / "out"}
    before = open_store(str(tmp_path)).list("")
    status, out, err = run(capsys, *(places.get(word, word) for word in command.split()))

    assert (status, out) == (1, "")
    assert words in err
    assert err.count("\n") == 1
    assert open_store(str(tmp_path)).list("") == before


@pytest.mark.parametrize(("age", "seconds"), [("0", 0), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86_400)])
def test_ages_have_units(age, seconds):
    assert seconds_of(age) == seconds


def numbers(start, stop, path):
    path.write_text("".join(json.dumps({"n": number}) + "\n" for number in range(start, stop)))
    return str(path)


def test_appending_goes_on_through_all_of_a_life(tmp_path):
    out, elsewhere = str(tmp_path / "out"), str(tmp_path / "copy")
    inputs = [numbers(5 * part, 5 * part + 5, tmp_path / f"{part}.jsonl") for part in range(5)]
    preprocess(inputs[:1], out)
    for path in inputs[1:3]:
        preprocess([path], out, append=True)
    compact(out)
    preprocess([inputs[3]], out, append=True)
    assert rows_of(open_dataset(out))["n"].to_pylist() == list(range(20))

    rollback(out, 2)
    preprocess([inputs[4]], out, append=True)
    preprocess([inputs[2]], out, append=True)  # what it added before is not in the content gone back to
    expected = [*range(10), *range(20, 25), *range(10, 15)]
    assert rows_of(open_dataset(out))["n"].to_pylist() == expected

    copy_dataset(out, elsewhere)
    collect_garbage(out, keep=1, older_than_seconds=0, delete=True)
    for url in (out, elsewhere):
        preprocess([inputs[3]], url, append=True)
        assert rows_of(open_dataset(url))["n"].to_pylist() == [*expected, *range(15, 20)]


def test_a_backslash_is_a_character_like_any_other_and_never_a_folder(tmp_path):
    out = str(tmp_path / "o\\ut")
    preprocess([numbers(0, 3, tmp_path / "in\\put.jsonl")], out)
    dataset = open_dataset(out)

    assert rows_of(dataset)["n"].to_pylist() == [0, 1, 2]
    assert not any("\\" in path for path in dataset.store.list(""))
    foreign = [replace(dataset.index[0], shard=dataset.index.shards[0].replace("/", "\\"))]
    commit_blocks(
        dataset.store,
        foreign,
        schema=dataset.schema,
        block_format="arrow",
        num_shards=1,
        metadata={},
        parent=dataset.version,
    )
    with pytest.raises(FileNotFoundError, match=r"shards\\"):
        rows_of(open_dataset(out))

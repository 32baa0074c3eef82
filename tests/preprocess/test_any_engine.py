"""Whatever runs the tasks, and however often it is killed: the same bytes."""

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from dataplane.catalog import Encoding, open_dataset
from dataplane.errors import DatasetExistsError, DatasetNotFoundError, WorkerDiedError
from preprocess import Inline, Packing, Processes, Ray, Recipe, Shuffle, Split, preprocess
from preprocess.operations import Deduplicate, Derive, Filter, MapFunction
from tests.preprocess.datasets import files_of, read_rows, read_table, write_jsonl

ENGINES = {"one process": Processes(1), "two": Processes(2, 1), "four": Processes(4, 1)}
TEXTS = [f"the cat {number} sat on " + "the mat " * (number % 50) for number in range(1200)]
ROWS = [{"text": text, "number": number} for number, text in enumerate(TEXTS)]
# How often a run is killed; 50 or more for whoever hunts a fault.
KILLS = int(os.environ.get("DATAPLANE_KILLS", "8"))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    write_jsonl(folder / "in" / "0.jsonl", ROWS[:700])
    for number in range(5):
        write_jsonl(folder / "in" / f"{number + 1}.jsonl.zst", ROWS[700 + number * 100 :][:100])
    return str(folder / "in")


@pytest.fixture(scope="module", params=["rows", "tokens", "shuffled", "split", "without duplicates"])
def recipe(request, tokenizer_file):
    sizes = {"task_bytes": 40_000, "block_bytes": 4096, "encoding": Encoding(shard_bytes=8192)}
    match request.param:
        case "rows":
            return Recipe(**sizes)
        case "tokens":
            return Recipe(packing=Packing(tokenizer=tokenizer_file, sequence_length=64, eos_token="<end>"), **sizes)
        case "shuffled":
            return Recipe(shuffle=Shuffle(seed=3), **sizes)
        case "without duplicates":
            # The second filter sees only what the first one kept.
            shorter = Derive(columns={"start": "utf8_slice_codeunits(text, 0, 11)"})
            return Recipe(
                operations=(Deduplicate(columns=("text",)), shorter, Deduplicate(columns=("start",))), **sizes
            )
        case "split":
            return Recipe(split=Split(fractions={"train": 0.8, "validation": 0.2}, key="number"), **sizes)


@pytest.fixture(scope="module")
def undisturbed(source, recipe, tmp_path_factory):
    """Every file of the dataset that one process makes, and its report."""
    folder = tmp_path_factory.mktemp("undisturbed")
    report = preprocess([source], str(folder / "out"), recipe, engine=Inline())
    return files_of(folder / "out"), comparable(report)


def comparable(report):
    """What a report says about inputs and rows."""
    said = report.to_dict()
    for name in ("destination", "tasks_resumed", "peak_worker_bytes", "seconds"):
        del said[name]
    return said


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engine_does_not_show_in_the_dataset(source, recipe, undisturbed, tmp_path, engine):
    report = preprocess([source], str(tmp_path / "out"), recipe, engine=ENGINES[engine])

    assert (files_of(tmp_path / "out"), comparable(report)) == undisturbed
    assert report.tasks > 3


def test_ray_makes_the_same(source, recipe, undisturbed, tmp_path):
    if recipe.packing is None and recipe.shuffle is None:
        pytest.skip("two recipes are enough for the slowest engine")

    report = preprocess([source], str(tmp_path / "out"), recipe, engine=Ray(workers=2))

    assert (files_of(tmp_path / "out"), comparable(report)) == undisturbed


def test_a_shuffle_keeps_every_row_and_mixes_them_all(source, recipe, tmp_path):
    if recipe.shuffle is None:
        pytest.skip("the order is the inputs'")
    preprocess([source], str(tmp_path / "out"), recipe, engine=Inline())

    numbers = [row["number"] for row in read_rows(tmp_path / "out")]

    assert sorted(numbers) == list(range(1200))
    # Of a full shuffle, neighbours are a third of the whole apart on average; a shuffle by task would show.
    distance = sum(abs(one - other) for one, other in pairwise(numbers)) / 1199
    assert 330 < distance < 470


def test_a_shuffle_copes_with_tasks_of_which_no_row_stays(source, tmp_path):
    late = Filter(where="number >= 700", reason="too early")
    recipe = Recipe(operations=(late,), shuffle=Shuffle(seed=3), task_bytes=40_000)

    report = preprocess([source], str(tmp_path / "out"), recipe, engine=Inline())

    assert sorted(row["number"] for row in read_rows(tmp_path / "out")) == list(range(700, 1200))
    assert report.dropped == {"too early": 700}


def test_of_duplicates_the_first_in_the_inputs_stays(source, recipe, tmp_path):
    if not recipe.operations:
        pytest.skip("all rows stay")
    report = preprocess([source], str(tmp_path / "out"), recipe, engine=Processes(3, 1))

    first = {row["text"][:11]: row["number"] for row in reversed(ROWS)}
    assert [row["number"] for row in read_rows(tmp_path / "out")] == sorted(first.values())
    assert report.dropped == {"exact duplicate": len(ROWS) - len(first)}


def test_a_split_has_each_row_in_one_part(source, recipe, tmp_path):
    if recipe.split is None:
        pytest.skip("there are no parts")
    preprocess([source], str(tmp_path / "out"), recipe, engine=Inline())

    parts = [read_rows(tmp_path / "out" / name) for name in recipe.split.names]

    assert sorted(row["number"] for part in parts for row in part) == list(range(1200))
    assert 150 < len(parts[1]) < 330


def command(source, destination, tokenizer=None):
    program = (
        "import sys; from preprocess import *; from dataplane.catalog import Encoding\n"
        "packing = Packing(tokenizer=sys.argv[3], sequence_length=64, eos_token='<end>') if sys.argv[3:] else None\n"
        "sizes = dict(task_bytes=40_000, block_bytes=4096, encoding=Encoding(shard_bytes=8192))\n"
        "preprocess([sys.argv[1]], sys.argv[2], Recipe(packing=packing, **sizes), engine=Processes(4, 1))\n"
    )
    return [sys.executable, "-c", program, source, str(destination), *([tokenizer] if tokenizer else [])]


def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(source, recipe, undisturbed, tmp_path, request):
    if recipe.split or recipe.shuffle or recipe.operations:
        pytest.skip("killed in two forms")
    tokenizer = [recipe.packing.tokenizer] if recipe.packing else []
    run = command(source, tmp_path / "out", *tokenizer)
    start = time.monotonic()
    subprocess.run(command(source, tmp_path / "timed", *tokenizer), check=True, timeout=120)
    seconds = time.monotonic() - start
    moments = random.Random(KILLS)

    for _ in range(KILLS):
        with subprocess.Popen(run, stderr=subprocess.PIPE) as process:
            try:
                process.wait(timeout=seconds * moments.random())
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        assert process.returncode in (0, -signal.SIGKILL), process.stderr
    subprocess.run(run, check=True, timeout=120)

    assert files_of(tmp_path / "out") == undisturbed[0]


def test_a_killed_worker_ends_the_run_and_the_next_one_goes_on(tmp_path):
    rows = [{"text": f"text {number}" * 20, "number": number} for number in range(1000)]
    rows[700]["text"] = "die"
    write_jsonl(tmp_path / "in" / "0.jsonl", rows)
    die = MapFunction(function="tests.preprocess.killing:die_once", arguments={"marker": str(tmp_path / "died")})
    recipe = Recipe(operations=(die,), task_bytes=20_000)
    source, url = str(tmp_path / "in"), str(tmp_path / "out")
    unfinished = []

    with pytest.raises(WorkerDiedError, match=r"worker \d .*SIGKILL.* at input .*0\.jsonl.*run the same command again"):
        preprocess([source], url, recipe, engine=Processes(2, 1), unfinished=unfinished.append)
    with pytest.raises(DatasetNotFoundError):
        open_dataset(url)
    with pytest.raises(DatasetExistsError, match="--no-resume"):
        preprocess([source], url, recipe, resume=False)
    report = preprocess([source], url, recipe, engine=Processes(2, 1))

    assert not unfinished[0].complete
    assert 0 < unfinished[0].documents < 1000
    assert 0 < report.tasks_resumed < report.tasks
    assert report.documents == 1000
    assert read_rows(url) == rows
    assert {path.split("/")[0] for path in files_of(url)} == {"index", "inputs", "shards", "versions"}


def test_the_same_run_again_has_nothing_to_do(source, recipe, undisturbed, tmp_path):
    first = preprocess([source], str(tmp_path / "out"), recipe, engine=Inline())

    again = preprocess([source], str(tmp_path / "out"), recipe)

    assert comparable(again) == comparable(first)
    assert files_of(tmp_path / "out") == undisturbed[0]
    with pytest.raises(DatasetExistsError):
        preprocess([source], str(tmp_path / "out"), recipe, resume=False)


def test_appending_leaves_out_what_the_dataset_has(source, recipe, tmp_path):
    if recipe.operations:
        pytest.skip("duplicates are looked for in one run at a time")
    url, more = str(tmp_path / "out"), str(tmp_path / "more")
    preprocess([f"{source}/0.jsonl", f"{source}/1.jsonl.zst"], url, recipe, engine=Inline())

    report = preprocess([source], url, recipe, append=True, engine=Inline())
    nothing = preprocess([source], url, recipe, append=True, engine=Inline())
    preprocess([source], more, recipe, engine=Inline())

    assert (report.unchanged_files, report.documents) == (2, 400)
    assert (nothing.unchanged_files, nothing.documents, nothing.rows, nothing.version) == (6, 0, 0, 2)
    for part in recipe.split.names if recipe.split else [""]:
        mine, theirs = (read_table(str(Path(root, part))) for root in (url, more))
        if recipe.packing is None:
            assert sorted(mine["number"].to_pylist()) == sorted(theirs["number"].to_pylist())
        else:
            ids = mine["id"].to_pylist()
            assert ids == sorted(set(ids))


def test_an_input_that_changed_since_it_was_appended_is_named(tmp_path):
    path = Path(write_jsonl(tmp_path / "in" / "0.jsonl", ROWS[:10]))
    preprocess([str(path)], str(tmp_path / "out"))
    write_jsonl(path, ROWS[:11])

    with pytest.raises(Exception, match=r"0\.jsonl: changed since version 1"):
        preprocess([str(path)], str(tmp_path / "out"), append=True)

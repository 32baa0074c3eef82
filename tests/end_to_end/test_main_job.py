"""From text to losses, through the commands that people type."""

import gzip
import json
import subprocess
import sys
import time

import pytest
from tokenizers import Tokenizer

from dataplane import StreamingLoader
from tests.preprocess.datasets import write_jsonl

TEXTS = ["rust_book.jsonl.gz", "emoji.jsonl.gz"]
DEADLINE_SECONDS = 120
UNREACHABLE = [
    "--storage-option=endpoint=http://127.0.0.1:9",
    "--storage-option=access_key_id=nobody",
    "--storage-option=secret_access_key=nothing",
]


def dataplane(*arguments):
    command = [sys.executable, "-m", "dataplane", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def documents_in_order(url, **options):
    """The token lists of an epoch's documents, the shuffled rows put back in order."""
    rows = {}
    for batch in StreamingLoader(url, batch_size=16, seed=3, **options):
        starts = batch["document_starts"].rows()
        for place, number in enumerate(batch["id"][: 16 - batch.num_filler].tolist()):
            length = int(batch["length"][place])
            rows[number] = batch["tokens"][place, :length].tolist(), starts[place].tolist()
    tokens, borders = [], []
    for number in sorted(rows):
        borders += [len(tokens) + start for start in rows[number][1]]
        tokens += rows[number][0]
    return [tokens[start:stop] for start, stop in zip(borders, [*borders[1:], len(tokens)], strict=True)]


@pytest.mark.parametrize("name", TEXTS)
def test_an_epoch_put_back_in_order_decodes_to_the_input(data, tmp_path, name):
    tokenizer = data / "tokenizers" / "gpt-3.5-turbo.tokenizer.json"
    made = dataplane(
        "preprocess",
        data / "text" / name,
        tmp_path / "out",
        "--tokenizer",
        tokenizer,
        "--sequence-length",
        512,
        "--eos-token",
        "<|endoftext|>",
    )
    checked = dataplane("verify", tmp_path / "out")
    vocabulary = Tokenizer.from_file(str(tokenizer))
    texts = [
        vocabulary.decode(tokens[:-1], skip_special_tokens=False)
        for tokens in documents_in_order(str(tmp_path / "out"))
    ]

    with gzip.open(data / "text" / name, "rt", encoding="utf-8") as file:
        expected = [json.loads(line)["text"] for line in file]
    assert (made.returncode, checked.returncode, "all good" in checked.stdout) == (0, 0, True)
    assert texts == expected


def test_the_same_from_s3(tokenizer_file, s3, s3_url, tmp_path):
    texts = [f"document {number} of words, " * (number % 7) + "end" for number in range(200)]
    source = write_jsonl(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    options = [f"--storage-option={name}={value}" for name, value in s3.storage_options.items()]
    done = dataplane("preprocess", source, s3_url, "--tokenizer", tokenizer_file, "--sequence-length", 32, *options)
    documents = documents_in_order(
        s3_url, storage_options=s3.storage_options, cache_dir=tmp_path / "cache", cache_bytes=1 << 30
    )
    vocabulary = Tokenizer.from_file(str(tokenizer_file))

    assert done.returncode == 0, done.stderr
    assert [vocabulary.decode(tokens, skip_special_tokens=False) for tokens in documents] == texts


@pytest.fixture(scope="module")
def packed(tmp_path_factory, tokenizer_file):
    """Rows of tokens from a small vocabulary, packed by the command."""
    folder = tmp_path_factory.mktemp("packed")
    source = write_jsonl(
        folder / "texts.jsonl", [{"text": f"the number {number} follows {number - 1}. " * 5} for number in range(400)]
    )
    done = dataplane(
        "preprocess",
        source,
        folder / "out",
        "--tokenizer",
        tokenizer_file,
        "--sequence-length",
        32,
        "--block-bytes",
        4096,
    )
    assert done.returncode == 0, done.stderr
    return folder / "out"


def train_settings(url, folder, steps=12):
    settings = {
        "data.url": url, "data.batch_size": 2, "folder": folder, "precision": "fp32", "threads": 1,
        "model.num_layers": 1, "model.num_heads": 2, "model.width": 32,
        "optimizer.num_steps": steps, "optimizer.warmup_steps": 2, "checkpoint.every_steps": 3,
    }  # fmt: skip
    return [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def killed_after(step, command, folder):
    """Runs a command and ends it without warning once the run has come to a step."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + DEADLINE_SECONDS
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < step:
        assert process.poll() is None, "training ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_resumes_to_the_same_losses(packed, tmp_path, ranks):
    whole = dataplane("train", *train_settings(packed, tmp_path / "whole"), "--ranks", ranks)
    arguments = [*train_settings(packed, tmp_path / "killed", steps=12), "--ranks", str(ranks)]
    killed_after(7, [sys.executable, "-m", "dataplane", "train", *map(str, arguments)], tmp_path / "killed")
    resumed = dataplane("train", *arguments)

    assert (whole.returncode, resumed.returncode) == (0, 0), whole.stderr + resumed.stderr
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


def test_profile_shows_parts_that_add_up(packed, tmp_path):
    done = dataplane("profile", *train_settings(packed, tmp_path / "run"), "--json", tmp_path / "account.json")
    rank = json.loads((tmp_path / "account.json").read_text())["ranks"][0]

    assert done.returncode == 0, done.stderr
    assert "waiting for data" in done.stdout
    total = sum(part["total_ns"] for part in rank["parts"].values())
    assert total == pytest.approx(rank["wall"]["total_ns"], rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["preprocess", "missing.jsonl", "OUT"], "missing.jsonl"),
        (["train", "missing"], "no dataset here"),
        (["train", "missing", "--set", "optimizer.lrr=1"], "did you mean optimizer.lr"),
        (["inspect", "missing"], "no dataset here"),
        (["verify", "s3://bucket/x", *UNREACHABLE], "127.0.0.1:9"),
    ],
)
def test_a_mistake_ends_in_one_line_that_names_it(tmp_path, arguments, named):
    done = dataplane(
        *[str(tmp_path / word) if word in ("OUT", "missing", "missing.jsonl") else word for word in arguments]
    )

    assert done.returncode != 0
    assert (done.stderr.count("\n"), done.stderr.startswith("error: ")) == (1, True), done.stderr
    assert named in done.stderr
    assert not (tmp_path / "OUT").exists()

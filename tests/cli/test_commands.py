"""What a person sees: one line for each mistake, and what is wrong with a damaged dataset."""

import json
import os
import subprocess
import sys

import pytest

from dataplane.catalog import open_dataset
from dataplane.cli import COMMANDS, main

ROWS = "".join(json.dumps({"text": f"row {n}", "n": n, "list": list(range(n))}) + "\n" for n in range(200))


def run(capsys, *arguments):
    """Exit status, standard output, standard error."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return (end.value.code or 0, *capsys.readouterr())


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(ROWS)
    return path


@pytest.fixture
def dataset(source, tmp_path, capsys):
    """A dataset of several blocks and shards."""
    sizes = ("--block-bytes", 2000, "--shard-bytes", 3000)
    status, _, _ = run(capsys, "preprocess", source, tmp_path / "data", "--quiet", *sizes)
    assert status == 0
    return tmp_path / "data"


BAD_JSON = '{"text": "a"}\n{"text": "b"\n'
MISTAKES = {
    "missing source": ("missing.jsonl OUT", "missing.jsonl: there is no such file or folder"),
    "no match": ("*.nothing OUT", "*.nothing: there is no file"),
    "malformed line": (
        "bad.jsonl OUT",
        "bad.jsonl:2:13: not JSON, expecting ',' delimiter, found 'the end of the line'",
    ),
    "not an object": ("list.jsonl OUT", "list.jsonl:1: is an array, not an object"),
    "not UTF-8": ("latin.txt OUT", "latin.txt: not UTF-8, found 0xfc at byte 1"),
    "not Parquet": ("in.jsonl OUT --format parquet", "in.jsonl: not readable as Parquet"),
    "unknown form": ("data.xyz OUT", "data.xyz: its name does not tell its form"),
    "unknown column": ("in.jsonl OUT --columns z", "no input has a column 'z'; the columns are text, n, list"),
    "unknown text column": (
        "in.jsonl OUT --tokenizer TOK --text-column body",
        "in.jsonl:1: has no column 'body'; its columns are text, n, list",
    ),
    "text is no string": (
        "in.jsonl OUT --tokenizer TOK --text-column n",
        "in.jsonl:1: column 'n' is a number, not a string",
    ),
    "null text": ("null.jsonl OUT --tokenizer TOK", "null.jsonl:1: column 'text' is null, not a string"),
    "missing tokenizer": ("in.jsonl OUT --tokenizer none.json", "tokenizer none.json: there is no such file"),
    "wrong tokenizer": ("in.jsonl OUT --tokenizer WRONG", "this JSON is not a tokenizer"),
    "end token": ("in.jsonl OUT --tokenizer TOK --eos-token <no>", "token '<no>' is not in the tokenizer's vocabulary"),
    "end token alone": ("in.jsonl OUT --eos-token <end>", "--eos-token goes with --tokenizer"),
    "no rows": ("blank.jsonl OUT", "nothing to write"),
    "storage option": ("in.jsonl OUT --storage-option secret", "--storage-option needs KEY=VALUE"),
    "unknown protocol": ("in.jsonl nowhere://x/y", "nowhere://x/y: no file system for protocol 'nowhere'"),
    "unreachable store": (
        "in.jsonl s3://bucket/x --storage-option endpoint=http://127.0.0.1:9 --storage-option key=a "
        "--storage-option secret=b --storage-option timeout_seconds=1",
        "s3://bucket/x",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(name, tmp_path, capsys, monkeypatch, tokenizer_file):
    monkeypatch.chdir(tmp_path)
    contents = {"in.jsonl": ROWS, "bad.jsonl": BAD_JSON, "list.jsonl": "[1]\n", "null.jsonl": '{"text": null}\n'}
    for file, content in (contents | {"blank.jsonl": "\n\n", "data.xyz": "a,b\n", "wrong.json": "{}"}).items():
        (tmp_path / file).write_text(content)
    (tmp_path / "latin.txt").write_bytes("für".encode("latin-1"))
    line, message = MISTAKES[name]
    words = {"OUT": "out", "TOK": tokenizer_file, "WRONG": "wrong.json"}

    status, out, err = run(capsys, "preprocess", *(words.get(word, word) for word in line.split()))

    assert status == 1
    assert (err.count("\n"), out) == (1, "")
    assert err.startswith("error: ")
    assert message in err.replace(f"{tmp_path}/", "")
    assert not list(tmp_path.glob("out/versions/*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "DATA", "--version", 7), "version 7 does not exist; there are 1"),
        (("verify", "DATA", "--version", 7), "version 7 does not exist; there are 1"),
        (("inspect", "NONE"), "no dataset here"),
        (("verify", "NONE"), "no dataset here"),
        (("preprocess", "IN", "DATA"), "a dataset is here already (version 1)"),
        (("preprocess", "IN", "NONE", "--append"), "no dataset here"),
        (("inspect", "DATA", "--tokenizer", "TOK"), "its rows hold no tokens"),
    ],
)
def test_a_wrong_dataset_is_one_line(arguments, message, dataset, source, tmp_path, capsys, tokenizer_file):
    words = {"DATA": dataset, "NONE": tmp_path / "none", "IN": source, "TOK": tokenizer_file}

    status, out, err = run(capsys, *(words.get(word, word) for word in arguments))

    assert (status, out, err.count("\n")) == (1, "", 1)
    assert message in err


def test_the_report_is_a_table_and_json(source, tmp_path, capsys):
    status, out, _ = run(capsys, "preprocess", source, tmp_path / "data", "--report", tmp_path / "report.json")

    report = json.loads((tmp_path / "report.json").read_text())
    assert status == 0
    assert "compression ratio" in out
    assert (report["rows"], report["documents"], report["version"], report["dropped"]) == (200, 200, 1, {})
    assert report["input_bytes"] == len(ROWS)


def test_inspect_shows_the_dataset(dataset, source, capsys):
    more = source.with_name("more.jsonl")
    more.write_bytes(source.read_bytes())
    run(capsys, "preprocess", more, dataset, "--append", "--quiet")

    _, out, _ = run(capsys, "inspect", dataset, "--json", "--rows", 20)
    shown = json.loads(out)
    _, table, _ = run(capsys, "inspect", dataset)

    assert [version["rows"] for version in shown["versions"]] == [200, 400]
    assert {column["name"]: column["type"] for column in shown["schema"]}["n"] == "int64"
    assert shown["rows"][2] == {"text": "row 2", "n": 2, "list": [0, 1]}
    assert shown["rows"][15]["list"][-1] == "... 15 in all"
    assert "row 1" in table
    assert "int64" in table


def test_inspect_shows_tokens_as_text(source, tmp_path, capsys, tokenizer_file):
    packing = ("--tokenizer", tokenizer_file, "--sequence-length", 16)
    run(capsys, "preprocess", source, tmp_path / "packed", "--quiet", *packing)

    _, out, _ = run(capsys, "inspect", tmp_path / "packed", "--json", "--tokenizer", tokenizer_file)

    assert json.loads(out)["rows"][0]["tokens"].startswith("row 0row 1")


def test_verify_passes_what_is_whole(dataset, capsys):
    status, out, _ = run(capsys, "verify", dataset)

    assert status == 0
    assert out.strip().endswith("all good")


def test_verify_names_the_block_whose_byte_was_flipped(dataset, capsys):
    index = open_dataset(str(dataset)).index
    block = index[3]
    shard = dataset / block.shard
    data = bytearray(shard.read_bytes())
    data[block.offset + block.num_bytes // 2] ^= 1
    shard.write_bytes(data)

    status, out, _ = run(capsys, "verify", dataset, "--quiet")

    (line,) = out.splitlines()
    assert status == 1
    assert f"{block.shard} bytes [{block.offset}, {block.offset + block.num_bytes})" in line
    assert f"expected {block.digest.hex()}" in line


def test_verify_names_every_block_of_a_missing_or_short_shard(dataset, capsys):
    index = open_dataset(str(dataset)).index
    missing, short = index.shards[0], index.shards[1]
    (dataset / missing).unlink()
    (dataset / short).write_bytes((dataset / short).read_bytes()[:100])

    status, out, _ = run(capsys, "verify", dataset, "--quiet")

    assert status == 1
    damaged = [block for block in (index[n] for n in range(len(index))) if block.shard in (missing, short)]
    assert len(out.splitlines()) == len(damaged)
    assert f"{missing} [" in out
    assert "the shard is missing" in out


def test_verify_reports_a_missing_index(dataset, capsys):
    for path in (dataset / "index").iterdir():
        path.unlink()

    status, _, err = run(capsys, "verify", dataset)

    assert status == 1
    assert "it is missing" in err


def test_an_interruption_is_one_line(source, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dataplane.cli.preprocess.preprocess", interrupt)

    assert run(capsys, "preprocess", source, tmp_path / "out") == (130, "", "error: interrupted\n")


def test_debug_shows_where_an_error_came_from(tmp_path, capsys):
    status, _, err = run(capsys, "--debug", "preprocess", tmp_path / "missing", tmp_path / "out")

    assert status == 1
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: ")


def test_help_lists_every_command(capsys):
    status, out, _ = run(capsys, "--help")

    assert status == 0
    assert all(f"  {name}" in out for name in COMMANDS)


def test_train_without_a_dataset_says_what_to_give(capsys):
    status, out, err = run(capsys, "train", "--ranks", 2)

    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "which dataset? give its folder, `dataplane train URL`" in err


def test_train_lists_every_setting(capsys):
    from training import settings

    status, out, _ = run(capsys, "train", "--settings")

    assert status == 0
    assert all(setting.name in out for setting in settings())


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_on_a_dataset_without_tokens_is_one_line(ranks, dataset, tmp_path, capsys):
    status, out, err = run(capsys, "train", dataset, "--ranks", ranks, "--set", f"folder={tmp_path}/run")

    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "no column 'tokens', 'length' in the dataset; it has text, n, list" in err


@pytest.mark.parametrize("command", ["preprocess", "inspect", "verify"])
def test_commands_that_need_no_torch_do_not_import_it(command):
    program = f"import sys, dataplane.cli.{command}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_the_module_is_the_command(source, tmp_path):
    command = [sys.executable, "-m", "dataplane", "preprocess", str(source), str(tmp_path / "out")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "80"})

    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr

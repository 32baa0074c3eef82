"""`dataplane demo`: the whole road in three minutes, from text to a training run that survives being killed."""

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

import training
from dataplane import StreamingLoader
from dataplane.cli.library_corpus import train_tokenizer, write_corpus
from dataplane.errors import DataplaneError
from dataplane.profile import print_report, read_accounts
from dataplane.seaweed import s3_server
from preprocess import Packing, Recipe, Report, display_on, preprocess

app = typer.Typer(rich_markup_mode=None)

_RANKS = 2
_CONTEXT = 256
_VOCABULARY = 4096
_STEPS = 90
_CHECKPOINT_EVERY = 15
# The kill comes at this step; the newest checkpoint is then some steps older.
_KILL_AT = 40
_EOS = "<|endoftext|>"
_MARKER = "made-by-dataplane-demo"
_DEADLINE_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Destination:
    """Where the dataset goes, and what its store needs."""

    url: str
    storage_options: Mapping[str, Any]  # Any: as the stores' own options
    description: str


@app.command()
def command(
    folder: Path = typer.Option(Path("demo-run"), help="Where everything goes; replaced if an earlier demo made it."),
    s3: bool = typer.Option(False, "--s3", help="Keep the dataset on a real S3 server, started on loopback."),
) -> None:
    """Tokenise Python's own library, train a small GPT on it, kill the run, resume it, and show where the time went."""
    console = Console()
    start = time.monotonic()
    _prepare(folder)
    corpus = write_corpus(folder / "corpus.jsonl.zst")
    console.print(
        f"1. corpus: {corpus.documents:,} modules of Python's library, {corpus.num_bytes / 1e6:.1f} MB of text"
    )
    tokenizer = folder / "tokenizer.json"
    train_tokenizer(folder / "corpus.jsonl.zst", tokenizer, vocabulary=_VOCABULARY, eos=_EOS)
    console.print(f"2. tokenizer: byte-level BPE, {_VOCABULARY:,} tokens")
    with _destination(folder, s3) as destination:
        report = _preprocess(folder, destination, tokenizer)
        console.print(
            f"3. dataset: {report.rows:,} samples of {_CONTEXT} tokens in {report.blocks} blocks on "
            f"{destination.description}"
        )
        rate = _streaming_rate(destination, folder)
        console.print(f"4. training on {_RANKS} ranks, killed at step {_KILL_AT}, then resumed")
        arguments = _training_arguments(folder, destination)
        _train_and_kill(folder, arguments)
        status = training.launch(arguments, _RANKS)
    if status:
        raise DataplaneError(f"the resumed run ended with status {status}; its messages are above")
    job = read_accounts(folder / "run")
    print_report(job, console)
    console.print(_numbers(folder, report, rate, job.share("data_wait"), time.monotonic() - start))


def _prepare(folder: Path) -> None:
    """An empty folder of our own. Raises ValueError rather than remove somebody else's."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / _MARKER).exists():
            raise ValueError(f"{folder} was not made by the demo and is not empty; choose another with --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / _MARKER).touch()


@contextmanager
def _destination(folder: Path, s3: bool) -> Iterator[_Destination]:
    if not s3:
        yield _Destination(url=str(folder / "dataset"), storage_options={}, description="the local disk")
        return
    with s3_server("demo") as server:
        yield _Destination(
            url="s3://demo/python-library",
            storage_options=server.storage_options,
            description=f"an S3 server at {server.endpoint}",
        )


def _preprocess(folder: Path, destination: _Destination, tokenizer: Path) -> Report:
    packing = Packing(tokenizer=str(tokenizer), sequence_length=_CONTEXT, eos_token=_EOS)
    return preprocess(
        [str(folder / "corpus.jsonl.zst")],
        destination.url,
        # Small blocks, since the corpus is small: shuffling wants a hundred of them.
        Recipe(packing=packing, block_bytes=128 << 10),
        storage_options=destination.storage_options,
        show=display_on(sys.stderr),
    )


def _streaming_rate(destination: _Destination, folder: Path) -> float:
    """Megabytes of tokens a second that the loader delivers to a loop that does nothing, cold cache."""
    start, total = time.perf_counter(), 0
    with StreamingLoader(
        destination.url,
        batch_size=32,
        columns=["tokens"],
        cache_dir=folder / "rate-cache",
        storage_options=destination.storage_options,
    ) as loader:
        for batch in loader:
            total += batch["tokens"].nbytes
    return total / 1e6 / (time.perf_counter() - start)


def _training_arguments(folder: Path, destination: _Destination) -> list[str]:
    config = {
        "folder": str(folder / "run"),
        "data": {
            "url": destination.url,
            "batch_size": 8,
            "cache_dir": str(folder / "cache"),
            "storage_options": dict(destination.storage_options),
        },
        "model": {"num_layers": 2, "num_heads": 4, "width": 128},
        "precision": "fp32",  # most CPUs only emulate bf16
        "optimizer": {"lr": 3e-3, "num_steps": _STEPS, "warmup_steps": 10},
        "checkpoint": {"every_steps": _CHECKPOINT_EVERY},
    }
    path = folder / "train.json"
    path.touch(mode=0o600)  # it may hold the store's credentials
    path.write_text(json.dumps(config, indent=2))
    return ["--config", str(path)]


def _train_and_kill(folder: Path, arguments: list[str]) -> None:
    """Starts the run and ends all its processes without warning when it has come to step `_KILL_AT`."""
    process = training.start_ranks(arguments, _RANKS)
    try:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while _steps_done(folder) < _KILL_AT:
            if process.poll() is not None:
                raise DataplaneError(f"training ended with status {process.returncode}; its messages are above")
            if time.monotonic() > deadline:
                raise DataplaneError(f"training did not reach step {_KILL_AT} in {_DEADLINE_SECONDS:.0f} s")
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)  # the ranks die with it, as without warning as it does
        process.wait()


def _steps_done(folder: Path) -> int:
    return len(_losses(folder))


def _losses(folder: Path) -> list[float]:
    path = folder / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [record["loss"] for record in records if "loss" in record]


def _numbers(folder: Path, report: Report, rate: float, waiting: float, seconds: float) -> Table:
    losses = _losses(folder)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    table = Table(title="the numbers", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in (
        ("samples", f"{report.rows:,}"),
        ("tokens", f"{report.tokens:,}"),
        ("compression ratio of the blocks", f"{report.ratio:.2f}"),
        ("loader, cold, nothing to wait for", f"{rate:.0f} MB/s"),
        ("resumed from step", f"{summary['resumed_from']} of {summary['num_steps']}"),
        ("loss, first 5 steps", f"{sum(losses[:5]) / 5:.2f}"),
        ("loss, last 5 steps", f"{sum(losses[-5:]) / 5:.2f}"),
        ("time waiting for data", f"{waiting:.2%}"),
        ("the whole demo", f"{seconds:.0f} s"),
    ):
        table.add_row(name, value)
    return table

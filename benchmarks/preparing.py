"""How much of the limit does preprocessing reach, what does a second worker bring, and does memory stay flat?

- JSONL.zst to tokenised, packed blocks, against the tokenizer alone on the same texts in memory, on all cores.
- Parquet to blocks, against pyarrow reading and re-writing the same table as Arrow IPC with the same codec and level.
- Two workers of one thread each against one, for tokens.
- Most memory of a worker (Parquet of many row groups), for an input and for one twenty times as large.

The corpus is made of the sources of Python's own library unless --corpus names JSON lines with a `text` column; the
tokenizer is trained on it unless --tokenizer names one.
"""

import argparse
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from harness import alternate, report

from dataplane.cli.library_corpus import train_tokenizer, write_corpus
from preprocess import Inline, Packing, Processes, Recipe, preprocess
from preprocess.sources.documents import grouped
from preprocess.tokenizer import load_vocabulary

MEGA = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", nargs="*", default=None, help="JSON lines, plain or .zst")
    parser.add_argument("--tokenizer", default=None)
    parser.add_argument("--megabytes", type=int, default=60, help="of text at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-megabytes", type=int, default=100, help="of the smaller input for memory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = list(_texts(arguments.corpus, folder, arguments.megabytes * MEGA))
        corpus = _compressed(texts, folder / "corpus")
        tokenizer = arguments.tokenizer or _trained(folder)
        _tokens(texts, corpus, tokenizer, folder, arguments.rounds)
        _workers(texts, corpus, tokenizer, folder, arguments.rounds)
        _parquet(texts, folder, arguments.rounds)
        _memory(folder, arguments.memory_megabytes * MEGA)


def _tokens(texts: list[str], corpus: str, tokenizer: str, folder: Path, rounds: int) -> None:
    size = sum(len(text.encode()) for text in texts) / MEGA
    vocabulary = load_vocabulary(tokenizer)
    recipe = Recipe(packing=Packing(tokenizer=tokenizer, sequence_length=2048))

    def alone() -> float:
        start = time.perf_counter()
        for group in grouped(texts):
            vocabulary.encode(group)
        return size / (time.perf_counter() - start)

    contestants = {
        "the tokenizer alone": alone,
        "one process, all threads": lambda: size / _seconds(corpus, folder, recipe, Inline()),
        "a process for each core": lambda: size / _seconds(corpus, folder, recipe, Processes()),
    }
    report(
        "JSONL.zst to packed blocks",
        alternate(contestants, rounds=rounds),
        unit="MB/s of text",
        limit="the tokenizer alone",
        megabytes=round(size),
    )


def _workers(texts: list[str], corpus: str, tokenizer: str, folder: Path, rounds: int) -> None:
    size = sum(len(text.encode()) for text in texts) / MEGA
    # Enough tasks that neither waits for the other's last one.
    recipe = Recipe(packing=Packing(tokenizer=tokenizer, sequence_length=2048), task_bytes=MEGA // 2)
    contestants = {
        "one worker": lambda: size / _seconds(corpus, folder, recipe, Processes(1, 1)),
        "two workers": lambda: size / _seconds(corpus, folder, recipe, Processes(2, 1)),
    }
    report(
        "what a second worker brings",
        alternate(contestants, rounds=rounds),
        unit="MB/s of text",
        limit="one worker",
        threads=1,
    )


def _parquet(texts: list[str], folder: Path, rounds: int) -> None:
    table = pa.table({"id": range(len(texts)), "text": texts, "length": [len(text) for text in texts]})
    source = folder / "table.parquet"
    pq.write_table(table, source, compression="zstd", row_group_size=2000)
    size = table.nbytes / MEGA

    def rewritten() -> float:
        start = time.perf_counter()
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=3))
        read = pq.read_table(source)
        with pa.ipc.new_file(str(folder / "rewritten.arrow"), read.schema, options=options) as writer:
            writer.write_table(read, max_chunksize=2000)
        return size / (time.perf_counter() - start)

    contestants = {
        "pyarrow reads and writes": rewritten,
        "one process": lambda: size / _seconds(str(source), folder, Recipe(), Inline()),
        "a process for each core": lambda: size / _seconds(str(source), folder, Recipe(), Processes()),
    }
    report(
        "Parquet to blocks",
        alternate(contestants, rounds=rounds),
        unit="MB/s of rows",
        limit="pyarrow reads and writes",
        megabytes=round(size),
    )


def _memory(folder: Path, num_bytes: int) -> None:
    # Tasks of one size, which bounds the shard that a worker builds in memory; by default they grow with the inputs.
    recipe = Recipe(task_bytes=16 * MEGA)
    peaks = {}
    for factor in (1, 20):
        source = folder / "memory.parquet"
        _write_random(source, num_bytes * factor)
        made = preprocess([str(source)], str(folder / "memory"), recipe, engine=Processes(2, 1))
        peaks[f"{source.stat().st_size / MEGA:.0f} MB of input"] = [made.peak_worker_bytes / MEGA]
        shutil.rmtree(folder / "memory")
    report("most memory of a worker", peaks, unit="MB", limit=next(iter(peaks)))


def _write_random(path: Path, num_bytes: int) -> None:
    """Parquet that does not shrink, in row groups of 4 MB."""
    group = 4 * MEGA
    schema = pa.schema([("id", pa.int64()), ("data", pa.binary())])
    writing = pq.ParquetWriter(path, schema, compression="none", use_dictionary=False)
    with writing as writer, open("/dev/urandom", "rb") as noise:
        for number in range(num_bytes // group):
            rows = [noise.read(4000) for _ in range(group // 4000)]
            ids = range(number * len(rows), (number + 1) * len(rows))
            writer.write_table(pa.table({"id": ids, "data": rows}, schema=schema))


def _seconds(source: str, folder: Path, recipe: Recipe, engine: Any) -> float:  # Any: whichever engine
    start = time.perf_counter()
    preprocess([source], str(folder / "out"), recipe, engine=engine)
    seconds = time.perf_counter() - start
    shutil.rmtree(folder / "out")
    return seconds


def _texts(corpus: list[str] | None, folder: Path, most: int) -> Iterator[str]:
    if corpus is None:
        corpus = [_library(folder)]
    size = 0
    for name in corpus:
        data = Path(name).read_bytes()
        if name.endswith(".zst"):
            data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        for line in data.split(b"\n"):
            if line:
                text = json.loads(line)["text"]
                size += len(text.encode())
                if size > most:
                    return
                yield text


def _library(folder: Path) -> str:
    path = folder / "library.jsonl.zst"
    if not path.exists():
        write_corpus(path)
    return str(path)


def _trained(folder: Path) -> str:
    path = folder / "tokenizer.json"
    train_tokenizer(Path(_library(folder)), path, vocabulary=8000, eos="<end>")
    return str(path)


def _compressed(texts: list[str], folder: Path) -> str:
    """JSON lines in files of some 2 MB of text, so that there is something to share out."""
    folder.mkdir()
    numbers = itertools.count()
    lines: list[str] = []

    def flush() -> None:
        data = "".join(lines).encode()
        (folder / f"{next(numbers):04d}.jsonl.zst").write_bytes(zstandard.compress(data))
        lines.clear()

    size = 0
    for text in texts:
        lines.append(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        size += len(text)
        if size >= 2 * MEGA:
            flush()
            size = 0
    if lines:
        flush()
    return str(folder)


if __name__ == "__main__":
    main()

"""Small inputs to write, and datasets to read back whole."""

import bz2
import gzip
import io
import json
import lzma
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import zstandard

from dataplane.catalog import open_dataset
from dataplane.metrics import Metrics
from dataplane.storage import BlockSource


def write_jsonl(path, rows):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffix:
        case ".gz":
            data = gzip.compress(data, mtime=0)
        case ".zst":
            data = zstandard.compress(data)
    path.write_bytes(data)
    return str(path)


def read_table(url, **options):
    """All rows of the newest version in order."""
    dataset = open_dataset(str(url), **options)
    source = BlockSource(dataset.store, None, Metrics())
    blocks = [dataset.index[number] for number in range(len(dataset.index))]
    batches = [dataset.format.decode(source.read(block), dataset.schema) for block in blocks]
    return pa.Table.from_batches(batches, dataset.schema)


def read_rows(url, **options):
    return read_table(url, **options).to_pylist()


def read_documents(table, end=None):
    """The token lists of a packed table, cut where documents start; without the `end` token of each."""
    tokens, starts = [], []
    for row in table.to_pylist():
        starts += [len(tokens) + start for start in row["document_starts"]]
        tokens += row["tokens"][: row["length"]]
    documents = [tokens[start:stop] for start, stop in pairwise([*starts, len(tokens)])]
    if end is not None:
        assert all(document[-1] == end for document in documents)
        documents = [document[:-1] for document in documents]
    return documents


def files_of(folder):
    """Every file with its bytes."""
    root = Path(folder)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def plain_lines(path):
    data = path.read_bytes()
    match path.suffix:
        case ".gz":
            data = gzip.decompress(data)
        case ".bz2":
            data = bz2.decompress(data)
        case ".xz":
            data = lzma.decompress(data)
        case ".zst":
            with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
                data = reader.read()
    return [line for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]

"""`dataplane verify DEST`: is every block there, unchanged, and what the index says?"""

import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import pyarrow as pa
import typer

from dataplane.catalog import Dataset, open_dataset
from dataplane.cli.options import STORAGE_OPTION, storage_options
from dataplane.errors import CorruptBlockError
from dataplane.metrics import Metrics
from dataplane.plan import Block
from dataplane.storage import BlockSource
from preprocess import display_on, silent

app = typer.Typer(rich_markup_mode=None)

_THREADS = 8  # enough to keep an object store busy; hashing and decoding use the cores there are


@app.command()
def command(
    destination: str = typer.Argument(..., metavar="DEST", help="Folder of the dataset; a path or a URL."),
    version: int | None = typer.Option(None, help="Which version; the newest if not given."),
    options: list[str] = STORAGE_OPTION,
    quiet: bool = typer.Option(False, "--quiet", help="Print nothing but what is wrong."),
) -> None:
    """Read every block of a dataset and check its digest, its rows and the version's sums.

    Exit status 1 if anything is wrong; each fault is a line on standard output.
    """
    dataset = open_dataset(destination, version=version, storage_options=storage_options(options))
    faults = sum_faults(dataset)
    with (silent if quiet else display_on(sys.stderr))("verify", dataset.version.num_bytes) as display:
        done = 0
        for number, (block, fault) in enumerate(checked_blocks(dataset), 1):
            done += block.num_bytes
            if fault is not None:
                faults.append(fault)
            display.update(done, lambda n=number: f"{n:,} blocks, {len(faults)} faults")  # type: ignore[misc]
    for fault in faults:
        print(fault)
    if not quiet:
        print(_summary(dataset, len(faults)))
    if faults:
        raise typer.Exit(1)


def sum_faults(dataset: Dataset) -> list[str]:
    """Where the version's own numbers are not those of its index."""
    index, version = dataset.index, dataset.version
    sums = {
        "rows": (version.num_rows, index.total_rows),
        "blocks": (version.num_blocks, len(index)),
        "bytes": (version.num_bytes, int(index.num_bytes.sum())),
        "raw bytes": (version.raw_bytes, int(index.raw_bytes.sum())),
    }
    return [
        f"version {version.number}: says {expected} {what}, its index adds up to {found}"
        for what, (expected, found) in sums.items()
        if expected != found
    ]


def checked_blocks(dataset: Dataset) -> Iterator[tuple[Block, str | None]]:
    """Every block in order, with what is wrong with it. Raises StoreError if the store cannot say."""
    source = BlockSource(dataset.store, None, Metrics())
    blocks = (dataset.index[number] for number in range(len(dataset.index)))

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="verify") as pool:
        under_way: deque[tuple[Block, Future[str | None]]] = deque()
        try:
            while True:
                for block in islice(blocks, 2 * _THREADS - len(under_way)):
                    under_way.append((block, pool.submit(_fault, dataset, source, block)))
                if not under_way:
                    return
                block, fault = under_way.popleft()
                yield block, fault.result()
        finally:
            for _, fault in under_way:
                fault.cancel()


def _fault(dataset: Dataset, source: BlockSource, block: Block) -> str | None:
    try:
        batch = dataset.format.decode(source.read(block), dataset.schema)
        batch.validate(full=True)
    except FileNotFoundError:
        return f"{dataset.store.url}/{block}: the shard is missing"
    except CorruptBlockError as error:
        return str(error)
    except pa.ArrowException as error:
        return f"{dataset.store.url}/{block}: decodes to rows that are not valid: {error}"
    if batch.num_rows != block.num_rows:
        return f"{dataset.store.url}/{block}: has {batch.num_rows} rows, expected {block.num_rows}"
    return None


def _summary(dataset: Dataset, num_faults: int) -> str:
    version = dataset.version
    verdict = f"{num_faults} faults" if num_faults else "all good"
    return (
        f"version {version.number} of {dataset.store.url}: {version.num_blocks:,} blocks in {version.num_shards:,} "
        f"shards, {version.num_rows:,} rows, {version.num_bytes:,} bytes: {verdict}"
    )

"""`dataplane compact DEST`: runs of small shards become full ones."""

import typer

from dataplane.catalog import BLOCK_BYTES, Encoding, compact
from dataplane.cli.options import STORAGE_OPTION, storage_options

app = typer.Typer(rich_markup_mode=None)


@app.command()
def command(
    destination: str = typer.Argument(..., metavar="DEST", help="Folder of the dataset; a path or a URL."),
    block_bytes: int = typer.Option(BLOCK_BYTES, min=1, help="Join blocks up to these bytes of rows in memory."),
    shard_bytes: int = typer.Option(Encoding().shard_bytes, min=1, help="Bytes at which a shard file is full."),
    codec: str = typer.Option(Encoding().codec, help="Compression of the new blocks: zstd, lz4 or none."),
    level: int = typer.Option(Encoding().level, min=1, max=22, help="Level of zstd."),
    options: list[str] = STORAGE_OPTION,
) -> None:
    """Merge runs of shards of less than half of --shard-bytes, with the same rows in the same order, as a new version.

    What was written is read again and compared before it is committed. The old shards stay until `gc`.
    """
    encoding = Encoding(codec=codec, level=level, shard_bytes=shard_bytes)
    version = compact(destination, encoding=encoding, block_bytes=block_bytes, storage_options=storage_options(options))
    if version is None:
        print(f"{destination}: nothing to do, no two small shards stand together")
    else:
        print(
            f"version {version.number} of {destination}: {version.num_rows:,} rows in {version.num_blocks:,} blocks "
            f"and {version.num_shards:,} shards, {version.num_bytes:,} bytes"
        )

"""Writing blocks: any number of writers make shards in one store, and nothing names these until they are committed.

Shards are named after their content, so writing one again is harmless and two writers never overwrite each other's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dataplane.catalog.encoding import MOST_BLOCK_BYTES, MOST_SHARD_BYTES, Encoding
from dataplane.catalog.version import inside_root
from dataplane.errors import DatasetError
from dataplane.plan import Block
from dataplane.storage import Store, digest_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One file of blocks, complete and durable in its store."""

    path: str
    """Relative to the dataset's root, with forward slashes."""
    num_bytes: int
    """Of the whole file."""
    blocks: tuple[Block, ...]
    """In the order of their rows."""

    @property
    def num_rows(self) -> int:
        return sum(block.num_rows for block in self.blocks)

    def to_json(self) -> dict[str, Any]:  # Any: JSON values
        """As JSON values, some 120 bytes for each block; `from_json` gives an equal shard back."""
        return {
            "path": self.path,
            "num_bytes": self.num_bytes,
            "blocks": [[b.offset, b.num_bytes, b.num_rows, b.raw_bytes, b.digest.hex()] for b in self.blocks],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Shard":  # Any: JSON values
        """Raises DatasetError if the document is not one that `to_json` gives."""
        try:
            path = inside_root(document["path"])
            blocks = tuple(
                Block(
                    shard=path,
                    offset=int(offset),
                    num_bytes=int(num_bytes),
                    num_rows=int(num_rows),
                    raw_bytes=int(raw_bytes),
                    digest=bytes.fromhex(digest),
                )
                for offset, num_bytes, num_rows, raw_bytes, digest in document["blocks"]
            )
            return cls(path=path, num_bytes=int(document["num_bytes"]), blocks=blocks)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetError(f"not the description of a shard: {type(error).__name__}: {error}") from None


class ShardWriter:
    """Writes blocks, in order, to shards of about the size that the encoding says. For one thread.

    A shard is in the store once it is full, under its final name and whole; `finish` gives what was made, to be
    committed by `commit_shards` in whatever process. The same blocks make the same shards. The unfinished shard is in
    memory.
    """

    def __init__(
        self,
        store: Store,
        schema: pa.Schema,
        encoding: Encoding = Encoding(),  # noqa: B008  # frozen
        *,
        first_row: int = 0,
    ) -> None:
        """`first_row` is the number of the first row, from which tars without `__key__` make their keys.

        Raises ValueError naming a column that shards of this encoding cannot hold.
        """
        self._store = store
        self._schema = schema
        self._encoding = encoding
        self._builder = encoding.shard_builder(schema, first_row=first_row)
        self._next_row = first_row
        self._shards: list[Shard] = []

    @property
    def num_bytes(self) -> int:
        """Compressed bytes written so far, the unfinished shard included."""
        return sum(shard.num_bytes for shard in self._shards) + self._builder.num_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds one block. Raises ValueError if the batch has another schema, no rows, or 2 GiB of them or more."""
        if batch.schema != self._schema or batch.num_rows == 0:
            raise ValueError(f"a block needs rows of schema {self._schema}, got {batch.num_rows} of {batch.schema}")
        if batch.nbytes > MOST_BLOCK_BYTES:
            raise ValueError(
                f"a block of {batch.num_rows} rows takes {batch.nbytes} bytes, more than {MOST_BLOCK_BYTES}, the "
                "limit; write fewer rows at once, or split a row that is larger"
            )
        self._builder.add(batch)
        self._next_row += batch.num_rows
        if self._builder.num_bytes >= min(self._encoding.shard_bytes, MOST_SHARD_BYTES):
            self._finish_shard()

    def finish(self) -> list[Shard]:
        """All shards written, in order, the last of them perhaps a small one; none if there were no blocks."""
        if self._builder.num_blocks:
            self._finish_shard()
        return list(self._shards)

    def _finish_shard(self) -> None:
        data, blocks = self._builder.finish()
        view = memoryview(data).cast("B")
        path = f"shards/{digest_of(view).hex()[:32]}{self._encoding.suffix}"
        self._store.write(path, view)
        named = tuple(replace(block, shard=path) for block in blocks)
        self._shards.append(Shard(path=path, num_bytes=len(view), blocks=named))
        self._builder = self._encoding.shard_builder(self._schema, first_row=self._next_row)

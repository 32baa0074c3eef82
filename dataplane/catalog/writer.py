"""Writing a whole dataset in one place: shards, and their commit."""

from collections.abc import Mapping

import pyarrow as pa

from dataplane.catalog.commit import commit_shards
from dataplane.catalog.encoding import Encoding
from dataplane.catalog.shards import ShardWriter
from dataplane.catalog.version import DatasetVersion
from dataplane.storage import Store


class DatasetWriter:
    """Writes blocks in order; `commit` makes them a version. Whatever is not committed is never seen.

    Where several processes write, each has a `ShardWriter` and one of them calls `commit_shards`.
    """

    def __init__(self, store: Store, schema: pa.Schema, encoding: Encoding = Encoding()) -> None:  # noqa: B008  # frozen
        """Raises ValueError naming a column that shards of this encoding cannot hold."""
        self.store = store
        self.schema = schema
        self._encoding = encoding
        self._writer = ShardWriter(store, schema, encoding)

    @property
    def num_bytes(self) -> int:
        """Compressed bytes written so far, the unfinished shard included."""
        return self._writer.num_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds one block. Raises ValueError if the batch has another schema, no rows, or 2 GiB of them or more."""
        self._writer.write(batch)

    def commit(self, *, metadata: Mapping[str, str], parent: DatasetVersion | None = None) -> DatasetVersion:
        """Makes the blocks visible, after those of `parent` if there is one.

        Raises VersionConflictError if another writer committed this number meanwhile; then nothing changed.
        """
        return commit_shards(
            self.store,
            self._writer.finish(),
            schema=self.schema,
            block_format=self._encoding.format,
            metadata=metadata,
            parent=parent,
        )

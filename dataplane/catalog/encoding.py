"""How blocks become files: form, compression, and when a shard is full."""

from dataclasses import dataclass

import pyarrow as pa

from dataplane.formats import ShardBuilder

# A block of a megabyte is a ranged read that an object store serves at near full speed, and shuffles finely.
BLOCK_BYTES = 1 << 20
# Large enough that a million-shard listing is petabytes, small enough to build in memory and put at once.
SHARD_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How blocks are compressed and when a shard is full."""

    codec: str = "zstd"
    level: int = 3
    """zstd's; 3 reads as fast as 9 and writes three times as fast."""
    shard_bytes: int = SHARD_BYTES

    def shard_builder(self, schema: pa.Schema) -> ShardBuilder:
        """An empty shard. Raises ValueError naming a column that it cannot hold."""
        return ShardBuilder(schema, codec=self.codec, level=self.level)

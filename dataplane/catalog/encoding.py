"""How blocks become files: form, compression, and when a shard is full."""

from dataclasses import dataclass

import pyarrow as pa

from dataplane.formats import ShardBuilder, TarShardBuilder, format_named

# A block of a megabyte is a ranged read that an object store serves at near full speed, and shuffles finely.
BLOCK_BYTES = 1 << 20
# Large enough that a million-shard listing is petabytes, small enough to build in memory and put at once.
SHARD_BYTES = 64 << 20
# A shard is built in memory, so another is begun here, whatever size was asked for.
MOST_SHARD_BYTES = 1 << 30
# Of a block's rows in memory: below it every reader's 31-bit offsets suffice, and one ranged read brings it.
MOST_BLOCK_BYTES = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Which files hold the blocks, how these are compressed, and when a file is full."""

    format: str = "arrow"
    """"arrow"; or "tar" or "tar.zst", WebDataset tars that the webdataset library reads."""
    codec: str = "zstd"
    """Of Arrow's buffers: "zstd", "lz4" or "none". A .tar.zst is zstd, a .tar is plain."""
    level: int = 3
    """zstd's; 3 reads as fast as 9 and writes three times as fast."""
    shard_bytes: int = SHARD_BYTES
    """A shard is full with the block that reaches this size, or a gibibyte if this is more."""

    @property
    def suffix(self) -> str:
        return format_named(self.format).suffix

    def shard_builder(self, schema: pa.Schema, *, first_row: int = 0) -> ShardBuilder | TarShardBuilder:
        """An empty shard, whose first row has this number. Raises ValueError naming a column that it cannot hold."""
        match self.format:
            case "arrow":
                return ShardBuilder(schema, codec=self.codec, level=self.level)
            case "tar":
                return TarShardBuilder(schema, first_row=first_row)
            case "tar.zst":
                return TarShardBuilder(schema, first_row=first_row, level=self.level)
        raise ValueError(f"format must be arrow, tar or tar.zst, got {self.format!r}")

"""What exists: the blocks of a dataset version, as columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A byte range of one file that decodes, on its own, into one record batch."""

    shard: str
    """Path of the file, relative to the dataset's root, with forward slashes."""
    offset: int
    num_bytes: int
    num_rows: int
    raw_bytes: int
    """Size of the decoded record batch in memory."""
    digest: bytes
    """BLAKE3 of the block's bytes, 32 bytes."""

    def __str__(self) -> str:
        return f"{self.shard} [{self.offset}, {self.offset + self.num_bytes})"


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """All blocks of a version in writing order; columns, since there may be millions of them."""

    shards: Sequence[str]
    shard: npt.NDArray[np.int32]
    """Place of each block's file in `shards`."""
    offset: npt.NDArray[np.int64]
    num_bytes: npt.NDArray[np.int64]
    num_rows: npt.NDArray[np.int64]
    raw_bytes: npt.NDArray[np.int64]
    digest: npt.NDArray[np.uint8]
    """Shape (blocks, 32)."""
    total_rows: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total_rows", int(self.num_rows.sum()))

    @classmethod
    def from_blocks(cls, blocks: Iterable[Block]) -> "BlockIndex":
        blocks = list(blocks)
        shards = list(dict.fromkeys(block.shard for block in blocks))
        place = {shard: number for number, shard in enumerate(shards)}
        digests = b"".join(block.digest for block in blocks)
        return cls(
            shards,
            np.array([place[block.shard] for block in blocks], np.int32),
            np.array([block.offset for block in blocks], np.int64),
            np.array([block.num_bytes for block in blocks], np.int64),
            np.array([block.num_rows for block in blocks], np.int64),
            np.array([block.raw_bytes for block in blocks], np.int64),
            np.frombuffer(digests, np.uint8).reshape(len(blocks), DIGEST_BYTES),
        )

    @classmethod
    def concatenate(cls, parts: Sequence["BlockIndex"]) -> "BlockIndex":
        """The blocks of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.from_blocks([])
        first_shard = np.cumsum([0, *(len(part.shards) for part in parts[:-1])])
        return cls(
            [shard for part in parts for shard in part.shards],
            np.concatenate([part.shard + start for part, start in zip(parts, first_shard, strict=True)]).astype(
                np.int32
            ),
            np.concatenate([part.offset for part in parts]),
            np.concatenate([part.num_bytes for part in parts]),
            np.concatenate([part.num_rows for part in parts]),
            np.concatenate([part.raw_bytes for part in parts]),
            np.concatenate([part.digest for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.offset)

    def __getitem__(self, number: int) -> Block:
        return Block(
            shard=self.shards[self.shard[number]],
            offset=int(self.offset[number]),
            num_bytes=int(self.num_bytes[number]),
            num_rows=int(self.num_rows[number]),
            raw_bytes=int(self.raw_bytes[number]),
            digest=self.digest[number].tobytes(),
        )

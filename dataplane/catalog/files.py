"""What files a version is made of."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from dataplane.catalog.ahead import in_order
from dataplane.catalog.dataset import read_index
from dataplane.catalog.version import DatasetVersion, IndexPart
from dataplane.plan import Block, BlockIndex
from dataplane.storage import Store

_THREADS = 8


@dataclass(frozen=True, slots=True)
class Files:
    """The files of some versions, by path; version files themselves are not among them."""

    parts: dict[str, IndexPart]
    records: frozenset[str]
    """Lists of inputs, named after their content."""
    blocks: dict[str, dict[int, Block]]
    """Of each shard, those that the versions name, by offset."""

    @property
    def paths(self) -> set[str]:
        return {*self.parts, *self.records, *self.blocks}


def files_of(store: Store, versions: Iterable[DatasetVersion]) -> Files:
    """Reads the index files, each once. Raises CorruptBlockError if one is missing or damaged."""
    versions = list(versions)
    parts = {part.path: part for version in versions for part in version.index}
    records = frozenset(path for version in versions if version.origin for path in version.origin.inputs)
    blocks: dict[str, dict[int, Block]] = {}
    for index in in_order(partial(read_index, store), parts.values(), threads=_THREADS):
        for block in blocks_of(index):
            blocks.setdefault(block.shard, {})[block.offset] = block
    return Files(parts, records, blocks)


def ends_of(index: BlockIndex) -> dict[str, int]:
    """Of each shard, where its last block ends: the least size that the file can have."""
    ends: dict[str, int] = {}
    for block in blocks_of(index):
        ends[block.shard] = max(ends.get(block.shard, 0), block.offset + block.num_bytes)
    return ends


def blocks_of(index: BlockIndex) -> Iterable[Block]:
    return (index[number] for number in range(len(index)))

"""What every format can do, and which there are."""

from typing import Protocol

import pyarrow as pa

from dataplane.formats.arrow import ArrowFormat
from dataplane.plan import Block


class Format(Protocol):
    """Turns files into blocks and a block's bytes into a record batch."""

    name: str
    suffix: str

    def index(self, data: bytes | memoryview, shard: str) -> tuple[pa.Schema, list[Block]]:
        """The schema and blocks of a whole file. Raises CorruptBlockError if it is not of this format."""
        ...

    def decode(self, data: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
        """The record batch of one block. Raises CorruptBlockError if the bytes are not one."""
        ...


_FORMATS: dict[str, Format] = {"arrow": ArrowFormat()}


def format_named(name: str) -> Format:
    """Raises ValueError for a name that no format has."""
    if name not in _FORMATS:
        raise ValueError(f"unknown block format {name!r}; known are {', '.join(_FORMATS)}")
    return _FORMATS[name]

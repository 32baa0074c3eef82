"""What every format can do, and which there are."""

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataplane.formats.arrow import ArrowFormat
from dataplane.formats.tar import TarFormat, TarZstFormat
from dataplane.plan import Block


class Format(Protocol):
    """Turns files into blocks and a block's bytes into a record batch."""

    name: str
    suffix: str

    def index(self, data: bytes | memoryview, shard: str) -> tuple[pa.Schema, list[Block]]:
        """The schema and blocks of a whole file. Raises CorruptBlockError if it is not of this format."""
        ...

    def decode(
        self,
        data: bytes | memoryview,
        schema: pa.Schema,
        *,
        columns: Collection[str] | None = None,
        out: Mapping[str, npt.NDArray[np.uint8]] | None = None,
    ) -> pa.RecordBatch:
        """One block's columns, or those named, in the schema's order.

        `out` offers memory for the values of some columns; a format that can decodes them right there. Raises
        CorruptBlockError if the bytes are no block.
        """
        ...


_FORMATS: dict[str, Format] = {"arrow": ArrowFormat(), "tar": TarFormat(), "tar.zst": TarZstFormat()}


def format_named(name: str) -> Format:
    """Raises ValueError for a name that no format has."""
    if name not in _FORMATS:
        raise ValueError(f"unknown block format {name!r}; known are {', '.join(_FORMATS)}")
    return _FORMATS[name]

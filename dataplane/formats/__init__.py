"""DECODE: a file to blocks, a block's bytes to a record batch. Knows no rank, seed or thread."""

from dataplane.formats.arrow import ArrowFormat, ShardBuilder
from dataplane.formats.base import Format, format_named
from dataplane.formats.tar import TarFormat, TarZstFormat
from dataplane.formats.tar_builder import TarShardBuilder

__all__ = [
    "ArrowFormat",
    "Format",
    "ShardBuilder",
    "TarFormat",
    "TarShardBuilder",
    "TarZstFormat",
    "format_named",
]

"""DECODE: a file to blocks, a block's bytes to a record batch. Knows no rank, seed or thread."""

from dataplane.formats.arrow import ArrowFormat, ShardBuilder
from dataplane.formats.base import Format, format_named
from dataplane.formats.tar import TarFormat

__all__ = ["ArrowFormat", "Format", "ShardBuilder", "TarFormat", "format_named"]

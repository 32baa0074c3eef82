"""The WebDataset tar: samples are runs of members whose names share a key, and a block is a run of whole samples.

Read where it lies: the blocks of a tar are byte ranges that tarfile opens on their own. Fields are named by what
follows the first dot of a member's base name, as webdataset names them. Of tars from elsewhere every field is bytes, of
ours what `tar_fields` says; nothing is ever unpickled. In a .tar.zst each block is a zstd frame.
"""

import re
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zstandard

from dataplane.errors import CorruptBlockError
from dataplane.formats.tar_fields import field_of
from dataplane.plan import Block
from dataplane.storage import digest_of

KEY = "__key__"
# As large as a native block: a ranged read that an object store serves at near full speed.
BLOCK_BYTES = 1 << 20
_RECORD = tarfile.BLOCKSIZE
_READ_BYTES = 1 << 20
# A frame may claim to inflate to this many times its size; zstd's real limit on zeros is about 10,000.
_MOST_INFLATION = 100_000
_NAME = re.compile(r"((?:.*/)?[^/.]+)\.([^/]+)")


@dataclass(frozen=True, slots=True)
class _Sample:
    """A run of members with one key: its bytes in the file, and where the data of each field lies."""

    key: str
    start: int
    stop: int
    fields: dict[str, tuple[int, int]]


class TarFormat:
    """Blocks are whole samples, members and headers included. One column per field, null where a sample lacks it."""

    name = "tar"
    suffix = ".tar"

    def index(self, data: bytes | memoryview, shard: str) -> tuple[pa.Schema, list[Block]]:
        samples = list(_samples(memoryview(data), shard, whole=True))
        _refuse_repeated((sample.key for sample in samples), shard)
        return _schema_of(samples), [_block(data, shard, run) for run in _runs(samples)]

    def decode(
        self,
        data: bytes | memoryview,
        schema: pa.Schema,
        *,
        columns: Collection[str] | None = None,
        out: Mapping[str, npt.NDArray[np.uint8]] | None = None,
    ) -> pa.RecordBatch:
        view = memoryview(data).cast("B")
        samples = list(_samples(view, "block", whole=False))
        fields = [field for field in schema if columns is None or field.name in columns]
        arrays = [_column(field, samples, view) for field in fields]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class TarZstFormat:
    """As `TarFormat`, but each block is a zstd frame, and so is the mark that ends the archive."""

    name = "tar.zst"
    suffix = ".tar.zst"

    def index(self, data: bytes | memoryview, shard: str) -> tuple[pa.Schema, list[Block]]:
        pieces = list(_frames(memoryview(data), shard))
        if not pieces or len(pieces[-1].data) < 2 * _RECORD or pieces[-1].data.strip(b"\0"):
            raise CorruptBlockError(f"{shard}: ends without the frame that marks its end; copy the archive again")
        runs = [(piece, list(_samples(memoryview(piece.data), shard, whole=False))) for piece in pieces[:-1]]
        _refuse_repeated((sample.key for _, samples in runs for sample in samples), shard)
        blocks = [
            Block(
                shard=shard,
                offset=piece.start,
                num_bytes=piece.stop - piece.start,
                num_rows=len(samples),
                raw_bytes=_raw_bytes(samples),
                digest=digest_of(memoryview(data)[piece.start : piece.stop]),
            )
            for piece, samples in runs
        ]
        return _schema_of(sample for _, samples in runs for sample in samples), blocks

    def decode(
        self,
        data: bytes | memoryview,
        schema: pa.Schema,
        *,
        columns: Collection[str] | None = None,
        out: Mapping[str, npt.NDArray[np.uint8]] | None = None,
    ) -> pa.RecordBatch:
        try:
            size = zstandard.frame_content_size(data)
            if not 0 <= size <= _MOST_INFLATION * len(data):
                raise CorruptBlockError(f"block of {len(data)} bytes claims to inflate to {size}")
            inflated = zstandard.ZstdDecompressor().decompress(data)
        except zstandard.ZstdError as error:
            raise CorruptBlockError(f"block does not decompress: {error}") from error
        return TarFormat().decode(inflated, schema, columns=columns, out=out)


@dataclass(frozen=True, slots=True)
class _Frame:
    """A zstd frame: where it lies, and what it holds."""

    start: int
    stop: int
    data: bytes


def _frames(view: memoryview, where: str) -> Iterator[_Frame]:
    """The frames of a file. Raises CorruptBlockError if it ends within one."""
    start = 0
    while start < len(view):
        inflating = zstandard.ZstdDecompressor().decompressobj()
        held, place = [], start
        try:
            while not inflating.eof and place < len(view):
                held.append(inflating.decompress(view[place : place + _READ_BYTES]))
                place += _READ_BYTES
        except zstandard.ZstdError as error:
            raise CorruptBlockError(f"{where}: not readable as zstd at byte {start}: {error}") from error
        if not inflating.eof:
            raise CorruptBlockError(f"{where}: ends within a zstd frame; copy the archive again")
        stop = min(place, len(view)) - len(inflating.unused_data)
        yield _Frame(start, stop, b"".join(held))
        start = stop


def key_and_field(name: str) -> tuple[str, str] | None:
    """What a member's name says: the key, with its folders, and the field in lower case; None if it does not."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1], match[2].lower())


def _samples(view: memoryview, where: str, *, whole: bool) -> Iterator[_Sample]:
    """The samples in an archive, or in a piece of one. Raises CorruptBlockError if it ends within a member, or, for a
    whole archive, without the mark that ends it."""
    run: _Sample | None = None
    for member in _members(view, where, whole=whole):
        split = key_and_field(member.name)
        if split is None:
            raise CorruptBlockError(
                f"{where}: member {member.name!r} has no key and field; names must be KEY.FIELD, such as 000.jpg"
            )
        key, field = split
        stop = member.offset_data + -(-member.size // _RECORD) * _RECORD
        place = (member.offset_data, member.offset_data + member.size)
        if run is None or run.key != key:
            if run is not None:
                yield run
            run = _Sample(key, member.offset, stop, {})
        if field == KEY:
            raise CorruptBlockError(f"{where}: member {member.name!r} is named like the column of keys; rename it")
        if field in run.fields:
            raise CorruptBlockError(f"{where}: key {key!r} has field {field!r} twice")
        run = _Sample(key, run.start, stop, {**run.fields, field: place})
    if run is not None:
        yield run


def _members(view: memoryview, where: str, *, whole: bool) -> Iterator[tarfile.TarInfo]:
    """The files of an archive in order; directories are passed over."""
    end = 0
    try:
        # "r:" reads plain archives only: what is inside a compressed one cannot be addressed.
        with tarfile.open(fileobj=BytesIO(view), mode="r:") as archive:
            for member in archive:
                end = member.offset_data + -(-member.size // _RECORD) * _RECORD
                if end > len(view):
                    raise CorruptBlockError(f"{where}: ends within member {member.name!r}; copy the archive again")
                if not (member.isfile() or member.isdir()) or member.issparse():
                    raise CorruptBlockError(f"{where}: member {member.name!r} is a link or special file, not a file")
                if member.isfile():
                    yield member
    except tarfile.TarError as error:
        raise CorruptBlockError(f"{where}: not a readable tar: {error}") from error
    rest = bytes(view[end:])
    if rest.strip(b"\0") or (whole and len(rest) < 2 * _RECORD) or (not whole and rest):
        raise CorruptBlockError(f"{where}: ends {len(rest)} bytes after its last member, without its end mark")


def _runs(samples: list[_Sample]) -> Iterator[list[_Sample]]:
    """Samples, some megabyte at a time."""
    run: list[_Sample] = []
    for sample in samples:
        if run and sample.stop - run[0].start > BLOCK_BYTES:
            yield run
            run = []
        run.append(sample)
    if run:
        yield run


def _block(data: bytes | memoryview, shard: str, run: list[_Sample]) -> Block:
    start, stop = run[0].start, run[-1].stop
    return Block(
        shard=shard,
        offset=start,
        num_bytes=stop - start,
        num_rows=len(run),
        raw_bytes=_raw_bytes(run),
        digest=digest_of(memoryview(data)[start:stop]),
    )


def _column(field: pa.Field, samples: list[_Sample], view: memoryview) -> pa.Array:
    if field.name == KEY:
        return pa.array([sample.key for sample in samples], pa.string())
    kept = field_of(field)
    places = [sample.fields.get(kept.name) for sample in samples]
    try:
        return kept.decode([None if place is None else view[place[0] : place[1]] for place in places])
    except (ValueError, TypeError, EOFError, pa.ArrowException) as error:
        raise CorruptBlockError(f"field {kept.name!r} does not decode to column {field.name!r}: {error}") from error


def _schema_of(samples: Iterable[_Sample]) -> pa.Schema:
    names = dict.fromkeys(name for sample in samples for name in sample.fields)
    return pa.schema([pa.field(KEY, pa.string(), nullable=False), *(pa.field(n, pa.binary()) for n in names)])


def _raw_bytes(samples: Iterable[_Sample]) -> int:
    return sum(high - low for sample in samples for low, high in sample.fields.values())


def _refuse_repeated(keys: Iterator[str], where: str) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise CorruptBlockError(
                f"{where}: the members of key {key!r} do not stand together; sort the archive by name"
            )
        seen.add(key)

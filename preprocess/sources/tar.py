"""WebDataset tars, plain or compressed, from start to end: a row per sample, a binary column per field, `__key__`.

Members whose names share a key must stand together. An archive that is cut, or goes on behind its end, is refused.
"""

import tarfile
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from dataplane.errors import InputError
from dataplane.formats.tar import KEY, key_and_field
from preprocess.schema import Survey, conform
from preprocess.sources.byte_stream import byte_stream
from preprocess.sources.contents import Contents
from preprocess.sources.documents import grouped
from preprocess.sources.input_file import MAX_RECORD_BYTES, InputFile, Piece
from preprocess.sources.lines import decode_utf8

# Bytes of the fields of one record batch.
_BATCH_BYTES = 8 << 20
_READ_BYTES = 1 << 20
_BLOCK = tarfile.BLOCKSIZE

Sample = dict[str, bytes | None]
"""The fields in order; None for what nobody asked for."""


class Tar:
    """Reads WebDataset tars."""

    def __init__(self, contents: Contents, text_column: str) -> None:
        self._contents = contents
        self._text_column = text_column

    def cut(self, file: InputFile, num_bytes: int) -> list[Piece]:
        return [Piece.whole(file)]

    def texts(self, piece: Piece) -> Iterator[list[str]]:
        return grouped(self._texts(piece.file))

    def survey(self, piece: Piece, survey: Survey) -> None:
        counts: dict[str, int] = {}
        num_samples = 0
        for _, sample in self._samples(piece.file, lambda _: False):
            num_samples += 1
            for name in sample:
                counts[name] = counts.get(name, 0) + 1
        fields = [pa.field(KEY, pa.string(), nullable=False)]
        fields += [pa.field(name, pa.binary(), nullable=count < num_samples) for name, count in counts.items()]
        wanted = pa.schema([field for field in fields if survey.wants(field.name)])
        survey.add_schema(wanted, str(piece.file), all_names=[KEY, *counts])

    def batches(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        keys: list[str] = []
        samples: list[Sample] = []
        size = 0
        for key, sample in self._samples(piece.file, lambda name: name in schema.names):
            num_bytes = sum(len(value) for value in sample.values() if value is not None)
            if samples and size + num_bytes > _BATCH_BYTES:
                yield _record_batch(keys, samples, schema, piece.file)
                keys, samples, size = [], [], 0
            keys.append(key)
            samples.append(sample)
            size += num_bytes
        if samples:
            yield _record_batch(keys, samples, schema, piece.file)

    def _texts(self, file: InputFile) -> Iterator[str]:
        column = self._text_column
        for key, sample in self._samples(file, lambda name: name == column):
            text = sample.get(column)
            if text is None:
                raise InputError(
                    f"{file}: sample {key!r} has no field {column!r}; its fields are {', '.join(sample)}, "
                    "choose one with --text-column"
                )
            yield decode_utf8(text, partial("{}: sample {!r}".format, file, key))

    def _samples(self, file: InputFile, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Sample]]:
        """Key and fields of each sample; reads the wanted fields only."""
        before: set[str] = set()
        last: str | None = None
        sample: Sample = {}
        for member, read in _members(self._contents.whole(file), file):
            split = key_and_field(member.name)
            if split is None:
                raise InputError(
                    f"{file}: member {member.name!r} has no key and field; names must be KEY.FIELD, such as 000.jpg"
                )
            key, name = split
            if key != last:
                if last is not None:
                    yield last, sample
                if key in before:
                    raise InputError(
                        f"{file}: the members of key {key!r} do not stand together; sort the archive by name"
                    )
                before.add(key)
                last, sample = key, {}
            if name == KEY:
                raise InputError(f"{file}: member {member.name!r} is named like the column of keys; rename it")
            if name in sample:
                raise InputError(f"{file}: key {key!r} has field {name!r} twice")
            if member.size > MAX_RECORD_BYTES:
                raise InputError(
                    f"{file}: member {member.name!r} has {member.size} bytes, more than {MAX_RECORD_BYTES}, "
                    "the limit of one field"
                )
            sample[name] = read() if wanted(name) else None
        if last is not None:
            yield last, sample


def _record_batch(keys: list[str], samples: list[Sample], schema: pa.Schema, file: InputFile) -> pa.RecordBatch:
    names = [name for name in dict.fromkeys(name for sample in samples for name in sample) if name in schema.names]
    columns = [pa.array(keys, pa.string())]
    columns += [pa.array([sample.get(name) for sample in samples], pa.binary()) for name in names]
    return conform(pa.record_batch(columns, names=[KEY, *names]), schema, str(file))


def _members(parts: Iterator[bytes], file: InputFile) -> Iterator[tuple[tarfile.TarInfo, Callable[[], bytes]]]:
    """The files of an archive in order, each with how to read it before the next one is asked for."""
    measured = _Measured(parts)
    end = 0
    try:
        with tarfile.open(fileobj=byte_stream(measured), mode="r|", bufsize=_READ_BYTES) as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would remember all of them
                if not (member.isfile() or member.isdir()) or member.issparse():
                    raise InputError(f"{file}: member {member.name!r} is a link or special file, not a file")
                end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
                if member.isfile():
                    yield member, _reader_of(archive, member)
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"{file}: not a readable tar: {error}; copy the archive again") from error
    for _ in measured:
        pass
    if measured.end_of_data > end:
        raise InputError(f"{file}: has something after byte {end}, where its last member ends; it is damaged")
    if measured.num_bytes < end + 2 * _BLOCK:
        raise InputError(f"{file}: ends after {measured.num_bytes} bytes without its end mark; copy the archive again")


def _reader_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[], bytes]:
    def read() -> bytes:
        content = archive.extractfile(member)
        assert content is not None  # it is a file
        return content.read()

    return read


class _Measured:
    """Bytes as they come, and afterwards how many there were, and where the zeros at their end begin."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self.num_bytes = 0
        self.end_of_data = 0

    def __iter__(self) -> "_Measured":
        return self

    def __next__(self) -> bytes:
        part = next(self._parts)
        if data := part.rstrip(b"\0"):
            self.end_of_data = self.num_bytes + len(data)
        self.num_bytes += len(part)
        return part

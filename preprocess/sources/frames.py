"""Where the frames of a zstd file begin, without decompressing it."""

import struct
from collections.abc import Iterator

from preprocess.sources.input_file import InputFile

_FRAME = 0xFD2FB528
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_SEEK_TABLE = 0x184D2A5E
_SEEKABLE = 0x8F92EAB1
_SEEK_FOOTER = struct.Struct("<IBI")
_RAW, _REPEATED, _COMPRESSED = range(3)


def frame_starts(file: InputFile) -> list[int]:
    """Byte offsets at which a frame begins, from 0; only [0] where it would cost too much to find the others.

    A seek table at the end names them; else local files are walked from block to block, which on a remote store
    would cost a request for each 128 KiB. In a file that is not well formed, nothing after the fault is found.
    """
    if starts := _listed(file):
        return starts
    return list(_walked(file)) if file.store.is_local else [0]


def _listed(file: InputFile) -> list[int]:
    """Of the seekable format; none unless its table accounts for every byte of the file."""
    if file.num_bytes < _SEEK_FOOTER.size + 8:
        return []
    footer = _read(file, file.num_bytes - _SEEK_FOOTER.size, file.num_bytes)
    num_frames, flags, magic = _SEEK_FOOTER.unpack(footer)
    entry = 12 if flags & 0x80 else 8
    table_bytes = 8 + num_frames * entry + _SEEK_FOOTER.size
    if magic != _SEEKABLE or table_bytes > file.num_bytes:
        return []
    table = _read(file, file.num_bytes - table_bytes, file.num_bytes)
    if struct.unpack_from("<II", table) != (_SEEK_TABLE, table_bytes - 8):
        return []
    starts = [0]
    for number in range(num_frames):
        (num_bytes,) = struct.unpack_from("<I", table, 8 + number * entry)
        starts.append(starts[-1] + num_bytes)
    return starts[:-1] if starts[-1] == file.num_bytes - table_bytes else []


def _walked(file: InputFile) -> Iterator[int]:
    """The starts of the frames that are whole, and of what follows them."""
    position: int | None = 0
    while position is not None and position < file.num_bytes:
        yield position
        position = _end_of_frame(file, position)


def _end_of_frame(file: InputFile, start: int) -> int | None:
    """Where the frame ends that begins at `start`; None if it is cut or none begins there."""
    head = _read(file, start, start + 18)
    if len(head) < 8:
        return None
    magic, size = struct.unpack_from("<II", head)
    if magic in _SKIPPABLE:
        return start + 8 + size
    if magic != _FRAME:
        return None
    descriptor = head[4]
    single_segment = descriptor >> 5 & 1
    content_size = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    dictionary_id = (0, 1, 2, 4)[descriptor & 3]
    position = start + 5 + (1 - single_segment) + dictionary_id + content_size
    last = False
    while not last:
        block = _read(file, position, position + 3)
        if len(block) < 3:
            return None
        header = int.from_bytes(block, "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind > _COMPRESSED:
            return None
        position += 3 + (1 if kind == _REPEATED else size)
    return position + (4 if descriptor & 4 else 0)


def _read(file: InputFile, start: int, stop: int) -> bytes:
    """The bytes [start, stop), fewer where the file ends."""
    stop = min(stop, file.num_bytes)
    return bytes(file.store.read_range(file.path, start, stop)) if start < stop else b""

"""Compressed bytes to plain ones, in bounded pieces.

A file may hold any number of gzip members, zstd frames, or bzip2 or xz streams. The libraries end in silence where a
file was cut, so each member's end is looked for here.
"""

import bz2
import itertools
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import zstandard

from dataplane.errors import InputError
from preprocess.sources.input_file import Compression

# Frames that need more memory are refused unless asked for; the limit of the zstd program and library themselves.
DEFAULT_WINDOW_LOG = 27
MAX_WINDOW_LOG = 31

# The longest frame header; the window's size is in it.
_HEADER_BYTES = 18
# A hostile zstd frame makes 128 KiB of 4 bytes, and the decompressor gives all that its input makes:
# 4 KiB in are at most 128 MiB out, and usually some 16 KiB.
_ZSTD_PIECE_BYTES = 4 << 10
# Bounds what the others make of one chunk.
_OUTPUT_BYTES = 4 << 20
# The start of an xz stream with its first block's header.
_XZ_HEAD_BYTES = 12 + 1024
_LZMA2 = 0x21
# What xz needs beside its dictionary.
_XZ_OVERHEAD_BYTES = 1 << 20


def decompressed(
    chunks: Iterable[bytes | memoryview], compression: Compression, *, where: str, window_log: int
) -> Iterator[bytes]:
    """The plain bytes, in pieces of no particular size.

    Raises InputError naming `where` if the stream is damaged, cut, or needs a zstd window or an xz dictionary of more
    than 2**window_log bytes.
    """
    match compression:
        case Compression.NONE:
            return (bytes(chunk) for chunk in chunks)
        case Compression.GZIP:
            return _gunzipped(chunks, where)
        case Compression.ZSTD:
            return _unzstd(chunks, where, window_log)
        case Compression.BZIP2:
            return _streams(chunks, where, "bzip2", bz2.BZ2Decompressor, window_log)
        case Compression.XZ:
            limit = (1 << window_log) + _XZ_OVERHEAD_BYTES
            xz = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=limit)
            return _streams(_dictionaries_checked(chunks, where, window_log), where, "xz", xz, window_log)


def _gunzipped(chunks: Iterable[bytes | memoryview], where: str) -> Iterator[bytes]:
    member = None
    any_member = False
    for chunk in chunks:
        data = bytes(chunk)
        while data:
            if member is None:
                # Zeros after a member are padding, as the gzip program has it.
                if any_member and not (data := data.lstrip(b"\0")):
                    break
                member, any_member = zlib.decompressobj(wbits=31), True
            try:
                yield member.decompress(data, _OUTPUT_BYTES)
            except zlib.error as error:
                raise InputError(f"{where}: the gzip stream is damaged ({error}); fetch the file again") from error
            data = member.unused_data if member.eof else member.unconsumed_tail
            if member.eof:
                member = None
    if member is not None:
        yield member.flush()
        if not member.eof:
            raise _cut(where, "gzip")


def _unzstd(chunks: Iterable[bytes | memoryview], where: str, window_log: int) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << window_log)
    frame = None
    head = b""
    for piece in itertools.chain(_pieces(chunks), [None]):
        data, head = head + (piece or b""), b""
        while data:
            if frame is None:
                if len(data) < _HEADER_BYTES and piece is not None:
                    head = data  # the next piece completes the header
                    break
                _check_header(data, where, window_log)
                frame = decompressor.decompressobj()
            try:
                yield frame.decompress(data)
            except zstandard.ZstdError as error:
                raise InputError(f"{where}: the zstd stream is damaged ({error}); fetch the file again") from error
            data = frame.unused_data if frame.eof else b""
            if frame.eof:
                frame = None
    if frame is not None:
        raise _cut(where, "zstd")


def _streams(
    chunks: Iterable[bytes | memoryview],
    where: str,
    kind: str,
    begun: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor],
    window_log: int,
) -> Iterator[bytes]:
    """The content of streams one after another, with zeros between them and at the end."""
    stream = None
    for chunk in chunks:
        data = bytes(chunk)
        while data:
            if stream is None:
                if not (data := data.lstrip(b"\0")):
                    break
                stream = begun()
            try:
                yield stream.decompress(data, _OUTPUT_BYTES)
                while not stream.needs_input and not stream.eof:
                    yield stream.decompress(b"", _OUTPUT_BYTES)
            except (OSError, lzma.LZMAError) as error:
                if "Memory usage limit" in str(error):
                    raise InputError(
                        f"{where}: needs an xz dictionary of more than the limit of 2^{window_log} bytes; "
                        "allow it with a larger --zstd-window-log"
                    ) from None
                raise InputError(f"{where}: the {kind} stream is damaged ({error}); fetch the file again") from error
            data = stream.unused_data if stream.eof else b""
            if stream.eof:
                stream = None
    if stream is not None:
        raise _cut(where, kind)


def _dictionaries_checked(
    chunks: Iterable[bytes | memoryview], where: str, window_log: int
) -> Iterator[bytes | memoryview]:
    """The same bytes. Raises InputError if the first block says that it needs too large a dictionary."""
    chunks = iter(chunks)
    head = b""
    for chunk in chunks:
        head += bytes(chunk)
        if len(head) >= _XZ_HEAD_BYTES:
            break
    num_bytes = _dictionary_bytes(head)
    if num_bytes > 1 << window_log:
        raise _too_large("an xz dictionary", num_bytes, where, window_log)
    yield head
    yield from chunks


def _dictionary_bytes(head: bytes) -> int:
    """Of the first block of an xz stream; 0 where that is not to be seen."""
    try:
        flags, position = head[13], 14
        for is_there in (flags & 0x40, flags & 0x80):  # the sizes of the block
            if is_there:
                _, position = _xz_number(head, position)
        for _ in range((flags & 3) + 1):
            kind, position = _xz_number(head, position)
            size, position = _xz_number(head, position)
            if kind == _LZMA2:
                bits = head[position]
                return 2**32 - 1 if bits == 40 else (2 | bits & 1) << (bits // 2 + 11)
            position += size
    except IndexError:
        pass
    return 0


def _xz_number(data: bytes, position: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    while data[position] & 0x80:
        value |= (data[position] & 0x7F) << shift
        shift += 7
        position += 1
    return value | data[position] << shift, position + 1


def _pieces(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), _ZSTD_PIECE_BYTES):
            yield bytes(chunk[start : start + _ZSTD_PIECE_BYTES])


def _check_header(data: bytes, where: str, window_log: int) -> None:
    try:
        window = zstandard.get_frame_parameters(data[:_HEADER_BYTES]).window_size
    except zstandard.ZstdError as error:
        if "not enough data" in str(error):
            raise _cut(where, "zstd") from error
        raise InputError(
            f"{where}: found {data[:4].hex(' ')} where a zstd frame should begin; "
            "the file is not zstd, or has something else after its last frame"
        ) from error
    if window > 1 << window_log:
        raise _too_large("a zstd window", window, where, window_log)


def _too_large(what: str, num_bytes: int, where: str, window_log: int) -> InputError:
    needed = (num_bytes - 1).bit_length()
    advice = (
        f"allow it with --zstd-window-log {needed}"
        if needed <= MAX_WINDOW_LOG
        else f"compress the file again with at most 2^{MAX_WINDOW_LOG}"
    )
    limit = f"the limit of {1 << window_log} (2^{window_log})"
    return InputError(f"{where}: needs {what} of {num_bytes} bytes, more than {limit}; {advice}")


def _cut(where: str, kind: str) -> InputError:
    return InputError(f"{where}: the {kind} stream ends too early; the file is truncated, fetch it again")

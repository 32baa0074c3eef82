"""Compressed bytes to plain ones, in bounded pieces.

A file may hold any number of gzip members or zstd frames. The libraries end in silence where a file was cut, so each
member's end is looked for here.
"""

import itertools
import zlib
from collections.abc import Iterable, Iterator

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
# Bounds what gzip makes of one chunk.
_GZIP_OUTPUT_BYTES = 4 << 20


def decompressed(
    chunks: Iterable[bytes | memoryview], compression: Compression, *, where: str, window_log: int
) -> Iterator[bytes]:
    """The plain bytes, in pieces of no particular size.

    Raises InputError naming `where` if the stream is damaged, cut, or needs a zstd window of more than
    2**window_log bytes.
    """
    match compression:
        case Compression.NONE:
            return (bytes(chunk) for chunk in chunks)
        case Compression.GZIP:
            return _gunzipped(chunks, where)
        case Compression.ZSTD:
            return _unzstd(chunks, where, window_log)


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
                yield member.decompress(data, _GZIP_OUTPUT_BYTES)
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
        needed = (window - 1).bit_length()
        advice = (
            f"allow it with --zstd-window-log {needed}"
            if needed <= MAX_WINDOW_LOG
            else f"compress the file again with a window of at most 2^{MAX_WINDOW_LOG}"
        )
        raise InputError(
            f"{where}: needs a zstd window of {window} bytes, more than the limit of {1 << window_log} "
            f"(2^{window_log}); {advice}"
        )


def _cut(where: str, kind: str) -> InputError:
    return InputError(f"{where}: the {kind} stream ends too early; the file is truncated, fetch it again")

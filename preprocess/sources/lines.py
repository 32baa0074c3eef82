"""Bytes to lines. Only a newline byte ends a line: U+2028, form feeds and the like are content."""

from collections.abc import Iterable, Iterator

from dataplane.errors import InputError
from preprocess.sources.input_file import MAX_RECORD_BYTES

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def split_lines(
    chunks: Iterable[bytes], where: str, *, max_bytes: int = MAX_RECORD_BYTES
) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of each line, without its newline and without a byte-order mark at the start.

    Raises InputError as soon as a line is longer than `max_bytes`.
    """
    for number, line in enumerate(_raw_lines(chunks, where, max_bytes), 1):
        yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


def _raw_lines(chunks: Iterable[bytes], where: str, max_bytes: int) -> Iterator[bytes]:
    begun: list[bytes] = []  # pieces of a line whose newline has not come yet
    num_bytes = num_lines = 0
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        begun.append(first)
        num_bytes += len(first)
        if num_bytes > max_bytes:
            raise InputError(
                f"{where}:{num_lines + 1}: the line has more than {max_bytes} bytes, the limit of one record; "
                "split the record or leave it out"
            )
        if rest:
            *whole, last = rest
            yield b"".join(begun)
            yield from whole
            num_lines += 1 + len(whole)
            begun, num_bytes = [last], len(last)
    if tail := b"".join(begun):
        yield tail


def decode_utf8(data: bytes, where: str) -> str:
    """The text. Raises InputError naming `where` and the first byte that is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8, found 0x{data[error.start]:02x} at byte {error.start} ({error.reason}); "
            "convert the file to UTF-8"
        ) from None

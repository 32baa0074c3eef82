"""Bytes to lines. Only a newline byte ends a line: U+2028, form feeds and the like are content."""

from collections.abc import Callable, Iterable, Iterator

from dataplane.errors import InputError
from preprocess.sources.input_file import MAX_RECORD_BYTES

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def line_runs(
    own: Iterable[bytes],
    beyond: Iterable[bytes],
    place: Callable[[int], str],
    *,
    at_start: bool,
    max_bytes: int = MAX_RECORD_BYTES,
) -> Iterator[list[bytes]]:
    """The lines that begin behind a newline in `own`, or at the start of the file, without newlines; some at a time.

    The last one is finished from `beyond`, of which no more is taken than that needs. A byte-order mark at the start of
    the file is left out. Raises InputError as soon as a line is longer than `max_bytes`; `place` says where a line is,
    by its number from 1.
    """
    begun: list[bytes] = []  # parts of a line whose newline has not come yet
    num_bytes = num_lines = 0
    inside = at_start
    for chunk in own:
        if not inside:
            _, newline, chunk = chunk.partition(b"\n")
            if not newline:
                continue
            inside = True
        lines = chunk.split(b"\n")
        begun.append(lines[0])
        num_bytes += len(lines[0])
        if num_bytes > max_bytes:
            raise _too_long(place(num_lines + 1), max_bytes)
        if len(lines) > 1:
            lines[0] = b"".join(begun)
            begun = [lines.pop()]
            num_bytes = len(begun[0])
            if at_start and not num_lines:
                lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
            num_lines += len(lines)
            yield lines
    if not inside:
        return
    newline = b""
    for chunk in beyond:
        end, newline, _ = chunk.partition(b"\n")
        begun.append(end)
        num_bytes += len(end)
        if num_bytes > max_bytes:
            raise _too_long(place(num_lines + 1), max_bytes)
        if newline:
            break
    line = b"".join(begun)
    if newline or line:
        yield [line.removeprefix(BYTE_ORDER_MARK) if at_start and not num_lines else line]


def _too_long(where: str, max_bytes: int) -> InputError:
    return InputError(
        f"{where}: the line has more than {max_bytes} bytes, the limit of one record; split the record or leave it out"
    )


def decode_utf8(data: bytes, where: Callable[[], str]) -> str:
    """The text. Raises InputError naming where it is and the first byte that is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where()}: not UTF-8, found 0x{data[error.start]:02x} at byte {error.start} ({error.reason}); "
            "convert the file to UTF-8"
        ) from None

"""The plain bytes of files and of their pieces, and the lines in them.

A piece that is cut by bytes begins anywhere in a line. A line belongs to the piece that holds the newline before it, or
the start of the file: a piece is read from behind its first newline, and on past its end through the next one.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

from dataplane.metrics import Metrics
from preprocess.sources.compression import decompressed
from preprocess.sources.frames import frame_starts
from preprocess.sources.input_file import CHUNK_BYTES, Compression, InputFile, Piece
from preprocess.sources.lines import line_runs

# What is read of the next piece to finish a line, at first; most lines are shorter.
_AHEAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Contents:
    """Reads plain bytes, whatever the compression; counts what it reads of the compressed ones as `input_bytes`."""

    window_log: int
    """zstd windows of more than 2 to this power bytes are refused."""
    metrics: Metrics

    def cut(self, file: InputFile, num_bytes: int) -> list[Piece]:
        """Pieces of about `num_bytes`: anywhere in plain files, between the frames of zstd, else one piece."""
        match file.compression:
            case Compression.NONE:
                count = -(-file.num_bytes // num_bytes)
                starts = [file.num_bytes * number // count for number in range(count)]
            case Compression.ZSTD if file.num_bytes > num_bytes:
                starts = _spaced(frame_starts(file), num_bytes)
            case _:
                starts = []
        stops = [*starts[1:], file.num_bytes]
        return [
            Piece(file=file, start=start, stop=stop, num_bytes=stop - start)
            for start, stop in zip(starts or [0], stops, strict=True)
        ]

    def whole(self, file: InputFile) -> Iterator[bytes]:
        """All plain bytes, in pieces of no particular size."""
        return self._own(Piece.whole(file))

    def line_runs(self, piece: Piece) -> Iterator[list[bytes]]:
        """The lines of a piece, some at a time, without newlines and without a byte-order mark at the start."""
        place = partial(self.place, piece)
        return line_runs(self._own(piece), self._beyond(piece), place, at_start=not piece.start)

    def lines(self, piece: Piece) -> Iterator[tuple[int, bytes]]:
        """The same one by one, with their numbers in the piece, from 1."""
        return enumerate(chain.from_iterable(self.line_runs(piece)), 1)

    def lines_beyond(self, piece: Piece) -> Iterator[bytes]:
        """The lines that follow those of a piece; they belong to others."""
        place = partial(self.place, piece)
        return chain.from_iterable(line_runs(self._beyond(piece), (), place, at_start=False))

    def place(self, piece: Piece, number: int) -> str:
        """File and line, for people, of a line of a piece, from 1. Reads what comes before the piece."""
        if piece.start:
            number += 1 + sum(chunk.count(b"\n") for chunk in self._plain(piece.file, 0, piece.start))
        return f"{piece.file}:{number}"

    def _own(self, piece: Piece) -> Iterator[bytes]:
        chunks = _counted(piece.file.chunks(piece.start, piece.stop), self.metrics)
        return self._decompressed(piece.file, chunks)

    def _beyond(self, piece: Piece) -> Iterator[bytes]:
        return self._plain(piece.file, piece.stop, piece.file.num_bytes, first_bytes=_AHEAD_BYTES)

    def _plain(self, file: InputFile, start: int, stop: int, *, first_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        return self._decompressed(file, file.chunks(start, stop, first_bytes=first_bytes))

    def _decompressed(self, file: InputFile, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
        return decompressed(chunks, file.compression, where=str(file), window_log=self.window_log)


def _counted(chunks: Iterable[bytes | memoryview], metrics: Metrics) -> Iterator[bytes | memoryview]:
    for chunk in chunks:
        metrics.add(input_bytes=len(chunk))
        yield chunk


def _spaced(starts: list[int], num_bytes: int) -> list[int]:
    """Those of the sorted places where a piece is to begin, so that each has about `num_bytes`."""
    chosen = starts[:1]
    while chosen and (next_one := bisect_left(starts, chosen[-1] + num_bytes)) < len(starts):
        chosen.append(starts[next_one])
    return chosen

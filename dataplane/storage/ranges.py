"""Which bytes to ask for together, and which apart. Pure arithmetic."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

# Up to this size a request costs its latency more than its bytes (at 30 ms and 50 MB/s a stream, 1.5 MB).
_TOGETHER_BYTES = 1 << 20
# Padding between blocks that is worth reading; more would be bytes that nobody needs.
_GAP_BYTES = 512
# Larger blocks come sooner as parts of at least this size, if there is room in flight.
_PART_BYTES = 4 << 20
# How far along the queue neighbours are looked for.
SEEN_AHEAD = 64


class Span(Protocol):
    """A run of bytes in a shard."""

    @property
    def shard(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...


def neighbours(spans: Sequence[Span]) -> list[int]:
    """Which of the spans to read together with the first, itself included, in the order of their bytes."""
    first = spans[0]
    here = sorted(
        (number for number, span in enumerate(spans[:SEEN_AHEAD]) if span.shard == first.shard),
        key=lambda number: (spans[number].offset, number != 0),
    )
    low = high = here.index(0)

    def joins(left: int, right: int) -> bool:
        gap = spans[right].offset - (spans[left].offset + spans[left].num_bytes)
        start = min(spans[here[low]].offset, spans[left].offset)
        stop = max(spans[here[high]].offset + spans[here[high]].num_bytes, spans[right].offset + spans[right].num_bytes)
        return 0 <= gap <= _GAP_BYTES and stop - start <= _TOGETHER_BYTES

    while high + 1 < len(here) and joins(here[high], here[high + 1]):
        high += 1
    while low > 0 and joins(here[low - 1], here[low]):
        low -= 1
    return here[low : high + 1]


def parts(start: int, stop: int, *, room: int) -> list[tuple[int, int]]:
    """[start, stop) in parts that can be asked for at once: no more than there is room for, none of them small."""
    count = max(1, min(room, (stop - start) // _PART_BYTES))
    cuts = [start + (stop - start) * number // count for number in range(count + 1)]
    return list(pairwise(cuts))

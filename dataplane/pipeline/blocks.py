"""The blocks in memory: asked for in the order of need, decoded into slots, released when the plan is past them."""

import heapq
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataplane.errors import CorruptBlockError
from dataplane.metrics import Metrics
from dataplane.pipeline.arena import Arena
from dataplane.pipeline.workers import WorkerPool

Ints = npt.NDArray[np.int64]
Bytes = bytes | memoryview

# A block's number and bytes, and memory that its columns may be decoded into, to a record batch.
Decode = Callable[[int, Bytes, Mapping[str, npt.NDArray[np.uint8]]], pa.RecordBatch]


# Has a block brought: calls back once, on any thread, with its bytes or with the error that prevents them.
Bring = Callable[[int, Callable[[Bytes | BaseException], None]], None]


class BlockStage:
    """Has blocks brought ahead of need and decodes them on threads; never holds more decoded ones than there are slots.

    Further blocks are brought before there is a slot for them and wait as they came, compressed; all that are not
    decoded yet take at most `ahead_bytes`. So a release of many slots at once, as at a window's end, finds the next
    blocks here.

    `request`, `release` and `wait` belong to one thread.
    """

    def __init__(
        self,
        *,
        num_rows: Ints,
        num_bytes: Ints,
        arena: Arena,
        bring: Bring,
        decode: Decode,
        describe: Callable[[int], str],
        decode_threads: int,
        ahead_bytes: int,
        metrics: Metrics,
    ) -> None:
        self._arena, self._bring, self._decode, self._metrics = arena, bring, decode, metrics
        self._describe = describe
        self._free = list(range(arena.num_slots))
        self._num_rows, self._num_bytes = num_rows, num_bytes
        self._slot_of = np.full(len(num_rows), -1, np.int64)
        self._live: dict[int, tuple[int, int]] = {}  # block: (slot, last element that reads it)
        self._expiry: list[tuple[int, int]] = []  # heap of (last element, block)
        self._waiting: deque[tuple[int, int]] = deque()  # (block, last element) without a slot, in the order of need
        self._coming: dict[int, Bytes | None] = {}  # requested and not decoded; None until the bytes are here
        self._coming_bytes, self._ahead_bytes = 0, ahead_bytes
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._decoders = WorkerPool(decode_threads, "decode")

    def request(self, block: int, last_element: int) -> bool:
        """Starts bringing a block that is needed up to `last_element`. False if there is no room for it now."""
        if not self._waiting and self._place(block, last_element):
            return True
        # What is in a slot now may be out of it when its turn comes; then it is brought again.
        if block not in self._live and block not in self._coming:
            if self._coming_bytes + int(self._num_bytes[block]) > self._ahead_bytes:
                return False
            self._start(block)
        self._waiting.append((block, last_element))
        return True

    def _place(self, block: int, last_element: int) -> bool:
        """Gives a block a slot until `last_element`. False if none is free."""
        if block in self._live:
            slot, known = self._live[block]
            if last_element <= known:
                return True
        elif self._free:
            slot = self._free.pop()
            if block not in self._coming:
                self._start(block)
        else:
            return False
        with self._changed:
            placed = block in self._live
            self._live[block] = slot, last_element
            data = None if placed else self._coming[block]
        heapq.heappush(self._expiry, (last_element, block))
        if data is not None:
            self._decoders.submit(partial(self._decode_block, block, slot, data))
        return True

    def _start(self, block: int) -> None:
        with self._changed:
            self._coming[block] = None
            self._coming_bytes += int(self._num_bytes[block])
        self._bring(block, partial(self._receive, block))

    def release(self, before: int) -> None:
        """Frees the slots of all blocks that no element from `before` on reads."""
        while self._expiry and self._expiry[0][0] < before:
            last_element, block = heapq.heappop(self._expiry)
            slot, known = self._live[block]
            if known == last_element:
                self.wait(np.array([block]))
                with self._changed:
                    del self._live[block]
                self._slot_of[block] = -1
                self._arena.clear(slot)
                self._free.append(slot)
        while self._waiting and self._place(*self._waiting[0]):
            self._waiting.popleft()

    def ready(self, blocks: Ints) -> int:
        """How many of the first steps of `blocks` (steps, batch size) have all their blocks decoded."""
        missing = np.flatnonzero((self._slot_of[blocks] < 0).any(axis=1))
        return int(missing[0]) if len(missing) else len(blocks)

    def wait(self, blocks: Ints) -> None:
        """Returns when all these blocks are decoded. Raises what their fetch or decode raised."""
        with self._changed:
            while (self._slot_of[blocks] < 0).any():
                if self._error is not None:
                    raise self._error
                self._changed.wait()

    def missing(self, blocks: Ints) -> Ints:
        """Those of the blocks that have no slot."""
        return np.array([block for block in np.unique(blocks) if int(block) not in self._live])

    def slots(self, blocks: Ints) -> Ints:
        return self._slot_of[blocks]

    def fail(self, error: BaseException) -> None:
        """Makes every `wait` raise."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def close(self) -> bool:
        """Ends the threads. Whether all that could write into the arena have ended."""
        return self._decoders.close()

    def _receive(self, block: int, outcome: Bytes | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self.fail(outcome)
            return
        with self._changed:
            self._coming[block] = outcome
            placed = self._live.get(block)
        if placed is not None:
            self._decoders.submit(partial(self._decode_block, block, placed[0], outcome))

    def _decode_block(self, block: int, slot: int, data: Bytes) -> None:
        try:
            with self._metrics.timed("decode"):
                batch = self._decode(block, data, self._arena.memory(slot))
                if batch.num_rows != self._num_rows[block]:
                    raise CorruptBlockError(f"holds {batch.num_rows} rows, the index says {self._num_rows[block]}")
            with self._metrics.timed("arena"):
                self._arena.fill(slot, batch)
        except BaseException as error:  # as above
            error.add_note(f"in {self._describe(block)}")
            self.fail(error)
        else:
            self._metrics.add(decoded_bytes=batch.nbytes, decoded_blocks=1)
            with self._changed:
                del self._coming[block]
                self._coming_bytes -= int(self._num_bytes[block])
                self._slot_of[block] = slot
                self._changed.notify_all()

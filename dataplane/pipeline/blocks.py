"""The blocks in memory: asked for in the order of need, decoded into slots, released when the plan is past them."""

import heapq
import threading
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataplane.errors import CorruptBlockError
from dataplane.metrics import Metrics
from dataplane.pipeline.arena import Arena
from dataplane.pipeline.workers import WorkerPool

# Idle fetchers end at once; this is for one in the middle of a request.
_FETCH_PATIENCE_SECONDS = 1.0

Ints = npt.NDArray[np.int64]
Bytes = bytes | memoryview

# A block's bytes, and memory that its columns may be decoded into, to a record batch.
Decode = Callable[[Bytes, Mapping[str, npt.NDArray[np.uint8]]], pa.RecordBatch]


class BlockStage:
    """Fetches on one pool of threads, decodes on another; never holds more blocks than there are slots.

    `request`, `release` and `wait` belong to one thread.
    """

    def __init__(
        self,
        *,
        num_rows: Ints,
        arena: Arena,
        fetch: Callable[[int], Bytes],
        decode: Decode,
        describe: Callable[[int], str],
        fetch_threads: int,
        decode_threads: int,
        metrics: Metrics,
    ) -> None:
        self._arena, self._fetch, self._decode, self._metrics = arena, fetch, decode, metrics
        self._describe = describe
        self._free = list(range(arena.num_slots))
        self._num_rows = num_rows
        self._slot_of = np.full(len(num_rows), -1, np.int64)
        self._live: dict[int, tuple[int, int]] = {}  # block: (slot, last element that reads it)
        self._expiry: list[tuple[int, int]] = []  # heap of (last element, block)
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._fetchers = WorkerPool(fetch_threads, "fetch")
        self._decoders = WorkerPool(decode_threads, "decode")

    def request(self, block: int, last_element: int) -> bool:
        """Starts bringing a block that is needed up to `last_element`. False if there is no slot for it now."""
        if block in self._live:
            slot, known = self._live[block]
            if last_element <= known:
                return True
        elif self._free:
            slot = self._free.pop()
            self._fetchers.submit(partial(self._fetch_block, block, slot))
        else:
            return False
        self._live[block] = slot, last_element
        heapq.heappush(self._expiry, (last_element, block))
        return True

    def release(self, before: int) -> None:
        """Frees the slots of all blocks that no element from `before` on reads."""
        while self._expiry and self._expiry[0][0] < before:
            last_element, block = heapq.heappop(self._expiry)
            slot, known = self._live[block]
            if known == last_element:
                self.wait(np.array([block]))
                del self._live[block]
                self._slot_of[block] = -1
                self._arena.clear(slot)
                self._free.append(slot)

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
        """Those of the blocks that were never requested."""
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
        # A request may hang for as long as its store lets it; it writes nowhere, so nobody need wait for it.
        self._fetchers.close(patience_seconds=_FETCH_PATIENCE_SECONDS)
        return self._decoders.close()

    def _fetch_block(self, block: int, slot: int) -> None:
        try:
            data = self._fetch(block)
        except BaseException as error:  # any error belongs to whoever waits for the block
            self.fail(error)
        else:
            self._decoders.submit(partial(self._decode_block, block, slot, data))

    def _decode_block(self, block: int, slot: int, data: Bytes) -> None:
        try:
            with self._metrics.timed("decode"):
                batch = self._decode(data, self._arena.memory(slot))
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
                self._slot_of[block] = slot
                self._changed.notify_all()

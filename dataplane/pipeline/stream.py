"""Plan to batches: one thread follows the plan, has blocks brought ahead of need, gathers batches and queues them."""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataplane.buffers import BufferPool
from dataplane.metrics import Metrics
from dataplane.pipeline.arena import Arena
from dataplane.pipeline.blocks import BlockStage, Bring, Decode
from dataplane.pipeline.layout import Layout
from dataplane.pipeline.tensors import Batch, BatchMemory, to_batches
from dataplane.plan import Reads

# Batches are gathered several at a time up to this size: it spreads the cost of a call, and stays in the CPU's cache.
_STRETCH_BYTES = 2 << 20
# Stretches that wait for the trainer; one to take, one to replace it.
_QUEUED_STRETCHES = 2
# Those, one that is being gathered, and one at the trainer.
STRETCHES_AT_ONCE = _QUEUED_STRETCHES + 2
# Plans beyond which a dataset that fits into the slots is not looked ahead.
_PLANS_AHEAD = 4


def batch_memory(batch_bytes: int) -> int:
    """The most that a stream's batches take while they are gathered, wait, and are at the trainer, in bytes."""
    return STRETCHES_AT_ONCE * max(_STRETCH_BYTES, batch_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamLimits:
    """How much a stream holds and how many threads it has."""

    ahead_bytes: int
    """Bytes of blocks that may be on their way, or wait to be decoded."""
    decode_threads: int
    prefetch_batches: int
    """Batches that may wait for the trainer; of large ones fewer do, and always one."""


class BatchStream:
    """An iterator of batches. Starts its threads when it is made; `close` stops and joins them."""

    def __init__(
        self,
        reads: Iterator[Reads],
        *,
        num_rows: npt.NDArray[np.int64],
        num_bytes: npt.NDArray[np.int64],
        bring: Bring,
        decode: Decode,
        describe: Callable[[int], str],
        layout: Layout,
        arena: Arena,
        buffers: BufferPool | None,
        limits: StreamLimits,
        metrics: Metrics,
        mark_filler: bool = False,
    ) -> None:
        self._queue = _Queue()
        self._batches: deque[Batch] = deque()
        blocks = BlockStage(
            num_rows=num_rows,
            arena=arena,
            num_bytes=num_bytes,
            bring=bring,
            decode=decode,
            describe=describe,
            decode_threads=limits.decode_threads,
            ahead_bytes=limits.ahead_bytes,
            metrics=metrics,
        )
        assembler = _Assembler(
            reads, blocks, arena, buffers, layout, limits.prefetch_batches, metrics, mark_filler, self._queue
        )
        # Also runs when the interpreter exits or the stream is garbage: no thread outlives it. True from the first
        # call if the arena is free again.
        self.close = weakref.finalize(self, assembler.close)
        self._metrics = metrics

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if not self._batches:
            with self._metrics.timed("wait"):
                self._batches.extend(self._queue.take())
        return self._batches.popleft()


class _Queue:
    """Stretches of batches between the assembler and the trainer; bounded, and closable from both ends."""

    def __init__(self) -> None:
        self._stretches: deque[list[Batch]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None

    def put(self, stretch: list[Batch]) -> bool:
        """Waits for room. False if nobody takes any more."""
        with self._changed:
            while not self._closed and len(self._stretches) >= _QUEUED_STRETCHES:
                self._changed.wait()
            self._stretches.append(stretch)
            self._changed.notify_all()
            return not self._closed

    def take(self) -> list[Batch]:
        """Waits for a stretch. Raises the assembler's error, or StopIteration after the last one."""
        with self._changed:
            while not self._stretches and not self._closed:
                self._changed.wait()
            if self._stretches:
                stretch = self._stretches.popleft()
                self._changed.notify_all()
                return stretch
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self, error: BaseException | None = None) -> None:
        """Nothing more will be put, or nothing more taken."""
        with self._changed:
            self._closed = True
            self._error = self._error or error
            self._changed.notify_all()


class _Assembler:
    """The thread that follows the plan, and what it owns."""

    def __init__(
        self,
        reads: Iterator[Reads],
        blocks: BlockStage,
        arena: Arena,
        buffers: BufferPool | None,
        layout: Layout,
        prefetch_batches: int,
        metrics: Metrics,
        mark_filler: bool,
        queue: _Queue,
    ) -> None:
        self._layout, self._metrics, self._mark_filler = layout, metrics, mark_filler
        self._queue = queue
        self._needs = _Needs(reads)
        self._blocks, self._arena, self._buffers = blocks, arena, buffers
        self._most_steps = 1
        self._most_steps_ever = max(1, prefetch_batches // _QUEUED_STRETCHES)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="dataplane-assemble", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        if os.getpid() != self._pid:
            return False  # in a forked child there are no threads to join, and locks may be held for ever
        self._queue.close()
        self._blocks.fail(InterruptedError("the stream was closed"))
        if self._thread is not threading.current_thread():
            self._thread.join()
        return self._blocks.close() and not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._assemble()
        except BaseException as error:  # surfaces in the trainer's next()
            self._queue.close(error)
        else:
            self._queue.close()

    def _assemble(self) -> None:
        while (reads := self._needs.next_reads()) is not None:
            step = 0
            while step < len(reads):
                self._blocks.release(before=int(reads.start[step]))
                self._request_ahead()
                steps = range(step, step + self._next_stretch(reads, step))
                if not self._queue.put(self._gather(reads, steps)):
                    return
                step = steps.stop

    def _request_ahead(self) -> None:
        """Requests blocks in the order of need for as long as there is room."""
        while (need := self._needs.peek()) is not None and self._blocks.request(*need):
            self._needs.pop()

    def _next_stretch(self, reads: Reads, step: int) -> int:
        """Waits for the blocks of one step; how many steps are ready by then."""
        blocks = reads.block[step : step + self._most_steps]
        if (count := self._blocks.ready(blocks)) == 0:
            if len(missing := self._blocks.missing(blocks[0])):
                raise ValueError(
                    f"memory for {self._arena.num_slots} blocks does not hold what one step reads "
                    f"({len(missing)} blocks more); raise memory_bytes or lower shuffle_window"
                )
            with self._metrics.timed("assemble_wait"):
                self._blocks.wait(blocks[0])
            count = max(1, self._blocks.ready(blocks))
        # The first batch alone, so that it comes soon; then more at a time.
        step_bytes = max(1, reads.block.shape[1] * self._layout.row_bytes)
        self._most_steps = max(1, min(2 * self._most_steps, self._most_steps_ever, _STRETCH_BYTES // step_bytes))
        return count

    def _gather(self, reads: Reads, steps: range) -> list[Batch]:
        with self._metrics.timed("gather"):
            chosen = slice(steps.start, steps.stop)
            row = reads.row[chosen].ravel()
            slot = self._blocks.slots(reads.block[chosen].ravel())
            memory = BatchMemory(self._layout, len(row), self._buffers)
            for column in self._layout.fixed:
                self._arena.gather_fixed(column.name, slot, row, memory.array(column))
            ragged = self._arena.gather_ragged(slot, row) if self._layout.ragged else None
            return list(to_batches(reads, steps, memory, ragged, mark_filler=self._mark_filler))


class _Needs:
    """Looks ahead in a stream of reads: which blocks are needed, in the order of their first use."""

    def __init__(self, reads: Iterator[Reads]) -> None:
        self._reads = reads
        self._ahead: deque[Reads] = deque()
        self._needs: deque[tuple[int, int]] = deque()

    def next_reads(self) -> Reads | None:
        """The next reads in order; None after the last."""
        if not self._ahead:
            self._look_ahead()
        return self._ahead.popleft() if self._ahead else None

    def peek(self) -> tuple[int, int] | None:
        """The next block to bring and the last element that needs it; None if that is too far ahead to say."""
        while not self._needs and len(self._ahead) < _PLANS_AHEAD:
            if not self._look_ahead():
                return None
        return self._needs[0] if self._needs else None

    def pop(self) -> None:
        self._needs.popleft()

    def _look_ahead(self) -> bool:
        reads = next(self._reads, None)
        if reads is None:
            return False
        self._ahead.append(reads)
        # A last element names one row, hence one use of one block: a block that comes again later is another need.
        last, first = np.unique(reads.last_element, return_index=True)
        order = np.argsort(first)
        block = reads.block.ravel()[first[order]]
        self._needs.extend(zip(block.tolist(), last[order].tolist(), strict=True))
        return True

"""Brings many blocks at once: as many requests in flight as pay, neighbours together, large blocks in parts, and a
second request for what is late. What to do is decided in `concurrency`, `hedging` and `ranges`; here it is done."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Self

import numpy as np
import numpy.typing as npt

from dataplane.errors import StoreUnavailableError, TruncatedObjectError
from dataplane.storage.blocks import TRIES, BlockSource, Bytes, StoredBlock
from dataplane.storage.concurrency import MOST_REQUESTS, ConcurrencyLimit
from dataplane.storage.hedging import Hedging
from dataplane.storage.ranges import SEEN_AHEAD, neighbours, parts
from dataplane.storage.store import check_length

# Threads beyond those of requests in flight: for cache reads, and for requests given up that have not returned.
_SPARE_THREADS = 32
# Requests in flight ask for no more than this, whatever their number.
MOST_BYTES_IN_FLIGHT = 256 << 20
# Idle threads end at once; this is for those in the middle of a request.
_PATIENCE_SECONDS = 1.0
# How closely requests that may be late are watched.
_LEAST_WATCH_SECONDS, _MOST_WATCH_SECONDS = 0.005, 0.1
# No second requests for this long after a store has refused one.
_CALM_SECONDS = 1.0

Deliver = Callable[[Bytes | BaseException], None]


class Pace:
    """What was learned about a store: how many requests pay, how long they take. Outlives the passes that learn it."""

    def __init__(self, *, most_requests: int = MOST_REQUESTS, hedging: Hedging | None = None) -> None:
        """`hedging` decides about second requests; without it there are none."""
        self.limit = ConcurrencyLimit(most=most_requests)
        self.hedging = hedging


@dataclass(slots=True, eq=False)
class _Wanted:
    """A block that somebody waits for."""

    block: StoredBlock
    deliver: Deliver
    tries: int = 0
    alone: bool = False
    """Not together with neighbours: something was wrong with it or with them."""
    delivered: bool = False


@dataclass(slots=True, eq=False)
class _Body:
    """Where the parts of a large block come together."""

    data: npt.NDArray[np.uint8]
    missing: int
    """Parts that have not come; -1 once one of them has failed."""


@dataclass(slots=True, eq=False)
class _Read:
    """A range of a shard to read, for one block, a part of one, or some neighbours."""

    shard: str
    start: int
    stop: int
    wanted: list[_Wanted]
    body: _Body | None = None
    """That of which this is a part."""
    started: float = 0.0
    attempts: int = 0
    """Those under way."""
    holds: int = 0
    """Those that count as in flight."""
    hedged: bool = False
    settled: bool = False

    @property
    def num_bytes(self) -> int:
        return self.stop - self.start


@dataclass(slots=True)
class _Flight:
    """What is in flight: requests that somebody still waits for."""

    num_requests: int = 0
    num_bytes: int = 0
    reads: dict[_Read, None] = field(default_factory=dict)


class Fetcher:
    """Threads that bring blocks, wanted first served first. Starts them as they are needed; `close` ends them.

    With hedging, a block may be asked for twice; it is delivered once.
    """

    def __init__(self, source: BlockSource, pace: Pace, *, most_bytes_in_flight: int = MOST_BYTES_IN_FLIGHT) -> None:
        self._source, self._pace, self._metrics = source, pace, source.metrics
        self._most_bytes = most_bytes_in_flight
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._watch = threading.Condition(self._lock)
        self._lookups: deque[_Wanted] = deque()
        self._misses: deque[_Wanted] = deque()
        self._ready: deque[_Read] = deque()  # parts, and second requests: these go before all else
        self._flight = _Flight()
        self._threads: list[threading.Thread] = []
        self._idle = 0  # threads that wait and have not been woken
        self._closed = False
        self._pid = os.getpid()

    def submit(self, block: StoredBlock, deliver: Deliver) -> None:
        """Brings a block; `deliver` is called once, on some thread, with its verified bytes or with the error that
        prevents them. After `close` it may not be called at all."""
        with self._lock:
            wanted = _Wanted(block, deliver)
            (self._lookups if self._source.has_cache else self._misses).append(wanted)
            self._wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Drops what has not begun, and waits a moment for what is under way; nobody gets what that brings."""
        if os.getpid() != self._pid:
            return  # in a forked child there are no threads, and the lock may be held for ever
        with self._lock:
            self._closed = True
            self._lookups.clear()
            self._misses.clear()
            self._ready.clear()
            self._work.notify_all()
            self._watch.notify_all()
        # A request may hang for as long as its store lets it; it writes nowhere, so nobody need wait for it.
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _wake(self) -> None:
        """Has a thread look for work; starts one if all are busy."""
        if self._idle:
            self._idle -= 1
            self._work.notify()
        elif len(self._threads) < self._pace.limit.most + _SPARE_THREADS:
            if not self._threads and self._pace.hedging is not None:
                self._start(self._watch_for_late, "watch")
            self._start(self._run, "fetch")

    def _start(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=f"dataplane-{name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            task()

    def _next(self) -> Callable[[], None] | None:
        """The most urgent thing to do; waits for one. None when closed."""
        with self._lock:
            while not self._closed:
                if (task := self._choose()) is not None:
                    return task
                self._idle += 1
                self._work.wait()
            return None

    def _choose(self) -> Callable[[], None] | None:
        while self._ready:
            if not (read := self._ready.popleft()).settled:
                return self._attempt(read)
        if self._misses and self._has_room(self._misses[0].block.num_bytes):
            return self._attempt(self._form_read())
        if self._lookups:
            return partial(self._look_up, self._lookups.popleft())
        return None

    def _has_room(self, num_bytes: int) -> bool:
        flight = self._flight
        if not flight.num_requests:
            return True
        return flight.num_requests < self._pace.limit.limit and flight.num_bytes + num_bytes <= self._most_bytes

    def _form_read(self) -> _Read:
        """The next read: the block wanted first, with its neighbours or in parts where that is better."""
        first = self._misses[0]
        block = first.block
        if not first.alone:
            seen = list(islice(self._misses, SEEN_AHEAD))
            together = [seen[number] for number in neighbours([wanted.block for wanted in seen])]
            if len(together) > 1:
                for wanted in together:
                    self._misses.remove(wanted)
                self._metrics.add(coalesced_blocks=len(together))
                last = together[-1].block
                return _Read(block.shard, together[0].block.offset, last.offset + last.num_bytes, together)
        self._misses.popleft()
        room = self._pace.limit.limit - self._flight.num_requests - len(self._misses)
        ranges = parts(block.offset, block.offset + block.num_bytes, room=room)
        if len(ranges) == 1:
            return _Read(block.shard, *ranges[0], [first])
        self._metrics.add(split_blocks=1)
        body = _Body(np.empty(block.num_bytes, np.uint8), len(ranges))
        reads = [_Read(block.shard, start, stop, [first], body) for start, stop in ranges]
        for read in reads[1:]:
            self._ready.append(read)
            self._wake()
        return reads[0]

    def _attempt(self, read: _Read) -> Callable[[], None]:
        """Counts a request as in flight; the task that makes it."""
        now = time.monotonic()
        if read.attempts == 0:
            read.started = now
            self._flight.reads[read] = None
            if self._pace.hedging is not None:
                self._pace.hedging.started()
                if len(self._flight.reads) == 1:
                    self._watch.notify()
        read.attempts += 1
        read.holds += 1
        self._flight.num_requests += 1
        self._flight.num_bytes += read.num_bytes
        return partial(self._request, read, now)

    def _request(self, read: _Read, started: float) -> None:
        outcome: Bytes | BaseException
        try:
            with self._metrics.timed("fetch"):
                outcome = self._source.store.read_range(read.shard, read.start, read.stop)
        except BaseException as error:  # any error belongs to whoever waits for the block
            outcome = error
        if self._settle(read, started, outcome):
            try:
                self._hand_out(read, outcome)
            except BaseException as error:  # as above
                for wanted in read.wanted:
                    self._deliver(wanted, error)

    def _settle(self, read: _Read, started: float, outcome: Bytes | BaseException) -> bool:
        """Books the end of a request. Whether its outcome is that of the read."""
        now = time.monotonic()
        failed = isinstance(outcome, BaseException)
        num_bytes = 0 if isinstance(outcome, BaseException) else len(outcome)
        with self._lock:
            self._metrics.add(requests=1, fetched_bytes=num_bytes, failed_requests=failed)
            read.attempts -= 1
            if failed:
                if isinstance(outcome, StoreUnavailableError) and self._pace.limit.refused(started=started, now=now):
                    self._metrics.add(backoffs=1)
            else:
                if self._pace.hedging is not None:
                    self._pace.hedging.ended(seconds=now - started, num_bytes=num_bytes)
                self._pace.limit.ended(now=now, num_bytes=num_bytes, others_wait=bool(self._misses))
            self._metrics.show(request_limit=self._pace.limit.limit)
            if read.settled:
                self._metrics.add(superseded_requests=1)
                return False
            if failed and read.attempts:
                self._land(read, 1)
                return False  # the other request may still bring it
            read.settled = True
            if read.hedged and started > read.started:
                self._metrics.add(hedges_won=1)
            # What is still under way for this read nobody waits for any more.
            self._land(read, read.holds)
            return True

    def _land(self, read: _Read, holds: int) -> None:
        read.holds -= holds
        self._flight.num_requests -= holds
        self._flight.num_bytes -= holds * read.num_bytes
        if not read.holds:
            del self._flight.reads[read]
        if self._misses:
            self._wake()

    def _hand_out(self, read: _Read, outcome: Bytes | BaseException) -> None:
        """Gives the bytes, or the error, to those who want them."""
        if read.body is not None:
            joined = self._joined(read, read.body, outcome)
            if joined is None:
                return
            outcome = joined
        alone = len(read.wanted) == 1
        for wanted in read.wanted:
            if isinstance(outcome, TruncatedObjectError):
                self._metrics.add(short_fetches=1)
                self._try_again(wanted, None, alone=alone)
            elif isinstance(outcome, BaseException):
                self._deliver(wanted, outcome)
            else:
                begin = wanted.block.offset - read.start
                data = outcome if alone else memoryview(outcome)[begin : begin + wanted.block.num_bytes]
                if self._source.matches(data, wanted.block):
                    self._deliver(wanted, data)
                    self._source.keep(wanted.block, data)
                else:
                    self._metrics.add(corrupt_fetches=1)
                    self._try_again(wanted, data, alone=alone)

    def _joined(self, read: _Read, body: _Body, outcome: Bytes | BaseException) -> Bytes | BaseException | None:
        """The whole block with the last of its parts, the error with the first that fails; else None."""
        if not isinstance(outcome, BaseException):
            try:
                check_length(self._source.store.url, read.shard, read.start, read.stop, len(outcome))
                begin = read.start - read.wanted[0].block.offset
                body.data[begin : begin + len(outcome)] = np.frombuffer(outcome, np.uint8)
            except TruncatedObjectError as error:
                outcome = error
        failed = isinstance(outcome, BaseException)
        with self._lock:
            if body.missing < 0:
                return None
            body.missing = -1 if failed else body.missing - 1
            if body.missing > 0:
                return None
        return outcome if failed else body.data.data

    def _try_again(self, wanted: _Wanted, found: Bytes | None, *, alone: bool) -> None:
        # Neighbours share what is wrong with any of them, so only a read alone counts as a try.
        wanted.tries += alone
        if wanted.tries >= TRIES:
            self._deliver(wanted, self._source.corrupt(wanted.block, found))
            return
        wanted.alone = True
        with self._lock:
            self._misses.appendleft(wanted)
            self._wake()

    def _deliver(self, wanted: _Wanted, outcome: Bytes | BaseException) -> None:
        if not self._closed and not wanted.delivered:
            wanted.delivered = True
            wanted.deliver(outcome)

    def _look_up(self, wanted: _Wanted) -> None:
        try:
            data = self._source.look_up(wanted.block)
        except BaseException as error:  # as in `_request`
            self._deliver(wanted, error)
            return
        if data is not None:
            self._deliver(wanted, data)
            return
        with self._lock:
            if not self._closed:
                self._misses.append(wanted)
                self._wake()

    def _watch_for_late(self) -> None:
        """Sends a second request for each that is late, as far as the budget allows."""
        hedging = self._pace.hedging
        assert hedging is not None
        with self._lock:
            while not self._closed:
                wait = self._hedge(hedging, time.monotonic())
                self._watch.wait(wait)

    def _hedge(self, hedging: Hedging, now: float) -> float | None:
        """Has second requests sent. Seconds until the next may be due; None while nothing is in flight."""
        if not self._flight.reads:
            return None
        wait = _MOST_WATCH_SECONDS
        if now - self._pace.limit.cut_at < _CALM_SECONDS:
            return wait  # a store that refuses needs no second requests
        for read in self._flight.reads:
            if read.hedged or (patience := hedging.late_after(read.num_bytes)) is None:
                continue
            if (left := read.started + patience - now) > 0:
                wait = min(wait, left)
            elif hedging.spend():
                read.hedged = True
                self._metrics.add(hedges=1)
                self._ready.append(read)
                self._wake()
            else:
                break
        return max(wait, _LEAST_WATCH_SECONDS)

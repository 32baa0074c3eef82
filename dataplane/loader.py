"""The loader that people hold: wires the rooms, iterates, saves and restores its position."""

import difflib
import inspect
import logging
import os
import shutil
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import torch
import torch.distributed

from dataplane.buffers import BufferPool
from dataplane.metrics import Metrics
from dataplane.pipeline import (
    FILLER_KEY,
    STRETCHES_AT_ONCE,
    Arena,
    Batch,
    BatchStream,
    StreamLimits,
    batch_memory,
)
from dataplane.plan import NEVER, Mixture, Order, Plan, Position, Stop, Topology
from dataplane.source import Bytes, Data, OpenSources, Source, sources_of
from dataplane.state import SavedState, check_fits, origin_of, read_state
from dataplane.storage import MOST_REQUESTS, BlockCache, BlockSource, Fetcher, Hedging, Pace

_log = logging.getLogger(__name__)

DEFAULT_CACHE = Path("~/.cache/dataplane")
# Compressed blocks ahead of need: 0.1 s of a link of 20 Gbit/s.
_MOST_AHEAD_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """What a user chooses about a loader. Checked where it is made; see `StreamingLoader` for the meaning."""

    sources: tuple[Source, ...]
    batch_size: int
    stop: Stop | None = None
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False
    endless: bool = False
    columns: Sequence[str] | None = None
    topology: Topology | None = None
    num_lanes: int | None = None
    shuffle_window: int | None = None
    cache_dir: str | Path | None = DEFAULT_CACHE
    cache_bytes: int | None = None
    memory_bytes: int | None = None
    fetch_threads: int | None = None
    # zstd decodes 0.4 to 1 GB/s of tokens on a thread, far more than a trainer's rank consumes.
    decode_threads: int = 2
    # Small batches are gathered half as many at a time; of those over 1 MiB fewer wait, whatever is set here.
    prefetch_batches: int = 64
    pin_memory: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "decode_threads", "prefetch_batches"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("num_lanes", "shuffle_window", "memory_bytes", "fetch_threads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.endless and self.drop_last:
            raise ValueError("endless and drop_last exclude each other: an endless pass drops nothing")

    @property
    def urls(self) -> str:
        """For messages."""
        return ", ".join(os.fspath(source.url) for source in self.sources)

    @property
    def order(self) -> dict[str, Any]:  # Any: ints, a bool, None
        """The parts of the order that the user chose, under the names of `Order`; None where it may be any."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "num_lanes": self.num_lanes,
            "window_blocks": self.shuffle_window,
        }


def make_config(data: Data, batch_size: int, options: Mapping[str, Any]) -> LoaderConfig:
    """The configuration. Raises TypeError for an unknown option, with the nearest name."""
    of_sources = ("version", "storage_options")
    names = [*(each.name for each in fields(LoaderConfig) if each.name not in ("sources", "batch_size")), *of_sources]
    for name in options:
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(names)}"
            raise TypeError(f"a loader has no option {name!r}; {hint}")
    sources = sources_of(data, **{name: options[name] for name in of_sources if name in options})
    others = {name: value for name, value in options.items() if name not in of_sources}
    return LoaderConfig(sources=sources, batch_size=batch_size, **others)


class Session:
    """Sources opened for one rank: everything that stays the same from pass to pass."""

    def __init__(
        self,
        config: LoaderConfig,
        metrics: Metrics,
        *,
        order: Order | None = None,
        versions: Sequence[int] | None = None,
    ) -> None:
        self.config = config
        self.metrics = metrics
        self.topology = config.topology or _topology_of_this_process()
        self.sources = OpenSources.open(config.sources, versions)
        self.layout = self.sources.layout(config.columns)
        for dataset in self.sources.datasets:
            dataset.store.metrics = metrics
        self.plan = Plan(
            indexes=tuple(dataset.index for dataset in self.sources.datasets),
            mixture=Mixture(shares=tuple(source.share for source in config.sources), stop=config.stop),
            order=order or self._suited_order(),
            batch_size=config.batch_size,
            topology=self.topology,
            drop_last=config.drop_last,
            endless=config.endless,
        )
        self._check_drop_last()
        self._marks_filler = not (config.drop_last or config.endless)
        if self._marks_filler and FILLER_KEY in self.layout.names:
            raise ValueError(
                f"{config.urls} has a column {FILLER_KEY!r}, which is the mark of repeated samples; leave it out with "
                "columns=[...], or use drop_last or endless"
            )
        self._cache = self._open_cache()
        self._paces = [
            Pace(
                most_requests=config.fetch_threads or MOST_REQUESTS,
                hedging=None if dataset.store.is_local else Hedging(),
            )
            for dataset in self.sources.datasets
        ]
        self._buffers = self._make_buffers()
        self._origin = origin_of(self.sources, self.plan)
        # Made once and lent to one pass after the other: its pages are touched already.
        self._arenas: list[Arena] = []

    def _check_drop_last(self) -> None:
        """Raises ValueError if it leaves nothing."""
        size, rows = self.plan.global_batch_size, self.plan.sequence.length
        if self.config.drop_last and rows < size:
            raise ValueError(
                f"{self.config.urls} has {rows} rows, fewer than a global batch of {size}: drop_last leaves nothing; "
                "use a smaller batch_size, or drop_last=False"
            )

    def stream(self, position: Position, *, first: int = 0, stride: int = 1) -> Generator[Batch]:
        """The batches from a position on; of those only `first`, `first + stride`, ..."""
        sources = self.sources
        with ExitStack() as stack:
            fetchers = []
            for dataset, pace in zip(sources.datasets, self._paces, strict=True):
                cache = self._cache_for(dataset.store.is_local)
                if cache is not None:
                    stack.enter_context(cache.claim(dataset.index.digest))
                fetchers.append(stack.enter_context(Fetcher(BlockSource(dataset.store, cache, self.metrics), pace)))

            def bring(number: int, deliver: Callable[[Bytes | BaseException], None]) -> None:
                source, block = sources.locate(number)
                fetchers[source].submit(block, deliver)

            arena = self._arenas.pop() if self._arenas else self._make_arena()
            stream = BatchStream(
                self.plan.reads(position, first=first, stride=stride),
                num_rows=sources.num_rows,
                num_bytes=sources.num_bytes,
                bring=bring,
                decode=lambda number, data, out: sources.decode(number, data, self.layout.names, out),
                describe=sources.describe,
                layout=self.layout,
                arena=arena,
                buffers=self._buffers,
                limits=StreamLimits(
                    # As much as was counted for the slots: a block is compressed or decoded, not both for long.
                    ahead_bytes=min(_MOST_AHEAD_BYTES, arena.num_slots * int(sources.num_bytes.max(initial=0))),
                    decode_threads=self.config.decode_threads,
                    prefetch_batches=self.config.prefetch_batches,
                ),
                metrics=self.metrics,
                mark_filler=self._marks_filler,
            )
            try:
                for batch in stream:
                    batch.origin = self._origin
                    yield batch
            finally:
                if stream.close():
                    self._arenas.append(arena)
        if first == 0:
            self._report_left_out(position)

    def _report_left_out(self, position: Position) -> None:
        if self.topology.rank:
            return
        if dropped := self.plan.num_dropped(position):
            self.metrics.add(dropped_samples=dropped)
            _log.warning(
                "%s: drop_last left out %d of %d samples in epoch %d (global batch %d)",
                self.config.urls,
                dropped,
                self.plan.sequence.length,
                position.epoch,
                self.plan.global_batch_size,
            )
        if unused := self.plan.sequence.num_left_out:
            self.metrics.add(unused_samples=unused)
            _log.warning(
                '%s: epoch %d ended with the first source used up, before %d samples of others; stop="all_exhausted" '
                "takes them too",
                self.config.urls,
                position.epoch,
                unused,
            )

    def state_at(self, position: Position) -> dict[str, Any]:  # Any: JSON values
        """The state of a run that stands at a position."""
        return {**self._origin, **asdict(position)}

    def _suited_order(self) -> Order:
        config = self.config
        return Order.suited(
            seed=config.seed,
            shuffle=config.shuffle,
            global_batch_size=config.batch_size * self.topology.world_size,
            num_lanes=config.num_lanes,
            window_blocks=config.shuffle_window,
        )

    def _make_arena(self) -> Arena:
        config, sources = self.config, self.sources
        rows = int(sources.num_rows.max(initial=1))
        # A block in flight is held compressed, then decoded, and its ragged columns stay in Arrow.
        block_bytes = rows * self.layout.row_bytes + int(sources.num_bytes.max(initial=0))
        if self.layout.ragged:
            block_bytes += sources.most_raw_bytes
        most = max(1, len(sources.num_rows))
        needed = min(most, self.plan.most_blocks_at_once)
        num_slots = min(most, needed + max(32, needed // 2))
        if config.memory_bytes is not None:
            batches = batch_memory(self.plan.rank_batch_size * self.layout.row_bytes)
            num_slots = min(most, (config.memory_bytes - batches) // max(1, block_bytes))
            if num_slots < needed:
                raise ValueError(
                    f"memory_bytes={config.memory_bytes} is too little for {config.urls}: this order keeps up to "
                    f"{needed} blocks of {block_bytes} bytes in memory, and batches take {batches}; give at least "
                    f"{needed * block_bytes + batches}, or lower shuffle_window, num_lanes or batch_size"
                )
        return Arena(self.layout, rows_per_slot=rows, num_slots=num_slots)

    def _make_buffers(self) -> BufferPool | None:
        pinned = self.config.pin_memory and torch.cuda.is_available()
        return None if pinned else BufferPool(2 * STRETCHES_AT_ONCE)

    def _cache_for(self, is_local: bool) -> BlockCache | None:
        """The cache, but by default not for what is local already."""
        return None if is_local and self.config.cache_dir == DEFAULT_CACHE else self._cache

    def _open_cache(self) -> BlockCache | None:
        config = self.config
        is_default = config.cache_dir == DEFAULT_CACHE
        if config.cache_dir is None or (is_default and self.sources.is_local):
            return None
        root = Path(config.cache_dir).expanduser().absolute()
        limit = config.cache_bytes
        if limit is None:
            limit = _half_of_the_disk(root)
        largest = int(self.sources.num_bytes.max(initial=0))
        if limit < largest:
            raise ValueError(
                f"cache_bytes={limit} is less than the largest block of {config.urls} ({largest} bytes); "
                f"give at least {largest}, or cache_dir=None for no cache"
            )
        return BlockCache(root, limit)


def _topology_of_this_process() -> Topology:
    """That of the process group if there is one, else of torchrun's variables; never sets up a group."""
    group = torch.distributed
    if group.is_available() and group.is_initialized():
        return Topology(rank=group.get_rank(), world_size=group.get_world_size())
    return Topology.from_env(os.environ)


def _half_of_the_disk(folder: Path) -> int:
    """A default that leaves room: half of what is free now, on the disk where the folder is or will be."""
    existing = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
    return shutil.disk_usage(existing).free // 2


class _Pass(Iterator[Batch]):
    """One iteration over a loader. When another takes its place it says so, lest it seem complete."""

    def __init__(self, batches: Generator[Batch]) -> None:
        self._batches = batches
        self._superseded = False

    def __next__(self) -> Batch:
        if self._superseded:
            raise RuntimeError(
                "this pass was ended by another iteration, a call of close, set_epoch or load_state_dict of the same "
                "loader; give each pass a loader of its own"
            )
        return next(self._batches)

    def close(self) -> None:
        """Ends the threads of a pass that has not ended."""
        self._superseded = inspect.getgeneratorstate(self._batches) != inspect.GEN_CLOSED
        self._batches.close()


class StreamingLoader:
    """Batches of one or several datasets for one rank, in an order that world size, threads and cache do not change.

    Iterating goes on from the loader's position: to the end of the epoch, the next `for` being the next epoch, or for
    ever if `endless`. The position is that of the last batch that the loop received, whatever was read ahead.

    Args:
        data: the dataset's folder, local or on any store that fsspec or obstore serves; or a `Source`, or several of
            either, which are mixed.
        batch_size: samples of one rank in one step; the global batch is that times the world size.
        shuffle: mix the rows of `shuffle_window` blocks in each of `num_lanes` lanes; else the writing order.
        seed: decides the order together with shuffle, num_lanes and shuffle_window.
        drop_last: leave out, and count, the samples that do not fill the last global batch. Otherwise the last batch is
            short, and padded by repeated samples to equal steps and sizes on all ranks: up to world_size - 1 in
            all, marked True in the batch's `is_filler` (bool, (batch size,)).
        endless: batches cross the borders of epochs, for training.
        stop: when a pass of weighted sources ends: "all_exhausted" (the default), when each has been used up and others
            have begun again; "first_exhausted", before the first would begin again; "never" (the default if endless).
        columns: which to deliver; all by default.
        version: pins one; the newest by default.
        topology: this rank's place; by default that of torch's process group, else of torchrun's RANK and WORLD_SIZE.
        cache_dir: folder of the block cache, None for none; by default ~/.cache/dataplane, and none for local datasets.
        cache_bytes: the most that the cache folder holds; by default half of the free disk.
        memory_bytes: the most that blocks in memory take; by default what the order needs and half as much again.
        fetch_threads: the most requests in flight; by default as many as bring more bytes a second, up to 128.
        storage_options: the store's own: endpoint, access_key_id, region, ...
    """

    def __init__(self, data: Data, *, batch_size: int, **options: Any) -> None:  # Any: LoaderConfig's fields
        self.config = make_config(data, batch_size, options)
        self.metrics = Metrics()
        self._position = Position()
        self._session: Session | None = None
        # Weak: an abandoned pass ends its threads at once, not at the next garbage collection.
        self._running: weakref.ref[_Pass] | None = None

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        running = _Pass(self._deliver(self._opened()))
        self._running = weakref.ref(running)
        return running

    def __len__(self) -> int:
        """Steps of one epoch. Raises TypeError for an endless loader."""
        if self.config.endless:
            raise TypeError("an endless loader has no length")
        plan = self._opened().plan
        self._length(plan.sequence.length)
        return plan.num_steps()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def num_rows(self) -> int:
        """Samples of an epoch: the rows of the dataset, or what a mixture takes. Raises TypeError if it never ends."""
        return self._length(self._opened().plan.sequence.length)

    @property
    def schema(self) -> pa.Schema:
        return self._opened().sources.schema

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the datasets' writers recorded alike: vocab_size, sequence_length, ..."""
        return self._opened().sources.metadata

    @property
    def position(self) -> Position:
        """After the last batch that the loop received."""
        return self._position

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin at the start of an epoch."""
        self.close()
        self._position = Position(epoch, 0)

    def state_dict(self) -> dict[str, Any]:  # Any: JSON values
        """The position and what it is a position in; some 300 bytes of JSON, equal on all ranks."""
        return self._opened().state_at(self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved position, at any world size and batch size.

        Raises StateMismatchError, naming the difference, if the state belongs to other data or another order.
        """
        self.close()
        saved = read_state(state, self.config.sources, self.config.order)
        session = open_saved(self.config, state, saved, self.metrics)
        self._session, self._position = session, saved.position

    def close(self) -> None:
        """Stops the threads of a pass that has not ended. The loader can be iterated again."""
        if self._running is not None and (running := self._running()) is not None:
            running.close()
        self._running = None

    def _opened(self) -> Session:
        if self._session is None:
            self._session = Session(self.config, self.metrics)
        return self._session

    def _length(self, samples: int) -> int:
        if samples == NEVER:
            raise TypeError("a mixture that never stops has no length")
        return samples

    def _deliver(self, session: Session) -> Generator[Batch]:
        start = self._position
        with closing(session.stream(start)) as stream:
            for batch in stream:
                self._position = batch.position
                yield batch
        # Only a finite pass ends. What is left of its epoch was too little for a batch.
        self._position = Position(start.epoch + 1, 0)


def open_saved(config: LoaderConfig, state: Mapping[str, Any], saved: SavedState, metrics: Metrics) -> Session:
    """A session in which the state's position means what it meant. Raises StateMismatchError if there is none."""
    session = Session(config, metrics, order=saved.order, versions=saved.versions)
    check_fits(state, session.sources, session.plan)
    return session

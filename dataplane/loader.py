"""The loader that people hold: wires the rooms, iterates, saves and restores its position."""

import difflib
import inspect
import logging
import os
import shutil
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.distributed

from dataplane.buffers import BufferPool
from dataplane.catalog import Dataset, open_dataset
from dataplane.errors import StateMismatchError
from dataplane.metrics import Metrics
from dataplane.pipeline import (
    FILLER_KEY,
    STRETCHES_AT_ONCE,
    Arena,
    Batch,
    BatchStream,
    Layout,
    StreamLimits,
    batch_memory,
)
from dataplane.plan import Order, Plan, Position, Topology
from dataplane.storage import MOST_REQUESTS, BlockCache, BlockSource, Fetcher, Hedging, Pace

_log = logging.getLogger(__name__)

DEFAULT_CACHE = Path("~/.cache/dataplane")
_STATE_FORMAT = 1
# Compressed blocks ahead of need: 0.1 s of a link of 20 Gbit/s.
_MOST_AHEAD_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """What a user chooses about a loader. Checked where it is made; see `StreamingLoader` for the meaning."""

    url: str
    batch_size: int
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False
    endless: bool = False
    columns: Sequence[str] | None = None
    version: int | None = None
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
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("batch_size", "decode_threads", "prefetch_batches"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("num_lanes", "shuffle_window", "memory_bytes", "version", "fetch_threads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.endless and self.drop_last:
            raise ValueError("endless and drop_last exclude each other: an endless pass drops nothing")


def make_config(url: str | os.PathLike[str], batch_size: int, options: Mapping[str, Any]) -> LoaderConfig:
    """The configuration. Raises TypeError for an unknown option, with the nearest name."""
    names = [each.name for each in fields(LoaderConfig)]
    for name in options:
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(names)}"
            raise TypeError(f"a loader has no option {name!r}; {hint}")
    return LoaderConfig(url=os.fspath(url), batch_size=batch_size, **options)


class Session:
    """A dataset opened for one rank: everything that stays the same from pass to pass."""

    def __init__(self, config: LoaderConfig, order: Order | None, version: int | None, metrics: Metrics) -> None:
        self.config = config
        self.metrics = metrics
        self.topology = config.topology or _topology_of_this_process()
        self.dataset: Dataset = open_dataset(
            config.url, version=version or config.version, storage_options=config.storage_options
        )
        self.dataset.store.metrics = metrics
        self.plan = Plan(
            indexes=(self.dataset.index,),
            order=order or self._suited_order(),
            batch_size=config.batch_size,
            topology=self.topology,
            drop_last=config.drop_last,
            endless=config.endless,
        )
        if config.drop_last and (rows := self.dataset.version.num_rows) < self.plan.global_batch_size:
            raise ValueError(
                f"{config.url} has {rows} rows, fewer than a global batch of {self.plan.global_batch_size}: drop_last "
                "leaves nothing; use a smaller batch_size, or drop_last=False"
            )
        self.layout = Layout.of(self.dataset.schema, config.columns)
        self._marks_filler = not (config.drop_last or config.endless)
        if self._marks_filler and FILLER_KEY in self.layout.names:
            raise ValueError(
                f"{config.url} has a column {FILLER_KEY!r}, which is the mark of repeated samples; leave it out with "
                "columns=[...], or use drop_last or endless"
            )
        self._cache = self._open_cache()
        self._pace = Pace(
            most_requests=config.fetch_threads or MOST_REQUESTS,
            hedging=None if self.dataset.store.is_local else Hedging(),
        )
        self._buffers = self._make_buffers()
        self._origin = origin_of(self.dataset, self.plan.order)
        # Made once and lent to one pass after the other: its pages are touched already.
        self._arenas: list[Arena] = []

    def stream(self, position: Position, *, first: int = 0, stride: int = 1) -> Generator[Batch]:
        """The batches from a position on; of those only `first`, `first + stride`, ..."""
        index = self.dataset.index
        source = BlockSource(self.dataset.store, self._cache, self.metrics)
        with (
            nullcontext() if self._cache is None else self._cache.claim(index.digest),
            Fetcher(source, self._pace) as fetcher,
        ):
            arena = self._arenas.pop() if self._arenas else self._make_arena()
            stream = BatchStream(
                self.plan.reads(position, first=first, stride=stride),
                num_rows=index.num_rows,
                num_bytes=index.num_bytes,
                bring=lambda number, deliver: fetcher.submit(index[number], deliver),
                decode=self._decode,
                describe=lambda number: f"{self.dataset.store.url}/{index[number]}",
                layout=self.layout,
                arena=arena,
                buffers=self._buffers,
                limits=StreamLimits(
                    # As much as was counted for the slots: a block is compressed or decoded, not both for long.
                    ahead_bytes=min(_MOST_AHEAD_BYTES, arena.num_slots * int(index.num_bytes.max(initial=0))),
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
            self._report_dropped(position)

    def _report_dropped(self, position: Position) -> None:
        if (dropped := self.plan.num_dropped(position)) and self.topology.rank == 0:
            self.metrics.add(dropped_samples=dropped)
            _log.warning(
                "%s: drop_last left out %d of %d samples in epoch %d (global batch %d)",
                self.config.url,
                dropped,
                self.dataset.version.num_rows,
                position.epoch,
                self.plan.global_batch_size,
            )

    def state_at(self, position: Position) -> dict[str, Any]:  # Any: JSON values
        """The state of a run that stands at a position."""
        return {**self._origin, **asdict(position)}

    def _decode(self, data: bytes | memoryview, out: Mapping[str, npt.NDArray[np.uint8]]) -> pa.RecordBatch:
        dataset = self.dataset
        return dataset.format.decode(data, dataset.schema, columns=self.layout.names, out=out)

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
        config, index = self.config, self.dataset.index
        rows = int(index.num_rows.max(initial=1))
        # A block in flight is held compressed, then decoded, and its ragged columns stay in Arrow.
        block_bytes = rows * self.layout.row_bytes + int(index.num_bytes.max(initial=0))
        if self.layout.ragged:
            block_bytes += int(index.raw_bytes.max(initial=0))
        most = max(1, len(index))
        needed = min(most, self.plan.most_blocks_at_once)
        num_slots = min(most, needed + max(32, needed // 2))
        if config.memory_bytes is not None:
            batches = batch_memory(config.batch_size * self.layout.row_bytes)
            num_slots = min(most, (config.memory_bytes - batches) // max(1, block_bytes))
            if num_slots < needed:
                raise ValueError(
                    f"memory_bytes={config.memory_bytes} is too little for {config.url}: this order keeps up to "
                    f"{needed} blocks of {block_bytes} bytes in memory, and batches take {batches}; give at least "
                    f"{needed * block_bytes + batches}, or lower shuffle_window, num_lanes or batch_size"
                )
        return Arena(self.layout, rows_per_slot=rows, num_slots=num_slots)

    def _make_buffers(self) -> BufferPool | None:
        pinned = self.config.pin_memory and torch.cuda.is_available()
        return None if pinned else BufferPool(2 * STRETCHES_AT_ONCE)

    def _open_cache(self) -> BlockCache | None:
        config = self.config
        is_default = config.cache_dir == DEFAULT_CACHE
        if config.cache_dir is None or (is_default and self.dataset.store.is_local):
            return None
        root = Path(config.cache_dir).expanduser().absolute()
        limit = config.cache_bytes
        if limit is None:
            limit = _half_of_the_disk(root)
        largest = int(self.dataset.index.num_bytes.max(initial=0))
        if limit < largest:
            raise ValueError(
                f"cache_bytes={limit} is less than the largest block of {config.url} ({largest} bytes); "
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
    """Batches of one dataset for one rank, in an order that world size, threads and cache do not change.

    Iterating goes on from the loader's position: to the end of the epoch, the next `for` being the next epoch, or for
    ever if `endless`. The position is that of the last batch that the loop received, whatever was read ahead.

    Args:
        url: the dataset's folder, local or on any store that fsspec or obstore serves.
        batch_size: samples of one rank in one step; the global batch is that times the world size.
        shuffle: mix the rows of `shuffle_window` blocks in each of `num_lanes` lanes; else the writing order.
        seed: decides the order together with shuffle, num_lanes and shuffle_window.
        drop_last: leave out, and count, the samples that do not fill the last global batch. Otherwise the last batch is
            short, and padded by repeated samples to equal steps and sizes on all ranks: up to world_size - 1 in
            all, marked True in the batch's `is_filler` (bool, (batch size,)).
        endless: batches cross the borders of epochs, for training.
        columns: which to deliver; all by default.
        version: pins one; the newest by default.
        topology: this rank's place; by default that of torch's process group, else of torchrun's RANK and WORLD_SIZE.
        cache_dir: folder of the block cache, None for none; by default ~/.cache/dataplane, and none for local datasets.
        cache_bytes: the most that the cache folder holds; by default half of the free disk.
        memory_bytes: the most that blocks in memory take; by default what the order needs and half as much again.
        fetch_threads: the most requests in flight; by default as many as bring more bytes a second, up to 128.
        storage_options: the store's own: endpoint, access_key_id, region, ...
    """

    def __init__(self, url: str, *, batch_size: int, **options: Any) -> None:  # Any: LoaderConfig's fields
        self.config = make_config(url, batch_size, options)
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
        return self._opened().plan.num_steps()

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
        """Rows of the dataset, which are the samples of an epoch."""
        return self._opened().dataset.version.num_rows

    @property
    def schema(self) -> pa.Schema:
        return self._opened().dataset.schema

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the dataset's writer recorded: vocab_size, sequence_length, ..."""
        return self._opened().dataset.version.metadata

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
        order, version, position = read_state(state, self.config)
        session = Session(self.config, order, version, self.metrics)
        check_fits(state, session.dataset)
        self._session, self._position = session, position

    def close(self) -> None:
        """Stops the threads of a pass that has not ended. The loader can be iterated again."""
        if self._running is not None and (running := self._running()) is not None:
            running.close()
        self._running = None

    def _opened(self) -> Session:
        if self._session is None:
            self._session = Session(self.config, None, None, self.metrics)
        return self._session

    def _deliver(self, session: Session) -> Generator[Batch]:
        start = self._position
        with closing(session.stream(start)) as stream:
            for batch in stream:
                self._position = batch.position
                yield batch
        # Only a finite pass ends. What is left of its epoch was too little for a batch.
        self._position = Position(start.epoch + 1, 0)


def origin_of(dataset: Dataset, order: Order) -> dict[str, Any]:  # Any: JSON values
    """What a position is a position in: the part of a state that does not change from batch to batch."""
    version = dataset.version
    return {
        "format": _STATE_FORMAT,
        "version": version.number,
        "fingerprint": version.fingerprint,
        "order": asdict(order),
    }


def read_state(state: Mapping[str, Any], config: LoaderConfig) -> tuple[Order, int, Position]:
    """The order, version and position of a state. Raises StateMismatchError if `config` asks for another order."""
    try:
        if state["format"] != _STATE_FORMAT:
            raise StateMismatchError(f"loader state has format {state['format']}, this version reads {_STATE_FORMAT}")
        order = Order(**state["order"])
        position = Position(int(state["epoch"]), int(state["consumed"]))
        version = int(state["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise StateMismatchError(f"not the state of a loader: {error!r}") from None
    asked = {
        "seed": config.seed,
        "shuffle": config.shuffle,
        "num_lanes": config.num_lanes,
        "window_blocks": config.shuffle_window,
        "version": config.version,
    }
    saved = {**asdict(order), "version": version}
    for name, value in asked.items():
        if value is not None and value != saved[name]:
            raise StateMismatchError(
                f"the state was saved with {name}={saved[name]} and the loader has {name}={value}; "
                "use the saved value, or start without the state"
            )
    return order, version, position


def check_fits(state: Mapping[str, Any], dataset: Dataset) -> None:
    """Raises StateMismatchError if the state was saved from other data."""
    if int(state["consumed"]) > dataset.version.num_rows:
        raise StateMismatchError(
            f"the state has consumed {state['consumed']} samples of an epoch, {dataset.store.url} has only "
            f"{dataset.version.num_rows}; point the loader to the dataset of the saved run"
        )
    if (found := dataset.version.fingerprint) != state.get("fingerprint"):
        raise StateMismatchError(
            f"{dataset.store.url} version {dataset.version.number} holds other data than the state was saved from: "
            f"fingerprint {found}, saved {state.get('fingerprint')}; point the loader to the dataset of the saved run"
        )

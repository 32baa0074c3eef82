"""The loader that people hold: wires the rooms, iterates, saves and restores its position."""

import logging
import os
import shutil
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from dataplane.buffers import BufferPool, allocate
from dataplane.catalog import Dataset, open_dataset
from dataplane.errors import StateMismatchError
from dataplane.metrics import Metrics
from dataplane.pipeline import Arena, Batch, BatchStream, Layout, StreamLimits, allocate_pinned, batch_memory
from dataplane.plan import Order, Plan, Position, Topology
from dataplane.storage import BlockCache, BlockSource

_log = logging.getLogger(__name__)

DEFAULT_CACHE = Path("~/.cache/dataplane")
_STATE_FORMAT = 1
# Batches in use at once: queued, at the trainer, and a few kept; whoever keeps more pays for fresh memory.
_BATCH_BUFFERS = 16


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
    # Requests in flight: at 30 ms a request and 0.5 MB a block, 16 bring some 250 MB/s.
    fetch_threads: int = 16
    # zstd decodes 0.4 to 1 GB/s of tokens on a thread, far more than a trainer's rank consumes.
    decode_threads: int = 2
    prefetch_batches: int = 8
    pin_memory: bool = False
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("batch_size", "fetch_threads", "decode_threads", "prefetch_batches"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("num_lanes", "shuffle_window", "memory_bytes", "version"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.endless and self.drop_last:
            raise ValueError("endless and drop_last exclude each other: an endless pass drops nothing")


class Session:
    """A dataset opened for one rank: everything that stays the same from pass to pass."""

    def __init__(self, config: LoaderConfig, order: Order | None, version: int | None, metrics: Metrics) -> None:
        self.config = config
        self.metrics = metrics
        self.topology = config.topology or Topology.from_env(os.environ)
        self.dataset: Dataset = open_dataset(
            config.url, version=version or config.version, storage_options=config.storage_options
        )
        self.plan = Plan(
            index=self.dataset.index,
            order=order or self._suited_order(),
            batch_size=config.batch_size,
            topology=self.topology,
            drop_last=config.drop_last,
            endless=config.endless,
        )
        self.layout = Layout.of(self.dataset.schema, config.columns)
        self._cache = self._open_cache()
        self._buffers = self._make_buffers()
        # Made once and lent to one pass after the other: its pages are touched already.
        self._arenas: list[Arena] = []

    def stream(self, position: Position, *, first: int = 0, stride: int = 1) -> Generator[Batch]:
        """The batches from a position on; of those only `first`, `first + stride`, ..."""
        index = self.dataset.index
        source = BlockSource(self.dataset.store, self._cache, self.metrics)
        with ExitStack() as stack:
            if self._cache is not None:
                stack.enter_context(self._cache.claim(index.digest))
            arena = self._arenas.pop() if self._arenas else self._make_arena()
            stack.callback(self._arenas.append, arena)
            stream = BatchStream(
                self.plan.reads(position, first=first, stride=stride),
                num_blocks=len(index),
                fetch=lambda number: source.read(index[number]),
                decode=self._decode,
                layout=self.layout,
                arena=arena,
                buffers=self._buffers,
                limits=StreamLimits(
                    fetch_threads=self.config.fetch_threads,
                    decode_threads=self.config.decode_threads,
                    prefetch_batches=self.config.prefetch_batches,
                ),
                metrics=self.metrics,
                mark_filler=not (self.config.drop_last or self.config.endless),
            )
            stack.callback(stream.close)
            yield from stream

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

    def _make_buffers(self) -> BufferPool:
        pinned = self.config.pin_memory and torch.cuda.is_available()
        return BufferPool(_BATCH_BUFFERS, allocate_pinned if pinned else allocate)

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


def _half_of_the_disk(folder: Path) -> int:
    """A default that leaves room: half of what is free now, on the disk where the folder is or will be."""
    existing = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
    return shutil.disk_usage(existing).free // 2


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
        topology: this rank's place; by default that of torchrun's RANK and WORLD_SIZE.
        cache_dir: folder of the block cache, None for none; by default ~/.cache/dataplane, and none for local datasets.
        cache_bytes: the most that the cache folder holds; by default half of the free disk.
        memory_bytes: the most that blocks in memory take; by default what the order needs and half as much again.
        storage_options: the store's own: endpoint, access_key_id, region, ...
    """

    def __init__(self, url: str, *, batch_size: int, **options: Any) -> None:  # Any: LoaderConfig's fields
        self.config = LoaderConfig(url=str(url), batch_size=batch_size, **options)
        self.metrics = Metrics()
        self._position = Position()
        self._session: Session | None = None
        self._order: Order | None = None
        self._version: int | None = None
        # Weak: an abandoned pass ends its threads at once, not at the next garbage collection.
        self._running: weakref.ref[Generator[Batch]] | None = None

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        session = self._opened()
        self._report_dropped(session)
        running = self._deliver(session.stream(self._position))
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
        session = self._opened()
        return state_of(session, self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved position, at any world size and batch size.

        Raises StateMismatchError, naming the difference, if the state belongs to other data or another order.
        """
        self.close()
        self._session = None
        self._order, self._version, self._position = read_state(state, self.config)
        check_fingerprint(state, self._opened().dataset)

    def close(self) -> None:
        """Stops the threads of a pass that has not ended. The loader can be iterated again."""
        if self._running is not None and (running := self._running()) is not None:
            running.close()
        self._running = None

    def _opened(self) -> Session:
        if self._session is None:
            self._session = Session(self.config, self._order, self._version, self.metrics)
        return self._session

    def _deliver(self, stream: Generator[Batch]) -> Generator[Batch]:
        with closing(stream):
            for batch in stream:
                self._position = batch.position
                yield batch

    def _report_dropped(self, session: Session) -> None:
        if (dropped := session.plan.num_dropped) and session.topology.rank == 0:
            self.metrics.add(dropped_samples=dropped)
            _log.warning(
                "%s: drop_last leaves out %d of %d samples in this epoch (global batch %d)",
                self.config.url,
                dropped,
                session.dataset.version.num_rows,
                session.plan.global_batch_size,
            )


def state_of(session: Session, position: Position) -> dict[str, Any]:  # Any: JSON values
    """The state of a run that stands at a position."""
    version = session.dataset.version
    return {
        "format": _STATE_FORMAT,
        "version": version.number,
        "fingerprint": version.fingerprint,
        "order": asdict(session.plan.order),
        "epoch": position.epoch,
        "consumed": position.consumed,
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


def check_fingerprint(state: Mapping[str, Any], dataset: Dataset) -> None:
    """Raises StateMismatchError if the state was saved from other data."""
    if (found := dataset.version.fingerprint) != state.get("fingerprint"):
        raise StateMismatchError(
            f"{dataset.store.url} version {dataset.version.number} holds other data than the state was saved from: "
            f"fingerprint {found}, saved {state.get('fingerprint')}; point the loader to the dataset of the saved run"
        )

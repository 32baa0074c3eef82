"""The same sequence through `torch.utils.data.DataLoader`.

    dataset = StreamingDataset(url, batch_size=8)
    for batch in DataLoader(dataset, batch_size=None, num_workers=2):
        ...

Each worker process makes every n-th batch, and DataLoader takes them in turn: worker count changes nothing about what
is delivered. Threads already do the work in one process, so one worker is seldom slower than several.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from dataplane.errors import DatasetError
from dataplane.loader import Session, make_config, open_saved
from dataplane.metrics import Metrics
from dataplane.pipeline import Batch
from dataplane.plan import Order, Position
from dataplane.source import Data
from dataplane.state import read_state

# A dataset opens within the retries of its store, or its first worker says why not.
_DECISION_SECONDS = 60.0


class StreamingDataset(torch.utils.data.IterableDataset[Batch]):
    """Batches of one or several datasets for one rank. Use it with `batch_size=None`: batching is done.

    Takes the arguments of `StreamingLoader`. As with torch's DistributedSampler, call `set_epoch` before each pass:
    worker processes cannot move the position of the training process. For the same reason a state is made from a
    batch: `dataset.state_dict(batch)`, or `batch.state_dict()`.
    """

    def __init__(self, data: Data, *, batch_size: int, **options: Any) -> None:  # Any: LoaderConfig's fields
        self.config = make_config(data, batch_size, options)
        # Epoch, samples consumed, and each source's version (0: not yet known), where worker processes of all passes
        # see them.
        self._place = torch.zeros(2 + len(self.config.sources), dtype=torch.int64).share_memory_()
        self._order: Order | None = None

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        return self._open().stream(self._position, first=first, stride=stride)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin at the start of an epoch, in worker processes too."""
        self._move_to(Position(epoch, 0))

    def state_dict(self, batch: Batch | None = None) -> dict[str, Any]:  # Any: JSON values
        """The state after a batch that the training loop received; without one, the dataset's own position."""
        return self._open().state_at(self._position) if batch is None else batch.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `StreamingLoader.load_state_dict`; takes its states too. Call it before iterating."""
        saved = read_state(state, self.config.sources, self.config.order)
        open_saved(self.config, state, saved, Metrics())
        self._order = saved.order
        self._place[2:] = torch.tensor(saved.versions)
        self._move_to(saved.position)

    @property
    def _position(self) -> Position:
        epoch, consumed, *_ = self._place.tolist()
        return Position(epoch, consumed)

    def _move_to(self, position: Position) -> None:
        self._place[0], self._place[1] = position.epoch, position.consumed

    def _open(self) -> Session:
        # Not kept: the dataset travels to worker processes, which open their own.
        session = Session(self.config, Metrics(), order=self._order, versions=self._pinned_versions())
        # The last one last: it says that all are known.
        for number, version in reversed(list(enumerate(session.sources.versions, 2))):
            self._place[number] = version
        return session

    def _pinned_versions(self) -> list[int] | None:
        """The versions that all workers read; None for the one that decides, worker 0, when nobody has before."""
        worker = torch.utils.data.get_worker_info()
        deadline = time.monotonic() + _DECISION_SECONDS
        while not self._place[2] and worker is not None and worker.id > 0:
            if time.monotonic() > deadline:
                raise DatasetError(f"{self.config.urls}: worker 0 did not open it in {_DECISION_SECONDS:.0f} s")
            time.sleep(0.005)
        return [int(version) for version in self._place[2:]] if self._place[2] else None

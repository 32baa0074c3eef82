"""The same sequence through `torch.utils.data.DataLoader`.

    dataset = StreamingDataset(url, batch_size=8)
    for batch in DataLoader(dataset, batch_size=None, num_workers=2):
        ...

Each worker process makes every n-th batch, and DataLoader takes them in turn: worker count changes nothing about what
is delivered. Threads already do the work in one process, so one worker is seldom slower than several.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from dataplane.loader import Session, check_fingerprint, make_config, read_state
from dataplane.metrics import Metrics
from dataplane.pipeline import Batch
from dataplane.plan import Order, Position


class StreamingDataset(torch.utils.data.IterableDataset[Batch]):
    """Batches of one dataset for one rank. Use it with `batch_size=None`: batching is done.

    Takes the arguments of `StreamingLoader`. As with torch's DistributedSampler, call `set_epoch` before each pass:
    worker processes cannot move the position of the training process. For the same reason a state is made from a
    batch: `dataset.state_dict(batch)`, or `batch.state_dict()`.
    """

    def __init__(self, url: str, *, batch_size: int, **options: Any) -> None:  # Any: LoaderConfig's fields
        self.config = make_config(url, batch_size, options)
        # Epoch and samples consumed, where worker processes that live on from pass to pass see them change.
        self._place = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._order: Order | None = None
        self._version: int | None = None

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
        order, version, position = read_state(state, self.config)
        check_fingerprint(state, Session(self.config, order, version, Metrics()).dataset)
        self._order, self._version = order, version
        self._move_to(position)

    @property
    def _position(self) -> Position:
        epoch, consumed = self._place.tolist()
        return Position(epoch, consumed)

    def _move_to(self, position: Position) -> None:
        self._place[0], self._place[1] = position.epoch, position.consumed

    def _open(self) -> Session:
        # Not kept: the dataset travels to worker processes, which open their own.
        return Session(self.config, self._order, self._version, Metrics())

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

from dataplane.loader import LoaderConfig, Session, check_fingerprint, read_state, state_of
from dataplane.metrics import Metrics
from dataplane.pipeline import Batch
from dataplane.plan import Order, Position


class StreamingDataset(torch.utils.data.IterableDataset[Batch]):
    """Batches of one dataset for one rank. Use it with `batch_size=None`: batching is done.

    Takes the arguments of `StreamingLoader`. Worker processes cannot move the position of the dataset in the training
    process, so a state is made from a batch: `dataset.state_dict(batch)`.
    """

    def __init__(self, url: str, *, batch_size: int, **options: Any) -> None:  # Any: LoaderConfig's fields
        self.config = LoaderConfig(url=str(url), batch_size=batch_size, **options)
        self._position = Position()
        self._order: Order | None = None
        self._version: int | None = None

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        return self._open().stream(self._position, first=first, stride=stride)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin at the start of an epoch."""
        self._position = Position(epoch, 0)

    def state_dict(self, batch: Batch | None = None) -> dict[str, Any]:  # Any: JSON values
        """The state after a batch that the training loop received; without one, the dataset's own position."""
        return state_of(self._open(), self._position if batch is None else batch.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `StreamingLoader.load_state_dict`; takes its states too. Call it before iterating."""
        self._order, self._version, self._position = read_state(state, self.config)
        check_fingerprint(state, self._open().dataset)

    def _open(self) -> Session:
        # Not kept: the dataset travels to worker processes, which open their own.
        return Session(self.config, self._order, self._version, Metrics())

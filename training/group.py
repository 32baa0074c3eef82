"""The ranks that train together: sums, agreements, the shared gradient; free for a single rank."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dataplane import Topology


class Group:
    """All ranks of a run. Every method is collective: each rank calls it at the same place."""

    def __init__(
        self, topology: Topology, device: torch.device, *, background: dist.ProcessGroup | None = None
    ) -> None:
        self.background = background
        """The same ranks over gloo, for exchanges of another thread; None for a single rank."""
        self.rank = topology.rank
        self.world_size = topology.world_size
        self._device = device

    def sum(self, values: list[float]) -> Tensor:
        """The values summed over ranks: float64 [len(values)] on the device; read it to wait."""
        total = torch.tensor(values, dtype=torch.float64).to(self._device, non_blocking=True)
        if self.world_size > 1:
            dist.all_reduce(total)
        return total

    def ranks_where(self, condition: bool) -> list[int]:
        """The ranks that pass true; also a barrier."""
        flags = [0.0] * self.world_size
        flags[self.rank] = float(condition)
        return [rank for rank, flag in enumerate(self.sum(flags).tolist()) if flag]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with its gradients averaged over ranks, and rank 0's weights on all of them."""
        if self.world_size == 1:
            return model
        devices = [self._device] if self._device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def without_exchange(model: nn.Module) -> AbstractContextManager[None]:
    """A context in which gradients only add up locally; the forward pass belongs inside it, too."""
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


@contextmanager
def process_group(
    topology: Topology, device: torch.device, *, rendezvous: str | None, timeout_seconds: float
) -> Iterator[Group]:
    """The group of all ranks, set up for the time of the block; a single rank sets nothing up.

    `rendezvous` is a URL that all ranks share: `tcp://host:port` or `file:///path`. On an error the
    connections are torn down at once, which makes the other ranks' next exchange fail as well.

    Raises:
        ValueError: several ranks, and no rendezvous or a group that someone else has set up.
    """
    if topology.world_size == 1:
        yield Group(topology, device)
        return
    if rendezvous is None:
        raise ValueError(f"world_size={topology.world_size} needs a rendezvous URL; use torchrun")
    if dist.is_initialized():
        raise ValueError("a process group exists already; run() sets up its own")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=rendezvous,
        rank=topology.rank,
        world_size=topology.world_size,
        timeout=timedelta(seconds=timeout_seconds),
    )
    try:
        yield Group(topology, device, background=dist.new_group(backend="gloo"))
    finally:
        dist.destroy_process_group()

"""The ranks that train together: sums, agreements, averages; free for a single rank."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dataplane import Topology
from training.parallel import Layout

AVERAGE_BYTES = 64 << 20  # averaged at once: few exchanges, and little memory for the copy


class Group:
    """All ranks of a run. Every method is collective: each rank calls it at the same place."""

    def __init__(
        self,
        topology: Topology,
        device: torch.device,
        *,
        layout: Layout | None = None,
        background: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank = topology.rank
        self.world_size = topology.world_size
        self.layout = layout or Layout(replicate=topology.world_size)
        self.data = self.layout.data(topology.rank)
        """Which samples this rank receives."""

        self.leads = topology.rank % self.layout.tensor == 0
        """Whether this rank, and not a tensor peer of it, speaks for its samples."""

        self.background = background
        """The same ranks over gloo, for exchanges of another thread; None for a single rank."""

        self._device = device

    def sum(self, values: list[float]) -> Tensor:
        """The values summed over ranks: float64 [len(values)] on the device; read it to wait."""
        total = torch.tensor(values, dtype=torch.float64).to(self._device, non_blocking=True)
        if self.world_size > 1:
            dist.all_reduce(total)
        return total

    def sum_of_samples(self, values: list[float]) -> Tensor:
        """The same, each rank's samples counted once: of tensor peers, which have the same ones, one counts."""
        return self.sum(values if self.leads else [0.0] * len(values))

    def ranks_where(self, condition: bool) -> list[int]:
        """The ranks that pass true; also a barrier."""
        flags = [0.0] * self.world_size
        flags[self.rank] = float(condition)
        return [rank for rank, flag in enumerate(self.sum(flags).tolist()) if flag]

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace floating-point tensors, in place, by their mean over ranks."""
        chosen: list[Tensor] = []
        for tensor in [*tensors, None]:
            full = sum(each.numel() * each.element_size() for each in chosen) >= AVERAGE_BYTES
            if chosen and (tensor is None or full or tensor.dtype != chosen[0].dtype):
                flat = torch.cat([each.reshape(-1) for each in chosen])
                dist.all_reduce(flat)
                flat /= self.world_size
                for each, mean in zip(chosen, flat.split([each.numel() for each in chosen]), strict=True):
                    each.copy_(mean.view_as(each))
                chosen = []
            if tensor is not None:
                chosen.append(tensor)


@contextmanager
def process_group(
    topology: Topology,
    device: torch.device,
    *,
    rendezvous: str | None,
    timeout_seconds: float,
    layout: Layout | None = None,
) -> Iterator[Group]:
    """The group of all ranks, set up for the time of the block; a single rank sets nothing up.

    `rendezvous` is a URL that all ranks share: `tcp://host:port` or `file:///path`. On an error the
    connections are torn down at once, which makes the other ranks' next exchange fail as well.

    Raises:
        ValueError: several ranks, and no rendezvous or a group that someone else has set up.
    """
    if topology.world_size == 1:
        yield Group(topology, device, layout=layout)
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
        yield Group(topology, device, layout=layout, background=dist.new_group(backend="gloo"))
    finally:
        dist.destroy_process_group()

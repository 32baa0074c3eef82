"""How ranks share a model: what is copied, what is divided, and what goes over the wire.

Decided here as values (`Layout`, `wire_bytes`); done by torch: DDP, FSDP2 and DTensor on one device mesh.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dataplane import Topology

Method = Literal["ddp", "fsdp", "local_sgd"]
Compression = Literal["none", "bf16", "fp16", "powersgd"]

# PowerSGD compresses from this update on: before, gradients are too unlike each other for it, and DDP's own buckets
# settle only after the first.
POWERSGD_START = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A grid of ranks: `replicate` copies of the model, each on `shard` x `tensor` ranks; tensor peers are adjacent."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def data_ranks(self) -> int:
        """Ranks that receive different samples."""
        return self.replicate * self.shard

    def data(self, rank: int) -> Topology:
        """Which samples a rank receives: tensor peers receive the same."""
        return Topology(rank=rank // self.tensor, world_size=self.data_ranks)


def decide_layout(world_size: int, *, method: Method, shard: int | None, tensor: int) -> Layout:
    """The grid that so many ranks form.

    Raises:
        ValueError: they form none; the message says which numbers would do.
    """
    if world_size % tensor:
        raise ValueError(
            f"parallel.tensor={tensor} does not divide the {world_size} ranks; start a multiple of {tensor} ranks"
        )
    data_ranks = world_size // tensor
    if method != "fsdp":
        if shard is not None:
            raise ValueError(f"parallel.shard={shard} goes with parallel.data=fsdp, got {method}")
        if tensor > 1 and data_ranks > 1:
            raise ValueError(
                f"parallel.tensor={tensor} on {world_size} ranks goes with parallel.data=fsdp, got {method}"
            )
        return Layout(replicate=data_ranks, tensor=tensor)
    shard = shard or data_ranks
    if data_ranks % shard:
        raise ValueError(
            f"parallel.shard={shard} does not divide the {data_ranks} ranks that receive different samples; use one of "
            f"{', '.join(str(n) for n in range(1, data_ranks + 1) if data_ranks % n == 0)}"
        )
    return Layout(replicate=data_ranks // shard, shard=shard, tensor=tensor)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    """How a model is shared, beyond the grid."""

    method: Method = "ddp"
    compression: Compression = "none"
    powersgd_rank: int = 4
    static_graph: bool = False
    sync_every: int = 1
    """Updates between two averages of the weights, under local SGD."""


@runtime_checkable
class Divisible(Protocol):
    """A model that knows how to be tensor parallel."""

    def divide(self, mesh: DeviceMesh) -> None: ...


def share(model: nn.Module, sharing: Sharing, layout: Layout, device: torch.device) -> nn.Module:
    """The model, on `device`, shared among the ranks of the process group; the optimizer is built after this.

    All ranks have made it with the same seed. Gradients come out averaged over the ranks that receive different
    samples, but under local SGD, where each rank keeps its own.

    Raises:
        ValueError: the model cannot be tensor parallel.
    """
    if layout == Layout():
        return model
    mesh = init_device_mesh(
        device.type,
        (layout.replicate, layout.shard, layout.tensor),
        mesh_dim_names=("replicate", "shard", "tensor"),
    )
    if layout.tensor > 1:
        if not isinstance(model, Divisible):
            raise ValueError(
                f"{type(model).__name__} has no method divide(mesh), which parallel.tensor={layout.tensor} needs"
            )
        model.divide(mesh["tensor"])
    if sharing.method == "fsdp" and layout.data_ranks > 1:
        return _fully_sharded(model, sharing, mesh["shard"] if layout.replicate == 1 else mesh["replicate", "shard"])
    if sharing.method == "ddp" and layout.data_ranks > 1:
        return _replicated(model, sharing, device)
    return model


def _fully_sharded(model: nn.Module, sharing: Sharing, mesh: DeviceMesh) -> nn.Module:
    reduce_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(sharing.compression)
    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    for layers in model.modules():
        if isinstance(layers, nn.ModuleList):
            for layer in layers:
                fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def _replicated(model: nn.Module, sharing: Sharing, device: torch.device) -> nn.Module:
    ddp = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        static_graph=sharing.static_graph,
    )
    if sharing.compression in _ROUNDED:
        ddp.register_comm_hook(_ROUNDED[sharing.compression], _rounded)
    elif sharing.compression == "powersgd":
        state = PowerSGDState(
            process_group=None, matrix_approximation_rank=sharing.powersgd_rank, start_powerSGD_iter=POWERSGD_START
        )
        ddp.register_comm_hook(state, powerSGD_hook)
    return ddp


_ROUNDED = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}


def _rounded(
    hook: Callable[[None, Any], Future[Tensor]],  # Any: as below
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch declares it in C++, and DDP asks for this very name
) -> Future[Tensor]:
    """torch's own hook; by another name, for DDP believes that bf16 under its own needs NCCL."""
    return hook(None, bucket)


@contextmanager
def without_exchange(model: nn.Module) -> Iterator[None]:
    """A context in which gradients only add up locally; the forward pass belongs inside it, too."""
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    else:
        yield


def bare(model: nn.Module) -> nn.Module:
    """The model without DDP's wrapper, so that its weights have their own names."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def whole(tensor: Tensor) -> Tensor:
    """A norm or sum over all parts of a divided tensor; collective where it is divided."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def wire_bytes(parameters: list[tuple[int, ...]], layout: Layout, sharing: Sharing, *, element_bytes: int = 4) -> int:
    """Bytes of weights and gradients that a rank sends per update, on average, for parameters of these shapes.

    Counts rings, as NCCL's and gloo's are at these sizes: an all-reduce of n bytes on p ranks sends 2 n (p - 1) / p, a
    gather or a reduce-scatter half of that. Activations of tensor parallelism depend on the batch and are not counted.
    """
    sizes = [_product(shape) for shape in parameters]
    weights = sum(sizes) * element_bytes / layout.tensor
    if sharing.method == "local_sgd":
        # Weights and both moments of Adam.
        return round(3 * _all_reduce(weights, layout.replicate) / sharing.sync_every)
    if sharing.method == "ddp":
        return round(_all_reduce(_gradient_bytes(parameters, sharing, element_bytes) / layout.tensor, layout.replicate))
    gradient = weights / 2 if sharing.compression != "none" else weights
    # The weights are gathered for the forward and again for the backward pass.
    sharded = (2 * weights + gradient) * (layout.shard - 1) / layout.shard
    return round(sharded + _all_reduce(gradient / layout.shard, layout.replicate))


def _gradient_bytes(parameters: list[tuple[int, ...]], sharing: Sharing, element_bytes: int) -> float:
    if sharing.compression == "none":
        return sum(map(_product, parameters)) * element_bytes
    if sharing.compression in ("bf16", "fp16"):
        return sum(map(_product, parameters)) * 2
    total = 0
    for shape in parameters:
        size, rows = _product(shape), shape[0] if shape else 1
        low_rank = min(sharing.powersgd_rank, rows, size // max(rows, 1)) * (rows + size // max(rows, 1))
        total += min(size, low_rank) if len(shape) > 1 else size
    return total * element_bytes


def _all_reduce(num_bytes: float, num_ranks: int) -> float:
    return 2 * num_bytes * (num_ranks - 1) / num_ranks


def _product(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()

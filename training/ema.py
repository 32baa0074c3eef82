"""A running mean of the weights, which often evaluates better than the weights themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

EMA = "ema."


class Ema:
    """mean = decay * mean + (1 - decay) * weight, after each update; divided among ranks as the weights are."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._weights = dict(model.named_parameters())
        self._means = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._decay = decay

    def tensors(self) -> dict[str, Tensor]:
        """The means, by the weights' names."""
        return {EMA + name: mean for name, mean in self._means.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Follow the weights of one more update."""
        for name, mean in self._means.items():
            mean.lerp_(self._weights[name].detach(), 1 - self._decay)

    @torch.no_grad()
    def restart(self) -> None:
        """Forget the past: the means are the weights."""
        for name, mean in self._means.items():
            mean.copy_(self._weights[name].detach())

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model computes with the means for the time of the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, mean in self._means.items():
            weight = self._weights[name].detach()
            kept = weight.clone()
            weight.copy_(mean)
            mean.copy_(kept)

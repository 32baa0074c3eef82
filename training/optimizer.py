"""The optimizers, with weight decay on matrices only."""

from collections.abc import Iterable

import torch
from torch import nn

from training.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """SGD, Adam or AdamW in one fused kernel, with norms and biases in a group that does not decay."""
    groups = decay_groups(model.parameters(), weight_decay=config.weight_decay)
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=config.lr, betas=config.betas, fused=True)


def decay_groups(parameters: Iterable[nn.Parameter], *, weight_decay: float) -> list[dict[str, object]]:
    """Two parameter groups: matrices and embeddings, which decay, and vectors, which do not."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]

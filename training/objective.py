"""What a batch is worth: how many targets it counts, and the sum of their losses.

The two are apart because a global mean needs every rank's count before the first backward pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from training.models.gpt import document_mask, next_token_loss

Columns = Mapping[str, Any]  # Any: tensors, and Ragged for rows of different lengths


class Objective(Protocol):
    """Turns batches into losses; the trainer knows no column's name."""

    @property
    def columns(self) -> list[str]:
        """The columns that it reads."""
        ...

    def count(self, batch: Columns) -> int:
        """How many targets of a batch on the host are counted."""
        ...

    def loss(self, model: nn.Module, batch: Columns) -> Tensor:
        """Sum of the losses of the counted targets: float32, no dimension."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class NextToken:
    """Predict each token of a packed row from those before it; padding is not counted.

    Reads `tokens` (integers [b, t]), `length` (integers [b]: tokens of the row before its padding)
    and, with `mask_documents`, `document_starts` (Ragged: where in its row each document starts).
    """

    mask_documents: bool = False

    @property
    def columns(self) -> list[str]:
        return ["tokens", "length", *(["document_starts"] if self.mask_documents else [])]

    def count(self, batch: Columns) -> int:
        return int((batch["length"].to(torch.int64) - 1).clamp(min=0).sum())

    def loss(self, model: nn.Module, batch: Columns) -> Tensor:
        tokens = batch["tokens"].to(torch.int64)  # may be uint16, which few kernels take
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        width = inputs.shape[1]
        mask = None
        if self.mask_documents:
            starts = batch["document_starts"]
            mask = document_mask(starts.values, starts.offsets, length=width)
        places = torch.arange(1, width + 1, device=tokens.device)
        counted = places < batch["length"].unsqueeze(1)
        return next_token_loss(model(inputs, mask), targets, counted)

"""Which number formats a run uses: decided here as a value, acted upon by the trainer."""

from dataclasses import dataclass
from typing import Literal

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

MIN_LOSS_SCALE = 1e-4  # as in fairseq: gradients that overflow below it are not the scale's fault


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """The format of autocast, and whether small gradients are saved by scaling the loss."""

    dtype: torch.dtype
    loss_scaling: bool

    @property
    def autocast(self) -> bool:
        return self.dtype != torch.float32


def decide_precision(
    name: Literal["fp32", "bf16", "fp16"], *, device_type: str, bf16_supported: bool = True
) -> Precision:
    """The precision that a configuration asks for; weights and optimizer are float32 in each.

    Raises:
        ValueError: the device cannot train in it.
    """
    if name == "fp16" and device_type == "cpu":
        raise ValueError("precision 'fp16' needs a CUDA device; use 'bf16' or 'fp32' on a CPU")
    if name == "bf16" and not bf16_supported:
        raise ValueError(f"this {device_type} device has no bf16; use precision 'fp16' or 'fp32'")
    return Precision(dtype=DTYPES[name], loss_scaling=name == "fp16")

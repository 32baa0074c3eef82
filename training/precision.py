"""Which number formats a run uses: decided here as a value, acted upon by the trainer."""

from dataclasses import dataclass
from typing import Literal

import torch

PrecisionName = Literal["auto", "fp32", "tf32", "bf16", "fp16"]

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

MIN_LOSS_SCALE = 1e-4  # as in fairseq: gradients that overflow below it are not the scale's fault


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """The format of autocast, and whether small gradients are saved by scaling the loss."""

    dtype: torch.dtype
    loss_scaling: bool
    tf32: bool = False
    """Whether products of float32 matrices may be rounded to TF32 on the way."""

    @property
    def autocast(self) -> bool:
        return self.dtype != torch.float32

    @property
    def name(self) -> str:
        return "tf32" if self.tf32 else {dtype: name for name, dtype in DTYPES.items() if name != "tf32"}[self.dtype]


def decide_precision(name: PrecisionName, *, device_type: str, bf16_in_hardware: bool) -> Precision:
    """The precision that a configuration asks for; weights and optimizer are float32 in each.

    "auto" is bf16 where the hardware has it, else fp32: emulated bf16 is slower than fp32, and less exact.

    Raises:
        ValueError: the device cannot train in it.
    """
    if name == "auto":
        name = "bf16" if bf16_in_hardware else "fp32"
    if name == "tf32" and device_type != "cuda":
        raise ValueError(f"precision 'tf32' needs a CUDA device, this one is {device_type}; use 'fp32' or 'auto'")
    if name == "bf16" and device_type == "cuda" and not bf16_in_hardware:
        raise ValueError("this cuda device has no bf16; use precision 'auto', 'fp16' or 'fp32'")
    return Precision(dtype=DTYPES[name], loss_scaling=name == "fp16", tf32=name == "tf32")


def bf16_in_hardware(device: torch.device) -> bool:
    """Whether the device multiplies bf16 matrices itself, rather than by float32 in disguise."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))

"""The state of every random generator that a training step may draw from."""

import random
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int, *, rank: int) -> None:
    """Seed Python's, NumPy's and torch's generators, each rank differently."""
    state = np.random.SeedSequence([seed, rank]).generate_state(3)
    random.seed(int(state[0]))
    np.random.seed(int(state[1]))
    torch.manual_seed(int(state[2]))


def generator_state(device: torch.device) -> dict[str, Any]:  # Any: ints, strings and tensors
    """The generators' state, of types that `torch.load(weights_only=True)` accepts."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_generators(state: dict[str, Any], device: torch.device) -> None:  # Any: as above
    """Put the generators where `generator_state` found them."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)

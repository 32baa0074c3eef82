"""The state of every random generator that a training step may draw from."""

import json
import random

import numpy as np
import torch
from torch import Tensor


def seed_generators(seed: int, *, rank: int) -> None:
    """Seed Python's, NumPy's and torch's generators, each rank differently."""
    state = np.random.SeedSequence([seed, rank]).generate_state(3)
    random.seed(int(state[0]))
    np.random.seed(int(state[1]))
    torch.manual_seed(int(state[2]))


def generator_state(device: torch.device) -> Tensor:
    """The generators' state, as bytes: uint8 [number of bytes]."""
    name, keys, *rest = np.random.get_state(legacy=True)
    state = {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": torch.get_rng_state().tolist(),
        "cuda": torch.cuda.get_rng_state(device).tolist() if device.type == "cuda" else None,
    }
    return torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)


def restore_generators(saved: Tensor, device: torch.device) -> None:
    """Put the generators where `generator_state` found them."""
    state = json.loads(saved.numpy().tobytes())
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(torch.tensor(state["cuda"], dtype=torch.uint8), device)

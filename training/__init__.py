"""A trainer small enough to read in an evening: one step loop, exact resume, and an honest account.

`run` trains in this process, as one rank of however many; `launch` starts several with torchrun.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.checkpoint import Checkpoints, LocalFolder
    from training.config import TrainConfig, load_config, parse_config
    from training.errors import CheckpointError, NonFiniteError
    from training.launcher import INTERRUPTED, launch, start_ranks
    from training.loop import Trainer
    from training.model import GPT, GPTConfig
    from training.precision import Precision
    from training.runs import Summary, run
    from training.schedule import WarmupCosine

__all__ = [
    "GPT",
    "INTERRUPTED",
    "CheckpointError",
    "Checkpoints",
    "GPTConfig",
    "LocalFolder",
    "NonFiniteError",
    "Precision",
    "Summary",
    "TrainConfig",
    "Trainer",
    "WarmupCosine",
    "launch",
    "load_config",
    "parse_config",
    "run",
    "start_ranks",
]

# Imported on first use: a rank must be able to follow its launcher's end before it spends seconds on importing torch.
_HOMES = {
    "CheckpointError": "training.errors",
    "Checkpoints": "training.checkpoint",
    "GPT": "training.model",
    "GPTConfig": "training.model",
    "INTERRUPTED": "training.launcher",
    "launch": "training.launcher",
    "load_config": "training.config",
    "LocalFolder": "training.checkpoint",
    "NonFiniteError": "training.errors",
    "parse_config": "training.config",
    "Precision": "training.precision",
    "run": "training.runs",
    "start_ranks": "training.launcher",
    "Summary": "training.runs",
    "TrainConfig": "training.config",
    "Trainer": "training.loop",
    "WarmupCosine": "training.schedule",
}


def __getattr__(name: str) -> Any:  # Any: one of the public names
    if name not in _HOMES:
        raise AttributeError(f"module 'training' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

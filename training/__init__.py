"""A trainer small enough to read in an evening: one step loop, exact resume, and an honest account.

`run` trains in this process, as one rank of however many; `launch` starts several.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.checkpoint import Checkpoints
    from training.config import TrainConfig, load_config, parse_config, settings
    from training.errors import CheckpointError, HangError, NonFiniteError, OtherRankError
    from training.launcher import INTERRUPTED, launch, start_ranks
    from training.loop import Trainer
    from training.models.gpt import GPT, GPTConfig
    from training.precision import Precision
    from training.runs import Summary, check, run
    from training.schedule import Plateau, Warmup

__all__ = [
    "GPT",
    "INTERRUPTED",
    "CheckpointError",
    "Checkpoints",
    "GPTConfig",
    "HangError",
    "NonFiniteError",
    "OtherRankError",
    "Plateau",
    "Precision",
    "Summary",
    "TrainConfig",
    "Trainer",
    "Warmup",
    "check",
    "launch",
    "load_config",
    "parse_config",
    "run",
    "settings",
    "start_ranks",
]

# Imported on first use: a rank must be able to follow its launcher's end before it spends seconds on importing torch.
_HOMES = {
    "check": "training.runs",
    "CheckpointError": "training.errors",
    "Checkpoints": "training.checkpoint",
    "GPT": "training.models.gpt",
    "HangError": "training.errors",
    "GPTConfig": "training.models.gpt",
    "INTERRUPTED": "training.launcher",
    "launch": "training.launcher",
    "load_config": "training.config",
    "NonFiniteError": "training.errors",
    "OtherRankError": "training.errors",
    "parse_config": "training.config",
    "Plateau": "training.schedule",
    "Precision": "training.precision",
    "run": "training.runs",
    "settings": "training.config",
    "start_ranks": "training.launcher",
    "Summary": "training.runs",
    "TrainConfig": "training.config",
    "Trainer": "training.loop",
    "Warmup": "training.schedule",
}


def __getattr__(name: str) -> Any:  # Any: one of the public names
    if name not in _HOMES:
        raise AttributeError(f"module 'training' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

"""A trainer small enough to read in an evening: one step loop, exact resume, and an honest account.

`run` trains in this process, as one rank of however many; `launch` starts several with torchrun.
"""

from training.checkpoint import Checkpoints, LocalFolder
from training.config import TrainConfig, load_config, parse_config
from training.errors import CheckpointError, NonFiniteError
from training.launch import INTERRUPTED, launch, start_ranks
from training.loop import Trainer
from training.model import GPT, GPTConfig
from training.precision import Precision
from training.run import Summary, run
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

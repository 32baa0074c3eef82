"""The learning rate as a function of the update number, and of nothing else."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmupCosine:
    """Linear warm-up to `peak`, then half a cosine down to `peak * min_ratio`."""

    peak: float
    warmup_steps: int
    num_steps: int
    min_ratio: float

    def lr(self, step: int) -> float:
        """The learning rate of update number `step`, the first being 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        decay_steps = max(self.num_steps - 1 - self.warmup_steps, 1)
        progress = min((step - self.warmup_steps) / decay_steps, 1.0)
        cosine = (1 + math.cos(math.pi * progress)) / 2
        return self.peak * (self.min_ratio + (1 - self.min_ratio) * cosine)

"""The learning rate: a function of the update number and, where it waits for a plateau, of the losses so far."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

Decay = Literal["cosine", "linear", "step", "plateau", "constant"]

LEAST_IMPROVEMENT = 1e-4  # relative; less than that is a plateau (the default of torch's ReduceLROnPlateau)


class Schedule(Protocol):
    """Gives each update its learning rate."""

    def lr(self, step: int) -> float:
        """The learning rate of update number `step`, the first being 0."""
        ...

    def observe(self, loss: float) -> None:
        """Hear the loss of an update, all ranks the same one."""
        ...

    def state_dict(self) -> dict[str, Any]:  # Any: JSON values
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:  # Any: JSON values
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Warmup:
    """A linear rise to `peak`, then a decay that the update number alone decides."""

    peak: float
    warmup_steps: int
    num_steps: int
    decay: Literal["cosine", "linear", "step", "constant"] = "cosine"
    min_ratio: float = 0.0
    """Where cosine and linear end, as a part of the peak."""

    step_every: int = 1
    """Updates between two drops of the decay by steps."""

    step_factor: float = 1.0

    def lr(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        return self.peak * self._remaining(step)

    def observe(self, loss: float) -> None:
        """Nothing here depends on it."""

    def state_dict(self) -> dict[str, Any]:  # Any: JSON values
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # Any: JSON values
        """There is nothing to restore."""

    def _remaining(self, step: int) -> float:
        if self.decay == "constant":
            return 1.0
        if self.decay == "step":
            return float(self.step_factor ** (step // self.step_every))
        decay_steps = max(self.num_steps - 1 - self.warmup_steps, 1)
        progress = min((step - self.warmup_steps) / decay_steps, 1.0)
        left = 1 - progress if self.decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.min_ratio + (1 - self.min_ratio) * left


@dataclass(kw_only=True, slots=True)
class _Watch:
    """What a plateau is seen by."""

    ratio: float = 1.0
    best: float = math.inf
    windows_without: int = 0
    total: float = 0.0
    count: int = 0


class Plateau:
    """A linear rise to `peak`, and a drop by `factor` whenever the loss has stopped falling.

    The mean loss of each `window` updates is compared with the lowest before it; after `patience` windows that are no
    better the rate drops, never below `peak * min_ratio`.
    """

    def __init__(
        self, *, peak: float, warmup_steps: int, window: int, patience: int, factor: float, min_ratio: float
    ) -> None:
        self._peak = peak
        self._warmup_steps = warmup_steps
        self._window = window
        self._patience = patience
        self._factor = factor
        self._min_ratio = min_ratio
        self._watch = _Watch()

    def lr(self, step: int) -> float:
        return self._peak * min(self._watch.ratio, (step + 1) / max(self._warmup_steps, 1))

    def observe(self, loss: float) -> None:
        watch = self._watch
        watch.total += loss
        watch.count += 1
        if watch.count < self._window:
            return
        mean = watch.total / watch.count
        watch.total, watch.count = 0.0, 0
        if mean < watch.best * (1 - LEAST_IMPROVEMENT):
            watch.best, watch.windows_without = mean, 0
            return
        watch.windows_without += 1
        if watch.windows_without >= self._patience:
            watch.ratio = max(watch.ratio * self._factor, self._min_ratio)
            watch.windows_without = 0

    def state_dict(self) -> dict[str, Any]:  # Any: JSON values
        return asdict(self._watch)

    def load_state_dict(self, state: dict[str, Any]) -> None:  # Any: JSON values
        self._watch = _Watch(**state)

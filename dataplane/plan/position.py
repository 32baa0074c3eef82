"""Where in the endless sequence of epochs a run stands."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """A place between two global batches: everything before it was consumed, nothing after it."""

    epoch: int = 0
    consumed: int = 0
    """Samples of this epoch that all ranks together have consumed."""

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.consumed < 0:
            raise ValueError(f"epoch and consumed must not be negative, got {self}")

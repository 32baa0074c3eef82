"""Who is asking."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """Which data-parallel rank is asking, out of how many."""

    rank: int = 0
    world_size: int = 1
    """Ranks that receive different samples; tensor-parallel peers share a rank."""

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"world_size must be at least 1, got {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be in [0, {self.world_size}), got {self.rank}")

    @classmethod
    def from_env(cls, environment: Mapping[str, str]) -> "Topology":
        """The rank that torchrun's RANK and WORLD_SIZE name; a single rank where they are absent."""
        try:
            rank = int(environment.get("RANK", "0"))
            world_size = int(environment.get("WORLD_SIZE", "1"))
        except ValueError as error:
            raise ValueError(f"RANK and WORLD_SIZE must be whole numbers: {error}") from None
        return cls(rank=rank, world_size=world_size)

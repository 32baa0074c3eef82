"""What a failing rank tells its launcher, so that people read the first failure and not its echoes on other ranks."""

import json
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from dataplane.errors import DataplaneError
from training.errors import OtherRankError


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a rank ended."""

    rank: int
    message: str
    traceback: str | None
    """Of an error that nobody foresaw; None where the message says it all."""

    is_echo: bool
    """Whether the rank only noticed that another one had failed."""

    seconds: float
    """When it happened, since the epoch of the system's clock."""

    def report(self) -> str:
        """For people: one line, below the traceback if there is one."""
        return f"{self.traceback or ''}error on rank {self.rank}: {self.message}"

    def save(self, folder: Path) -> None:
        """Leave it in a folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".rank-{self.rank}"
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(folder / f"rank-{self.rank}.json")


def describe(error: BaseException, *, rank: int) -> Failure:
    """The failure that an error, just caught, is."""
    foreseen = isinstance(error, DataplaneError | ValueError | OSError)
    return Failure(
        rank=rank,
        message="\n".join([str(error) or type(error).__name__, *getattr(error, "__notes__", [])]),
        traceback=None if foreseen else "".join(traceback.format_exception(error)),
        is_echo=isinstance(error, OtherRankError) or _lost_contact(error),
        seconds=time.time(),
    )


def read_failures(folder: Path) -> list[Failure]:
    """What the ranks left in a folder."""
    return [Failure(**json.loads(path.read_text())) for path in folder.glob("rank-*.json")]


def first_failure(failures: Iterable[Failure]) -> Failure | None:
    """The one that caused the others: the earliest that is no echo, else the earliest."""
    return min(failures, key=lambda failure: (failure.is_echo, failure.seconds), default=None)


def _lost_contact(error: BaseException) -> bool:
    """Whether a collective failed because of another rank; gloo's errors have no type of their own."""
    kinds = {kind.__name__ for kind in type(error).__mro__}  # torch is not imported for the sake of its names
    return bool({"DistBackendError", "DistNetworkError"} & kinds) or "gloo/transport" in str(error)

"""What an unfinished run has done so far, kept in the folder of the dataset that it makes.

A task's outcome is a small JSON file, written when all that the task made is durable; the next run with the same inputs
and recipe finds it and leaves the task out. No reader of the dataset looks here, and nothing is left once a version is
committed.
"""

import contextlib
import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataplane.storage import Store
from preprocess.engines import Outcome

FOLDER = "work"
_REQUESTS = 16  # at once; each is a round trip to an object store


@dataclass(frozen=True, slots=True)
class Work:
    """The unfinished work of one run; of another run with another fingerprint nothing is seen."""

    store: Store
    fingerprint: str

    def outcomes(self, step: str) -> dict[int, Outcome]:
        """Of the tasks that are finished, by number."""
        paths = [path for path in self.store.list(f"{self._folder}/{step}") if path.endswith(".json")]
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return dict(zip(map(_number_of, paths), pool.map(self._outcome, paths), strict=True))

    def finish(self, step: str, number: int, outcome: Outcome) -> None:
        """Says that a task is done."""
        record = {"result": outcome.result, "counts": outcome.counts, "peak_bytes": outcome.peak_bytes}
        self.store.write(self.path(step, number, "json"), json.dumps(record).encode())

    def path(self, step: str, number: int, suffix: str) -> str:
        """Where something that belongs to a task is kept until the run is over."""
        return f"{self._folder}/{step}/{number:08d}.{suffix}"

    def clear(self) -> None:
        """Removes everything."""
        with ThreadPoolExecutor(_REQUESTS) as pool:
            list(pool.map(self.store.delete, self.store.list(self._folder)))
        if self.store.is_local:
            shutil.rmtree(Path(self.store.url, self._folder), ignore_errors=True)
            with contextlib.suppress(OSError):  # another run's work is there
                Path(self.store.url, FOLDER).rmdir()

    @property
    def _folder(self) -> str:
        return f"{FOLDER}/{self.fingerprint}"

    def _outcome(self, path: str) -> Outcome:
        record: Mapping[str, Any] = json.loads(self.store.read(path))  # Any: JSON
        return Outcome(record["result"], record["counts"], record["peak_bytes"])


def _number_of(path: str) -> int:
    return int(path.rpartition("/")[2].split(".")[0])

"""Checkpoints that are complete or absent, and of which at least one is always complete.

A checkpoint is a folder `step-<n>` that appears by one rename, after everything in it is durable.
It holds `shared.pt` from rank 0 and `rank-<r>.pt` from each rank; next to each stands a `.json` with
its size and digest, so that a damaged file is named instead of trained from. All ranks reach the
same folder.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
from blake3 import blake3

from training.errors import CheckpointError, OtherRankError
from training.group import Group

FORMAT = 1  # a reader refuses what it does not know
MANIFEST = "manifest.json"


class CheckpointStore(Protocol):
    """Where checkpoints lie: the seam for other stores than a local folder."""

    def steps(self) -> list[int]:
        """The steps that have a complete checkpoint, ascending."""
        ...

    def create(self, step: int, name: str) -> AbstractContextManager[BinaryIO]:
        """A new file in the unfinished checkpoint of `step`; durable when the context ends."""
        ...

    def commit(self, step: int) -> None:
        """Make the unfinished checkpoint of `step` complete, at once and durably."""
        ...

    def open(self, step: int, name: str) -> BinaryIO:
        """A file of a complete checkpoint."""
        ...

    def delete(self, step: int) -> None:
        """Remove a complete checkpoint; it is unfinished before its first file goes."""
        ...

    def discard_unfinished(self) -> None:
        """Remove what interrupted saves and deletions left behind."""
        ...


_STEP_FOLDER = re.compile(r"step-(\d{8})")


class LocalFolder:
    """Checkpoints in a folder of a local or mounted file system."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def steps(self) -> list[int]:
        found = (_STEP_FOLDER.fullmatch(path.name) for path in self._folder.glob("step-*"))
        return sorted(int(match[1]) for match in found if match is not None)

    @contextmanager
    def create(self, step: int, name: str) -> Iterator[BinaryIO]:
        folder = self._unfinished(step)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def commit(self, step: int) -> None:
        _sync_folder(self._unfinished(step))
        self._unfinished(step).rename(self._complete(step))
        _sync_folder(self._folder)

    def open(self, step: int, name: str) -> BinaryIO:
        return (self._complete(step) / name).open("rb")

    def delete(self, step: int) -> None:
        self._complete(step).rename(self._unfinished(step))
        shutil.rmtree(self._unfinished(step))

    def discard_unfinished(self) -> None:
        for path in self._folder.glob(".unfinished-*"):
            shutil.rmtree(path)

    def _complete(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"

    def _unfinished(self, step: int) -> Path:
        return self._folder / f".unfinished-{step:08d}"


class Checkpoints:
    """Saves and finds the checkpoints of a run. Every verb but `load` is collective."""

    def __init__(self, store: CheckpointStore, *, keep: int, group: Group) -> None:
        self._store = store
        self._keep = keep
        self._group = group

    def latest(self) -> int | None:
        """The step of the newest complete checkpoint, as rank 0 sees it."""
        newest = max(self._store.steps(), default=-1) if self._group.rank == 0 else 0
        step = int(self._group.sum([newest]).item())
        return None if step < 0 else step

    def clean(self) -> None:
        """Remove what an interrupted run left unfinished; to be called before the first save."""
        with self._together("clean up the checkpoint folder"):
            if self._group.rank == 0:
                self._store.discard_unfinished()

    def save(self, step: int, *, shared: dict[str, Any], own: dict[str, Any]) -> None:
        """Write the checkpoint of `step`, then drop the oldest ones beyond the number kept.

        `shared` is taken from rank 0, `own` from each rank; both of types that
        `torch.load(weights_only=True)` accepts. Returns on all ranks once it is complete.

        Raises:
            OtherRankError: another rank failed to save; that rank raises its own error. Earlier
                checkpoints are untouched.
        """
        with self._together(f"save the checkpoint of step {step}"):
            self._write(step, f"rank-{self._group.rank}", own)
            if self._group.rank == 0:
                self._write(step, "shared", shared)
        with self._together(f"complete the checkpoint of step {step}"):
            if self._group.rank == 0:
                self._commit(step)

    def load(self, step: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """What `save` was given: the shared part, and this rank's own (None for a rank it had not).

        Raises:
            CheckpointError: it is damaged or of another format; the message names the file.
        """
        with self._store.open(step, MANIFEST) as file:
            manifest = json.load(file)
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint of step {step} in {self._store} has format {manifest['format']}, "
                f"this version reads {FORMAT}"
            )
        shared = self._read(step, "shared")
        if self._group.rank >= manifest["world_size"]:
            return shared, None
        return shared, self._read(step, f"rank-{self._group.rank}")

    def _commit(self, step: int) -> None:
        manifest = {"format": FORMAT, "step": step, "world_size": self._group.world_size}
        with self._store.create(step, MANIFEST) as file:
            file.write(json.dumps(manifest).encode())
        self._store.commit(step)
        for old in self._store.steps()[: -self._keep]:
            self._store.delete(old)

    def _write(self, step: int, name: str, value: dict[str, Any]) -> None:
        with self._store.create(step, f"{name}.pt") as file:
            hashing = _HashingWriter(file)
            torch.save(value, hashing)  # type: ignore[arg-type]  # it only writes
        seal = {"num_bytes": hashing.num_bytes, "blake3": hashing.digest.hexdigest()}
        with self._store.create(step, f"{name}.json") as file:
            file.write(json.dumps(seal).encode())

    def _read(self, step: int, name: str) -> dict[str, Any]:
        with self._store.open(step, f"{name}.json") as file:
            seal = json.load(file)
        with self._store.open(step, f"{name}.pt") as file:
            digest = blake3()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
            if digest.hexdigest() != seal["blake3"]:
                raise CheckpointError(
                    f"{name}.pt of the checkpoint of step {step} in {self._store} is damaged "
                    f"({file.tell()} bytes, {seal['num_bytes']} written); remove that checkpoint "
                    "to resume from the one before"
                )
            file.seek(0)
            loaded: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
            return loaded

    @contextmanager
    def _together(self, action: str) -> Iterator[None]:
        """Run the block on each rank; if it fails on any of them, raise on all."""
        try:
            yield
        except Exception as error:  # whatever it is: the others wait to hear of it
            self._group.ranks_where(True)
            error.add_note(f"rank {self._group.rank} could not {action} in {self._store}")
            raise
        failed = self._group.ranks_where(False)
        if failed:
            raise OtherRankError(f"rank {failed[0]} could not {action}; its own message says why")


class _HashingWriter:
    """Passes bytes on to a file and keeps their digest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = blake3()
        self.num_bytes = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.num_bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

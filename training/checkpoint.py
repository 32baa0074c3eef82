"""Checkpoints that are complete or absent, on any store, written while training goes on.

A checkpoint is a folder `step-<n>` of raw tensor bytes and a `manifest.json`, which is created last, by
one atomic put-if-absent: a folder without one is unfinished, and no reader takes it for a checkpoint.
The manifest says for each tensor its type and shape, and for each piece of it the file, the bytes and
their digest; beside them stand the plain values, as JSON. Reading one runs no code and unpickles nothing.
torch.distributed.checkpoint divides the work: each rank writes pieces that no other one writes, and
reads what it needs, at whatever world size.
"""

import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from dataplane.storage import Store
from training.checkpoint_format import MANIFEST, Manifest, PieceReader, PieceWriter
from training.errors import CheckpointError
from training.group import Group

_STEP_MANIFEST = re.compile(rf"step-(\d{{8,}})/{re.escape(MANIFEST)}")


def decide_kept(metrics: Mapping[int, float | None], *, keep: int, keep_best: int) -> set[int]:
    """Of the steps that have a checkpoint, those that stay: the newest, and those whose metric is lowest."""
    newest = sorted(metrics)[-keep:]
    measured = [(metric, -step) for step, metric in metrics.items() if metric is not None]
    return {*newest, *(-step for _, step in sorted(measured)[:keep_best])}


class Checkpoints:
    """Saves and finds the checkpoints of a run. Every verb is collective, but for `failed` and `newest`."""

    def __init__(self, store: Store, *, keep: int, group: Group, keep_best: int = 0) -> None:
        self._store = store
        self._keep = keep
        self._keep_best = keep_best
        self._group = group
        self._stager: DefaultStager | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._metrics: dict[int, float | None] = {}
        self.newest: int | None = None
        """The step of the newest complete checkpoint that this rank knows of."""

    def latest(self) -> int | None:
        """The step of the newest complete checkpoint, as rank 0 finds it in the store."""
        with self._together("look for checkpoints"):
            newest = max(self._steps(), default=-1) if self._group.rank == 0 else 0
        step = int(self._group.sum([newest]).item())
        self.newest = None if step < 0 else step
        return self.newest

    def clean(self) -> None:
        """Remove what an interrupted run left unfinished; to be called before the first save."""
        with self._together("clean up the checkpoint folder"):
            if self._group.rank == 0:
                steps = set(self._steps())
                for step in self._all_steps() - steps:
                    self._delete(step)
                self._metrics = {step: self._manifest(step).metric for step in steps}

    def save(
        self, step: int, *, tensors: Mapping[str, Tensor], values: Mapping[str, Any], metric: float | None = None
    ) -> None:
        """Begin to write the checkpoint of `step`; returns once its tensors are copied, so that training can go on.

        Of a tensor that several ranks have, one rank writes; `values`, which JSON can hold, are taken from rank 0.
        Once it is complete, checkpoints that are neither among the newest nor, by `metric`, among the best are removed.
        Waits for the save before this one.

        Raises:
            CheckpointError: the save before this one failed; the same on all ranks.
        """
        self.wait()
        staged = self._staged(tensors)
        manifest = Manifest(
            step=step, world_size=self._group.world_size, metric=metric, values=dict(values), tensors={}
        )
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending = self._thread.submit(self._write, staged, manifest)

    @property
    def failed(self) -> bool:
        """Whether the save that was begun is known to have failed; `wait` says why."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def wait(self) -> None:
        """Return once the save that was begun is complete.

        Raises:
            CheckpointError: it failed on some rank; the same on all ranks. Earlier checkpoints are untouched.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait for the thread that writes, whatever becomes of its work."""
        if self._thread is not None:
            self._thread.shutdown()
        if self._stager is not None:
            self._stager.close()
        self._thread = self._stager = None

    def manifest(self, step: int) -> Manifest:
        """What the checkpoint of `step` holds.

        Raises:
            CheckpointError: it is of another format.
        """
        return self._manifest(step)

    def load(self, step: int, into: Mapping[str, Tensor]) -> None:
        """Fill tensors, which may be sharded in any way, with those saved under the same names.

        Raises:
            CheckpointError: a piece is damaged, or a tensor is missing or of another shape; the same on all ranks.
        """
        with self._explained(f"load the checkpoint of step {step} from {self._store.url}"):
            load(
                dict(into),
                storage_reader=PieceReader(self._store, folder_of(step)),
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                process_group=self._group.background,
                no_dist=self._group.world_size == 1,
            )

    def _write(self, staged: dict[str, Any], manifest: Manifest) -> None:
        with self._explained(f"save the checkpoint of step {manifest.step} in {self._store.url}"):
            save(
                staged,
                storage_writer=PieceWriter(self._store, folder_of(manifest.step), manifest, rank=self._group.rank),
                planner=DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                process_group=self._group.background,
                no_dist=self._group.world_size == 1,
            )
        self.newest = manifest.step
        if self._group.rank == 0:
            self._metrics[manifest.step] = manifest.metric
            for old in self._metrics.keys() - decide_kept(self._metrics, keep=self._keep, keep_best=self._keep_best):
                self._delete(old)
                del self._metrics[old]

    def _staged(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        if self._stager is None:  # kept: the memory that it copies into is used again
            pinned = any(tensor.is_cuda for tensor in tensors.values())
            self._stager = DefaultStager(StagingOptions(pinned, False, False, False))
        staged: Any = self._stager.stage({name: tensor.detach() for name, tensor in tensors.items()})
        return dict(staged)

    def _manifest(self, step: int) -> Manifest:
        try:
            return Manifest.from_json(self._store.read(f"{folder_of(step)}/{MANIFEST}"))
        except CheckpointError as error:
            error.add_note(f"while reading the checkpoint of step {step} in {self._store.url}")
            raise

    def _steps(self) -> list[int]:
        found = (_STEP_MANIFEST.fullmatch(path) for path in self._store.list(""))
        return sorted(int(match[1]) for match in found if match is not None)

    def _all_steps(self) -> set[int]:
        found = (re.match(r"step-(\d{8,})/", path) for path in self._store.list(""))
        return {int(match[1]) for match in found if match is not None}

    def _delete(self, step: int) -> None:
        """Remove a checkpoint; it is unfinished before its first piece goes."""
        folder = folder_of(step)
        self._store.delete(f"{folder}/{MANIFEST}")
        for path in self._store.list(folder):
            self._store.delete(path)
        if self._store.is_local:  # elsewhere a folder is only a name
            shutil.rmtree(Path(self._store.url) / folder, ignore_errors=True)

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        """Turn what torch collected from the ranks into one error, the same on all of them."""
        try:
            with _without_advice():
                yield
        except CheckpointException as error:
            rank, (cause, _) = min(error.failures.items())
            raise CheckpointError(f"rank {rank} could not {action}: {cause}") from cause

    @contextmanager
    def _together(self, action: str) -> Iterator[None]:
        """Run the block on each rank; if it fails on any of them, raise on all."""
        try:
            yield
        except Exception as error:  # whatever it is: the others wait to hear of it
            self._group.ranks_where(True)
            error.add_note(f"rank {self._group.rank} could not {action} in {self._store.url}")
            raise
        if failed := self._group.ranks_where(False):
            raise CheckpointError(f"rank {failed[0]} could not {action}; its own message says why")


def folder_of(step: int) -> str:
    """Where in the store the checkpoint of a step lies."""
    return f"step-{step:08d}"


@contextmanager
def _without_advice() -> Iterator[None]:
    """torch remarks that a single process saves alone, which it does on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        yield

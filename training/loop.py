"""The step loop: batches in, updates out, each second charged to its cause.

One update, in order: count the targets of all ranks, then per micro-batch forward and backward,
then unscale, clip, agree, step. A non-finite loss on any rank, or a non-finite gradient without loss
scaling, stops every rank before the weights see it. Under loss scaling a non-finite gradient skips
the update on every rank: it is counted, the scale falls, and the schedule stays where it is.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dataplane import Position, Ragged
from dataplane.profile import StepAccount
from training.checkpoint import Checkpoints
from training.ema import Ema
from training.errors import CheckpointError, NonFiniteError
from training.generators import generator_state, restore_generators
from training.group import Group
from training.log import StepLog, StepMetrics
from training.objective import Columns, Objective
from training.parallel import bare, whole, without_exchange
from training.precision import MIN_LOSS_SCALE, Precision
from training.schedule import Schedule
from training.signals import StopRequest
from training.state import allocate_optimizer, check_same_model, model_tensors, optimizer_tensors

T = TypeVar("T")


class Beat(Protocol):
    """Notes progress, and what comes next; see `training.watchdog`."""

    def __call__(self, doing: str, *, needs_others: bool = False) -> None: ...


def no_beat(doing: str, *, needs_others: bool = False) -> None:
    """For a trainer that nobody watches."""


class Loader(Protocol):
    """What the trainer needs of a loader; `dataplane.StreamingLoader` is one."""

    def __iter__(self) -> Iterator[Any]:  # Any: Columns with a `position`; no protocol says that
        """Batches: columns of tensors, and in `position` the place in the epoch after them."""
        ...

    def state_dict(self) -> dict[str, Any]:  # Any: JSON values
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:  # Any: JSON values
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """The numbers that an update follows."""

    schedule: Schedule
    clip_norm: float | None
    accumulation: int
    precision: Precision
    clip_value: float | None = None
    sync_every: int | None = None
    """Local SGD: updates that ranks make each on its own before they average their weights; None if they exchange
    gradients."""


@dataclass(kw_only=True, slots=True)
class Progress:
    """How far a run has come."""

    step: int = 0
    """Updates made: the schedule's place."""

    skipped: int = 0
    tokens: int = 0
    """Counted targets of all ranks."""

    loss: float = math.nan
    """Of the last update."""

    num_left: int = 0
    """Batches of all ranks that came to no update, because the data of another rank had ended before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    """What the ranks found out together about one update."""

    lr: float
    loss: float
    grad_norm: float
    tokens: int
    stop: bool
    save_failed: bool
    non_finite_ranks: list[int]


class Trainer:
    """Runs updates from a loader's batches until there are enough, or until it is asked to stop."""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        loader: Loader,
        recipe: Recipe,
        group: Group,
        device: torch.device,
        account: StepAccount,
        log: StepLog | None = None,
        ema: Ema | None = None,
        beat: Beat = no_beat,
    ) -> None:
        """`model` is on `device`, and shared (`training.parallel.share`) where there are several ranks."""
        self.progress = Progress()
        self._model = model
        self._optimizer = optimizer
        self._objective = objective
        self._loader = loader
        self._recipe = recipe
        self._group = group
        self._device = device
        self._account = account
        self.log = log
        self._ema = ema
        self._beat = beat
        self._rehearsed = not isinstance(model, DistributedDataParallel)  # nothing to lay out
        self._scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision.loss_scaling)

    def train(
        self,
        *,
        num_steps: int,
        stop: StopRequest,
        checkpoints: Checkpoints | None = None,
        every_steps: int = 1,
    ) -> bool:
        """Train until `num_steps` updates are made or the data ends; false if `stop` came first.

        A signal noted by any rank stops all ranks after the same update. When the data of one rank ends, it ends for
        all; batches that the others have left are counted in `progress.num_left`. A checkpoint is begun
        every `every_steps` updates, and made at the end, whichever end it is.

        Raises:
            CheckpointError: a checkpoint cannot be written; the same error on all ranks.
            NonFiniteError: a loss or gradient is not finite; the same error on all ranks.
        """
        saved, stopping = self.progress.step, False
        if self.progress.step >= num_steps:
            return True
        if self._group.ranks_where(stop.signal is not None):
            return False  # asked to stop while starting; there is nothing new to save
        self._beat("waiting for the first batch")
        left = 0
        for micro_batches in self._account.steps(grouped(self._loader, self._recipe.accumulation)):
            self._beat(f"making update {self.progress.step + 1}", needs_others=self._group.world_size > 1)
            num_targets = self._count_targets(micro_batches)
            if num_targets is None:
                left = len(micro_batches)
                break
            if not self._rehearsed:
                self._rehearse(micro_batches[0])
            save_failed = checkpoints is not None and checkpoints.failed
            outcome = self._update(micro_batches, num_targets, stop=stop, save_failed=save_failed)
            self._report(
                outcome, position=micro_batches[-1].position, saved=None if checkpoints is None else checkpoints.newest
            )
            finished = self.progress.step >= num_steps
            aligned = self._align(finished)
            stopping = stopping or outcome.stop
            stopped = stopping and aligned
            due = aligned and (self.progress.step % every_steps == 0 or stopped or finished)
            if checkpoints is not None and (outcome.save_failed or (due and self.progress.step > saved)):
                with self._account.phase("checkpoint"):
                    self.save(checkpoints)
                    if stopped or finished:
                        checkpoints.wait()
                saved = self.progress.step
            if stopped or finished:
                return not stopped
            self._beat(f"waiting for the batch of update {self.progress.step + 1}")
        else:
            self._count_targets(None)
        self.progress.num_left = int(self._group.sum([left]).item())
        self._align(True)
        if checkpoints is not None and self.progress.step > saved:
            self.save(checkpoints)
            checkpoints.wait()
        return True

    def save(self, checkpoints: Checkpoints) -> None:
        """Begin a checkpoint of everything that the next update depends on."""
        model = bare(self._model)
        checkpoints.save(
            self.progress.step,
            tensors={
                **model_tensors(model),
                **optimizer_tensors(model, self._optimizer),
                **(self._ema.tensors() if self._ema else {}),
                _generators_of(self._group.rank): generator_state(self._device),
            },
            values={
                "progress": asdict(self.progress),
                "scaler": self._scaler.state_dict(),
                "schedule": self._recipe.schedule.state_dict(),
                "loader": self._loader.state_dict(),
            },
            metric=self.progress.loss,
        )

    def resume(self, checkpoints: Checkpoints, step: int) -> None:
        """Continue from the checkpoint of `step`, at this or another world size.

        Generators that the checkpoint has no state for, those of added ranks, keep their seed.

        Raises:
            CheckpointError: the checkpoint is damaged, or of another model.
            StateMismatchError: it belongs to other data.
        """
        saved = checkpoints.manifest(step)
        self._loader.load_state_dict(saved.values["loader"])
        model = bare(self._model)
        try:
            check_same_model(model, saved.tensors)
        except CheckpointError as error:
            raise CheckpointError(
                f"the checkpoint of step {step} is of another model ({error}); use another folder, or the settings of "
                "the saved run"
            ) from None
        generators = saved.tensors.get(_generators_of(self._group.rank))
        own = {} if generators is None else {_generators_of(self._group.rank): torch.empty(generators.shape).byte()}
        room = {**model_tensors(model), **allocate_optimizer(model, self._optimizer, saved.tensors), **own}
        means = self._ema.tensors() if self._ema else {}
        has_means = means.keys() <= saved.tensors.keys()
        checkpoints.load(step, {**room, **(means if has_means else {})})
        if self._ema and not has_means:  # the saved run had none
            self._ema.restart()
        self._scaler.load_state_dict(saved.values["scaler"])
        if saved.values["schedule"].keys() == self._recipe.schedule.state_dict().keys():
            self._recipe.schedule.load_state_dict(saved.values["schedule"])
        self.progress = Progress(**saved.values["progress"])
        for state in own.values():
            restore_generators(state, self._device)

    def _count_targets(self, batches: Sequence[Columns] | None) -> Tensor | None:
        """The targets that all ranks count together, on the device; None if the data of any rank has ended."""
        own = 0 if batches is None else sum(self._objective.count(batch) for batch in batches)
        num_targets, num_ended = self._group.sum_of_samples([own, float(batches is None)])
        return None if num_ended.item() else num_targets

    def _update(
        self, batches: Sequence[Columns], num_targets: Tensor, *, stop: StopRequest, save_failed: bool
    ) -> _Outcome:
        """Make or skip one update from the micro-batches of this rank."""
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = self._recipe.schedule.lr(self.progress.step)
        with self._account.phase("transfer"):
            moved = [self._move(batch) for batch in batches]
        losses = self._losses(moved, num_targets=num_targets.clamp(min=1))
        with self._account.phase("optimizer"):
            grad_norm = self._clip()
            outcome = self._agree(losses, num_targets, grad_norm, stop=stop, save_failed=save_failed)
            self._refuse_non_finite(outcome)
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self._optimizer.zero_grad()
        self._count(outcome)
        return outcome

    def _losses(self, batches: Sequence[Columns], *, num_targets: Tensor) -> Tensor:
        """Leave the gradient of the global mean loss in the parameters; this rank's sum of losses.

        Gradients are averaged over the ranks that receive different samples, hence the factor. Only the last
        micro-batch exchanges.
        """
        factor = (self._group.data.world_size / num_targets).to(torch.float32)
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for left, batch in zip(reversed(range(len(batches))), batches, strict=True):
            with without_exchange(self._model) if left else nullcontext():
                with self._account.phase("forward"), self._autocast():
                    loss = self._objective.loss(self._model, batch)
                with self._account.phase("backward"):
                    torch.autograd.backward(self._scaler.scale(loss * factor))
            total += loss.detach()
        return total

    def _clip(self) -> Tensor:
        """Undo the loss scale and clip; the global gradient norm from before clipping."""
        self._scaler.unscale_(self._optimizer)
        limit = math.inf if self._recipe.clip_norm is None else self._recipe.clip_norm
        norm = whole(nn.utils.clip_grad_norm_(self._model.parameters(), limit))
        if self._recipe.clip_value is not None:
            nn.utils.clip_grad_value_(self._model.parameters(), self._recipe.clip_value)
        return norm

    def _align(self, finished: bool) -> bool:
        """Average the weights and the optimizer's memory if it is time; whether all ranks have the same ones now."""
        every = self._recipe.sync_every
        if every is None:
            return True
        if self.progress.step % every and not finished:
            return False
        if self._group.world_size > 1:
            with torch.no_grad():
                model = bare(self._model)
                tensors = [*model_tensors(model).values(), *optimizer_tensors(model, self._optimizer).values()]
                tensors += [] if self._ema is None else self._ema.tensors().values()
                self._group.average(tensor for tensor in tensors if tensor.is_floating_point() and tensor.dim())
        return True

    def _agree(
        self, losses: Tensor, num_targets: Tensor, grad_norm: Tensor, *, stop: StopRequest, save_failed: bool
    ) -> _Outcome:
        """Tell the other ranks this one's losses and troubles; only here the host waits."""
        own_loss, norm, tokens = torch.stack([losses, grad_norm.double(), num_targets]).tolist()
        finite, leads = math.isfinite(own_loss), self._group.leads
        flags = [0.0] * self._group.world_size
        flags[self._group.rank] = float(not finite)
        asked = float(stop.signal is not None)
        sums = self._group.sum([own_loss if finite and leads else 0.0, norm, asked, float(save_failed), *flags])
        loss, norms, num_stops, num_failed, *non_finite = sums.tolist()
        if self._recipe.sync_every is not None:  # each rank has its own; otherwise they are equal to the last bit
            norm = norms / self._group.world_size
        return _Outcome(
            lr=self._recipe.schedule.lr(self.progress.step),
            loss=loss / max(tokens, 1),
            grad_norm=norm,
            tokens=int(tokens),
            stop=num_stops > 0,
            save_failed=num_failed > 0,
            non_finite_ranks=[rank for rank, flag in enumerate(non_finite) if flag],
        )

    def _refuse_non_finite(self, outcome: _Outcome) -> None:
        """Raise on all ranks, before the weights change, where no smaller loss scale helps."""
        update = self.progress.step + 1
        if outcome.non_finite_ranks:
            ranks = ", ".join(str(rank) for rank in outcome.non_finite_ranks)
            raise NonFiniteError(
                f"the loss of update {update} is not finite on rank {ranks}; all ranks stop before "
                "it reaches the weights: look at that rank's data, or lower optimizer.lr"
            )
        if math.isfinite(outcome.grad_norm):
            return
        if not self._scaler.is_enabled():
            raise NonFiniteError(
                f"the gradient norm of update {update} is {outcome.grad_norm}; all ranks stop before "
                "it reaches the weights: lower optimizer.lr or optimizer.clip_norm"
            )
        if self._scaler.get_scale() < MIN_LOSS_SCALE:
            raise NonFiniteError(
                f"the gradient of update {update} overflows at a loss scale of "
                f"{self._scaler.get_scale()}; use precision bf16, or lower optimizer.lr"
            )

    def _count(self, outcome: _Outcome) -> None:
        if not math.isfinite(outcome.grad_norm):  # the scaler has skipped this one
            self.progress.skipped += 1
            return
        self.progress.step += 1
        self.progress.tokens += outcome.tokens
        self.progress.loss = outcome.loss
        self._recipe.schedule.observe(outcome.loss)
        if self._ema is not None:
            self._ema.update()

    def _report(self, outcome: _Outcome, *, position: Position, saved: int | None) -> None:
        if self.log is None:
            return
        times = self._account.progress()
        seconds = max(sum(times.values()), 1) / 1e9
        self.log.write(
            StepMetrics(
                step=self.progress.step,
                loss=outcome.loss,
                lr=outcome.lr,
                grad_norm=outcome.grad_norm,
                tokens=outcome.tokens,
                tokens_per_second=outcome.tokens / seconds,
                data_wait=times["data_wait"] / 1e9 / seconds,
                epoch=position.epoch,
                consumed=position.consumed,
                skipped=self.progress.skipped,
                loss_scale=self._scaler.get_scale(),
                checkpoint=saved,
            )
        )

    def _rehearse(self, batch: Columns) -> None:
        """Run one backward pass that leaves no trace but the layout of the gradient exchange.

        DDP lays out its buckets anew after the first backward pass, and the last bit of a sum over
        more than two ranks depends on where in a bucket a value lies. Without this, the first
        update after a resume could differ from the same update of an uninterrupted run.
        """
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            self._losses([self._move(batch)], num_targets=torch.ones((), device=self._device))
        self._optimizer.zero_grad()
        self._rehearsed = True

    def _move(self, batch: Columns) -> Columns:
        return {name: to_device(batch[name], self._device) for name in self._objective.columns}

    def _autocast(self) -> torch.autocast:
        precision = self._recipe.precision
        return torch.autocast(self._device.type, dtype=precision.dtype, enabled=precision.autocast)


def to_device(column: Tensor | Ragged, device: torch.device) -> Tensor | Ragged:
    """The column on the device; the copy from pinned memory does not block."""
    if isinstance(column, Ragged):
        return Ragged(*(part.to(device, non_blocking=True) for part in column))
    return column.to(device, non_blocking=True)


def grouped(batches: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` batches, and at the end of the data a shorter one; never reads ahead."""
    iterator = iter(batches)
    while group := list(islice(iterator, size)):
        yield group


def _generators_of(rank: int) -> str:
    return f"generators.{rank}"

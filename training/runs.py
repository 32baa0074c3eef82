"""A run from a configuration: for one rank, everything put together, trained, and written down."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import pyarrow as pa
import torch
from rich.console import Console
from torch import nn

from dataplane import StreamingLoader, Topology
from dataplane.errors import DatasetNotFoundError, StateMismatchError
from dataplane.profile import Clock, HostClock, StepAccount
from dataplane.storage import open_store
from training.checkpoint import Checkpoints
from training.config import OptimizerConfig, ParallelConfig, TrainConfig, describe_config, public_values
from training.ema import Ema
from training.generators import seed_generators
from training.group import Group, process_group
from training.log import StepLog, forget_after
from training.loop import Loader, Recipe, Trainer
from training.models.gpt import GPT, GPTConfig
from training.objective import NextToken
from training.optimizer import build_optimizer
from training.parallel import Layout, share, wire_bytes
from training.precision import bf16_in_hardware, decide_precision
from training.schedule import Plateau, Schedule, Warmup
from training.signals import StopRequest
from training.watchdog import Watchdog


class _Counters(Protocol):
    def snapshot(self) -> dict[str, float | int]: ...


class DatasetLoader(Loader, Protocol):
    """A loader that also describes its dataset."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def metadata(self) -> Mapping[str, str]: ...

    @property
    def metrics(self) -> _Counters: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None:  # Any: as contextlib declares it
        ...


OpenLoader = Callable[[TrainConfig, Topology, list[str]], DatasetLoader]
"""Makes the loader of a run, given the columns it is to deliver."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """How a run ended; rank 0 leaves it in `summary.json`."""

    step: int
    """Updates made in the whole run, those before a resume included."""

    num_steps: int
    """Updates that were asked for."""

    resumed_from: int | None
    stopped_by: str | None
    """The signal that ended the run early, or None."""

    loss: float | None
    """Mean per counted token in the last update; None if none was made."""

    tokens: int
    """Counted tokens of the whole run."""

    skipped: int
    seconds: float
    """Of this process's part of the run, from opening the loader to the last checkpoint."""

    world_size: int
    num_parameters: int
    wire_bytes: int
    """Weights and gradients that a rank sends per update."""

    loader: dict[str, float | int]
    """This rank's counters of the loader."""


def open_streaming_loader(config: TrainConfig, topology: Topology, columns: list[str]) -> DatasetLoader:
    """The dataset's loader over endless epochs; settings left out keep the loader's defaults."""
    pin_memory = config.device != "cpu" and torch.cuda.is_available()
    return StreamingLoader(
        config.data.url,
        **config.data.loader_options(),
        pin_memory=pin_memory,
        topology=topology,
        columns=columns,
        endless=True,
    )


def _ignore(error: BaseException) -> None:
    """Tells nobody: the caller of `run` gets the error itself."""


def check(config: TrainConfig, *, num_ranks: int, open_loader: OpenLoader = open_streaming_loader) -> None:
    """Make sure that a run on `num_ranks` ranks of this machine can begin, before any rank is started.

    Raises:
        ValueError, DataplaneError: what `run` would raise on every rank.
    """
    device = decide_device(config.device, num_ranks - 1)
    build_recipe(config, device)
    samples = config.parallel.layout(num_ranks).data(0)
    with open_loader(config, samples, _objective(config).columns) as loader:
        _gpt_config(config, loader)


def run(
    config: TrainConfig,
    topology: Topology | None = None,
    *,
    local_rank: int = 0,
    local_world_size: int = 1,
    rendezvous: str | None = None,
    open_loader: OpenLoader = open_streaming_loader,
    console: Console | None = None,
    stop: StopRequest | None = None,
    on_failure: Callable[[BaseException], None] = _ignore,
) -> Summary:
    """Train as one rank of `topology`, resuming from the newest checkpoint; returns when done.

    SIGTERM and SIGINT end the run after the step in hand, with a checkpoint; the summary names the
    signal. `rendezvous` (a URL like `tcp://host:port`) is needed for several ranks. An error is handed
    to `on_failure` before the other ranks can notice it. A rank that makes no progress for
    `config.timeout_seconds` ends its process, with status 1 and the stacks of its threads on stderr.

    Raises:
        ValueError: settings that do not fit the machine, the dataset or the folder.
        DataplaneError: the dataset, a checkpoint, or a loss that is not finite.
    """
    topology = topology or Topology()
    console = console or Console()
    device = decide_device(config.device, local_rank)
    layout = config.parallel.layout(topology.world_size)
    torch.set_num_threads(config.threads or threads_per_rank(local_world_size))
    account = StepAccount(clock=_clock(device), rank=topology.rank)
    started = time.monotonic()
    with ExitStack() as stack:
        if stop is None:
            stop = stack.enter_context(StopRequest())
        group = stack.enter_context(
            process_group(
                topology, device, rendezvous=rendezvous, timeout_seconds=config.timeout_seconds, layout=layout
            )
        )
        stack.push(_telling(on_failure))
        watchdog = stack.enter_context(Watchdog(config.timeout_seconds, rank=topology.rank, report=on_failure))
        recipe = build_recipe(config, device)
        torch.set_float32_matmul_precision("high" if recipe.precision.tf32 else "highest")
        objective = _objective(config)
        loader = stack.enter_context(open_loader(config, group.data, objective.columns))
        model = build_model(config, loader).to(device)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        shapes = [tuple(parameter.shape) for parameter in model.parameters()]
        shared = share(model, config.parallel.sharing(), layout, device)
        if config.compile != "none":
            _compile(model, config.compile)
        seed_generators(config.seed, rank=group.data.rank)  # tensor peers draw the same
        checkpoints = stack.enter_context(closing(_open_checkpoints(config, group)))
        resumed_from = checkpoints.newest
        trainer = Trainer(
            model=shared,
            optimizer=build_optimizer(model, config.optimizer),
            objective=objective,
            loader=loader,
            recipe=recipe,
            group=group,
            device=device,
            account=account,
            ema=Ema(model, config.optimizer.ema_decay) if config.optimizer.ema_decay else None,
            beat=watchdog.beat,
        )
        if resumed_from is not None:
            _resume(trainer, checkpoints, resumed_from, config)
        log = None
        if topology.rank == 0:
            _prepare_folder(config, resumed_from)
            trainer.log = log = stack.enter_context(_open_log(config, console))
            for line in describe_config(config):
                log.say(line)
            log.say(_headline(recipe, num_parameters, topology, device, resumed_from))
            if topology.world_size > 1:
                log.say(_sharing_line(config.parallel, layout, shapes))
        try:
            finished = trainer.train(
                num_steps=config.optimizer.num_steps,
                stop=stop,
                checkpoints=checkpoints,
                every_steps=config.checkpoint.every_steps,
            )
        finally:
            _write_json(config.folder / f"account-rank{topology.rank}.json", account.summary().to_dict())
        progress = trainer.progress
        summary = Summary(
            step=progress.step,
            num_steps=config.optimizer.num_steps,
            resumed_from=resumed_from,
            stopped_by=None if finished else _name(stop),
            loss=None if math.isnan(progress.loss) else progress.loss,
            tokens=progress.tokens,
            skipped=progress.skipped,
            seconds=time.monotonic() - started,
            world_size=topology.world_size,
            num_parameters=num_parameters,
            wire_bytes=wire_bytes(shapes, layout, config.parallel.sharing()),
            loader=loader.metrics.snapshot(),
        )
        if log is not None:
            _write_json(config.folder / "summary.json", asdict(summary))
            log.say(_farewell(summary, config))
    return summary


def _resume(trainer: Trainer, checkpoints: Checkpoints, step: int, config: TrainConfig) -> None:
    """Continue from a checkpoint; an error says which run the folder holds."""
    try:
        trainer.resume(checkpoints, step)
    except (StateMismatchError, DatasetNotFoundError) as error:
        path = config.folder / "config.json"
        saved = json.loads(path.read_text())["data"]["url"] if path.exists() else "other data"
        raise StateMismatchError(
            f"{config.folder} holds a run on {saved} at step {step}, and this one is on {config.data.url}: {error}; "
            "give this run a folder of its own with --set folder=NEW, or the saved run's dataset"
        ) from error


def decide_device(name: str, local_rank: int) -> torch.device:
    """The device of this rank: its own GPU where there is one.

    Raises:
        ValueError: CUDA is asked for, and this machine has no device for the rank.
    """
    num_devices = torch.cuda.device_count()
    if name == "cpu" or (name == "auto" and num_devices == 0):
        return torch.device("cpu")
    if local_rank >= num_devices:
        raise ValueError(
            f"local rank {local_rank} has no GPU, this machine has {num_devices}; start fewer ranks or set device='cpu'"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def threads_per_rank(local_world_size: int) -> int:
    """An equal share of the cores that this process may use, and at least one thread."""
    may_pin = hasattr(os, "sched_getaffinity")
    num_cores = len(os.sched_getaffinity(0)) if may_pin else os.cpu_count() or 1
    return max(1, num_cores // local_world_size)


def build_model(config: TrainConfig, loader: DatasetLoader) -> GPT:
    """The GPT with the configured seed's weights, sized after the dataset where that was left open.

    Raises:
        ValueError: neither the configuration nor the dataset gives a size, or they do not fit.
    """
    gpt = _gpt_config(config, loader)
    torch.manual_seed(config.seed)
    return GPT(gpt)


def _gpt_config(config: TrainConfig, loader: DatasetLoader) -> GPTConfig:
    vocab_size = loader.metadata.get("vocab_size")
    return config.model.gpt(
        vocab_size=None if vocab_size is None else int(vocab_size),
        context=row_width(loader.schema),
    )


def _objective(config: TrainConfig) -> NextToken:
    return NextToken(mask_documents=config.model.mask_documents)


def _telling(tell: Callable[[BaseException], None]) -> Callable[..., None]:
    """An exit callback that tells of an error on its way out."""

    def exit_callback(kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception):
            tell(error)

    return exit_callback


def row_width(schema: pa.Schema) -> int | None:
    """Tokens per row of a packed dataset; None where rows differ in length.

    Raises:
        ValueError: there is no column of tokens.
    """
    if "tokens" not in schema.names:
        raise ValueError(
            f"the dataset has the columns {', '.join(schema.names)} and no column 'tokens'; "
            "preprocess it with a tokenizer first"
        )
    kind = schema.field("tokens").type
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return int(storage.list_size) if pa.types.is_fixed_size_list(storage) else None


def _clock(device: torch.device) -> Clock:
    if device.type != "cuda":
        return HostClock()
    from dataplane.profile.device import CudaClock  # only where there is a device to ask

    return CudaClock(device)


def build_recipe(config: TrainConfig, device: torch.device) -> Recipe:
    """The numbers that each update follows, on this device.

    Raises:
        ValueError: the device cannot train in the configured precision.
    """
    optimizer, parallel = config.optimizer, config.parallel
    return Recipe(
        sync_every=parallel.sync_every if parallel.data == "local_sgd" else None,
        schedule=_schedule(optimizer),
        clip_value=optimizer.clip_value,
        clip_norm=optimizer.clip_norm,
        accumulation=optimizer.accumulation,
        precision=decide_precision(
            config.precision,
            device_type=device.type,
            bf16_in_hardware=bf16_in_hardware(device),
        ),
    )


def _schedule(config: OptimizerConfig) -> Schedule:
    if config.schedule == "plateau":
        return Plateau(
            peak=config.lr,
            warmup_steps=config.warmup_steps,
            window=config.step_every,
            patience=config.patience,
            factor=config.step_factor,
            min_ratio=config.min_lr_ratio,
        )
    return Warmup(
        peak=config.lr,
        warmup_steps=config.warmup_steps,
        num_steps=config.num_steps,
        decay=config.schedule,
        min_ratio=config.min_lr_ratio,
        step_every=config.step_every,
        step_factor=config.step_factor,
    )


def _compile(model: nn.Module, backend: str) -> None:
    """Compile each block of a model, or all of it where it has none: equal blocks are compiled once."""
    blocks = [layer for layers in model.modules() if isinstance(layers, nn.ModuleList) for layer in layers]
    for part in blocks or [model]:
        part.compile(backend=backend)


def _open_checkpoints(config: TrainConfig, group: Group) -> Checkpoints:
    """The run's checkpoints, without leftovers; refused if they are not to be resumed."""
    store = open_store(config.checkpoint_url, config.checkpoint.storage_options)
    checkpoints = Checkpoints(store, keep=config.checkpoint.keep, keep_best=config.checkpoint.keep_best, group=group)
    latest = checkpoints.latest()
    if latest is not None and not config.checkpoint.resume:
        raise ValueError(
            f"{store.url} holds a checkpoint of step {latest}; set checkpoint.resume=true to continue, "
            "or choose another folder"
        )
    checkpoints.clean()
    return checkpoints


def _prepare_folder(config: TrainConfig, resumed_from: int | None) -> None:
    """Write the configuration down, and drop what the steps to come will say again."""
    config.folder.mkdir(parents=True, exist_ok=True)
    _write_json(config.folder / "config.json", public_values(config))
    forget_after(config.folder / "metrics.jsonl", resumed_from or 0)
    for stale in config.folder.glob("account-rank*.json"):
        stale.unlink()


def _open_log(config: TrainConfig, console: Console) -> StepLog:
    return StepLog(
        config.folder / "metrics.jsonl",
        console=console,
        every_steps=config.log_every_steps,
        num_steps=config.optimizer.num_steps,
    )


def _headline(
    recipe: Recipe,
    num_parameters: int,
    topology: Topology,
    device: torch.device,
    resumed_from: int | None,
) -> str:
    start = "from the start" if resumed_from is None else f"from the checkpoint of step {resumed_from}"
    return (
        f"training {num_parameters / 1e6:.1f} M parameters in {recipe.precision.name} on {topology.world_size} x "
        f"{device.type} (torch {torch.__version__}) {start}"
    )


def _sharing_line(parallel: ParallelConfig, layout: Layout, shapes: list[tuple[int, ...]]) -> str:
    megabytes = wire_bytes(shapes, layout, parallel.sharing()) / 1e6
    return (
        f"{parallel.data}: {layout.replicate} copies, each on {layout.shard} x {layout.tensor} ranks; a rank sends "
        f"{megabytes:,.1f} MB of weights and gradients per update"
    )


def _farewell(summary: Summary, config: TrainConfig) -> str:
    loss = "none" if summary.loss is None else f"{summary.loss:.4f}"
    if summary.stopped_by is None:
        return f"finished at step {summary.step}, loss {loss}, in {summary.seconds:.1f} s"
    return (
        f"stopped by {summary.stopped_by} after step {summary.step} of {summary.num_steps}, loss {loss}"
        f"; its checkpoint is in {config.checkpoint_url}, the same command goes on from there"
    )


def _name(stop: StopRequest) -> str:
    return "another rank" if stop.signal is None else stop.signal.name


def _write_json(path: Path, values: dict[str, Any]) -> None:  # Any: nested JSON values
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(values, indent=2) + "\n")
    partial.replace(path)

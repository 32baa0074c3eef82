"""One typed configuration for a run: read from TOML, YAML or JSON, overridden by the same dotted names.

Values are checked here once; nothing below reads a settings file, an argument or the environment.
"""

import difflib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from training.models.gpt import GPTConfig
from training.parallel import Compression, Layout, Method, Sharing, decide_layout
from training.precision import PrecisionName
from training.schedule import Decay

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class DataConfig(_Section):
    """Which dataset, and how this rank reads it."""

    url: str
    """Dataset folder on any fsspec store."""

    batch_size: PositiveInt = 8
    """Samples per rank and micro-batch. 8 rows of 2,048 tokens fit a laptop's memory."""

    shuffle: bool = True
    """Whether rows are mixed, anew in each epoch; if not, they come as they were written."""

    seed: NonNegativeInt = 0
    """Seed of the order; the weights have their own."""

    version: PositiveInt | None = None
    """Version of the dataset; None pins the newest one at the start."""

    cache_dir: Literal["default", "none"] | Path = Field(default="default", union_mode="left_to_right")
    """Folder of the block cache; "none" for no cache, "default" for ~/.cache/dataplane (local data: no cache)."""

    cache_bytes: PositiveInt | None = None
    """The most that the cache folder holds; None for half of the free disk."""

    memory_bytes: PositiveInt | None = None
    """The most that blocks in memory take; None for what the order needs and half as much again."""

    storage_options: dict[str, Any] | None = None  # Any: handed to fsspec as they are
    """The store's own: endpoint, access_key_id, region, ..."""

    def loader_options(self) -> dict[str, Any]:  # Any: StreamingLoader's arguments, but for the URL
        """What to hand to a loader; what is left out keeps the loader's own default."""
        options = self.model_dump(exclude={"url", "cache_dir"}, exclude_none=True)
        if self.cache_dir != "default":
            options["cache_dir"] = None if self.cache_dir == "none" else self.cache_dir
        return options


class ModelConfig(_Section):
    """The included GPT. By default 3.2 M parameters beside the embedding, which a CPU can train."""

    vocab_size: PositiveInt | None = None
    """None takes the dataset's own, from its metadata."""

    context: PositiveInt | None = None
    """Longest row in tokens; None takes the width of the dataset's tokens column."""

    num_layers: PositiveInt = 4
    """Blocks of attention and MLP, one above the other."""

    num_heads: PositiveInt = 4
    """Attention heads; they share the width."""

    num_kv_heads: NonNegativeInt = 0
    """Heads of keys and values, each shared by several heads of queries; 0 for as many as heads."""

    recompute: bool = False
    """Whether blocks are computed again in the backward pass instead of kept: more work, far less memory."""

    width: PositiveInt = 256
    """Numbers per position."""

    mask_documents: bool = False
    """Whether packed documents may not attend to each other; a plain causal kernel is faster."""

    def gpt(self, *, vocab_size: int | None, context: int | None) -> GPTConfig:
        """The model's configuration, with what was left out taken from the dataset.

        Raises:
            ValueError: a value is in neither, or the dataset's tokens do not fit the model.
        """
        return GPTConfig(
            vocab_size=_at_least("vocab_size", self.vocab_size, vocab_size),
            context=_at_least("context", self.context, context),
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            width=self.width,
            recompute=self.recompute,
        )


class OptimizerConfig(_Section):
    """How the weights follow the gradient. Defaults are GPT-3's (Brown et al. 2020) unless noted."""

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    """adam adds the weight decay to the gradient, adamw takes it from the weights; sgd has momentum."""

    lr: PositiveFloat = 6e-4
    """The highest learning rate, after warm-up."""

    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay rates of the running means of the gradient and of its square, for adam and adamw."""

    momentum: Fraction = 0.9
    """Decay rate of the running sum of gradients, for sgd."""

    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Applied to matrices and embeddings only."""

    num_steps: PositiveInt = 1_000  # a few minutes of the default model on a laptop
    """Updates in the whole run, those before a resume included."""

    warmup_steps: NonNegativeInt = 20  # 2 % of num_steps
    """Updates in which the learning rate rises from nothing to `lr`."""

    schedule: Decay = "cosine"
    """After warm-up: cosine or linear to the end of the run, step every `step_every` updates, plateau when the loss
    stops falling, or constant."""

    min_lr_ratio: Fraction = 0.1
    """The lowest learning rate of cosine, linear and plateau, as a part of `lr`."""

    step_every: PositiveInt = 100
    """Updates between two drops of the schedule `step`; updates whose mean loss the schedule `plateau` looks at."""

    step_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """What is left of the learning rate after a drop of `step` or `plateau`."""

    patience: PositiveInt = 3
    """Looks without a lower loss after which `plateau` drops."""

    clip_norm: PositiveFloat | None = 1.0
    """Largest global gradient norm; None only measures it."""

    clip_value: PositiveFloat | None = None
    """Largest size of each number of a gradient, after `clip_norm`; None for any."""

    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay rate of a running mean of the weights, which evaluations then use; None for none."""

    accumulation: PositiveInt = 1
    """Micro-batches per update."""


class CheckpointConfig(_Section):
    """When checkpoints are written and how many stay."""

    url: str | None = None
    """Folder for them on any store; None for `checkpoints` in the run's folder. All ranks must reach it."""

    storage_options: dict[str, Any] | None = None  # Any: handed to the store as they are
    """The store's own, as those of the data."""

    every_steps: PositiveInt = 100  # a tenth of the default run is the most that a kill can lose
    """Updates between two checkpoints; one more is written at the end."""

    keep: PositiveInt = 2  # one more than needed, in case the last one captured a diverging model
    """How many of the newest stay."""

    keep_best: NonNegativeInt = 0
    """How many more stay, of those with the lowest loss."""

    resume: bool = True
    """Whether to continue from the newest checkpoint; if not, a folder that has one is refused."""


class ParallelConfig(_Section):
    """How several ranks share the model and the samples."""

    data: Method = "ddp"
    """Among ranks with different samples: ddp copies the model and averages gradients, fsdp divides it, local_sgd
    copies it and averages weights now and then."""

    shard: PositiveInt | None = None
    """Under fsdp, ranks that divide one copy of the model (hybrid sharding); None for all of them."""

    tensor: PositiveInt = 1
    """Ranks that divide each layer of the model, and receive the same samples."""

    sync_every: PositiveInt = 8  # Lin et al. 2020 see no loss of accuracy up to 8 or 16
    """Under local_sgd, updates between two averages; checkpoints are multiples of it."""

    compress: Compression = "none"
    """Of gradients on the wire: bf16, fp16, or powersgd (low rank, ddp only, begins anew at a resume)."""

    powersgd_rank: PositiveInt = 4
    """Rank of the approximation of each gradient matrix."""

    static_graph: bool = False
    """Whether to tell ddp that each step uses the same weights, which saves it the search."""

    def layout(self, world_size: int) -> Layout:
        """The grid that so many ranks form. Raises ValueError if they form none."""
        return decide_layout(world_size, method=self.data, shard=self.shard, tensor=self.tensor)

    def sharing(self) -> Sharing:
        return Sharing(
            method=self.data,
            compression=self.compress,
            powersgd_rank=self.powersgd_rank,
            static_graph=self.static_graph,
            sync_every=self.sync_every,
        )

    @model_validator(mode="after")
    def _fits_together(self) -> "ParallelConfig":
        allowed = {"ddp": get_args(Compression), "fsdp": ("none", "bf16", "fp16"), "local_sgd": ("none",)}[self.data]
        if self.compress not in allowed:
            raise ValueError(
                f"parallel.compress={self.compress} does not go with parallel.data={self.data}; "
                f"use {' or '.join(allowed)}"
            )
        return self


class TrainConfig(_Section):
    """Everything that a run is made of."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    parallel: ParallelConfig = ParallelConfig()
    precision: PrecisionName = "auto"
    """Of the matrix products; "auto" is bf16 where the hardware has it, else fp32. fp16 scales the loss."""

    compile: str = "none"
    """Backend of torch.compile, such as inductor; "none" runs the model as it is written."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; "auto" takes this rank's GPU if there is one."""

    seed: NonNegativeInt = 0
    """Seed of the weights and of the generators."""

    folder: Path = Path("run")
    """The run's folder: config.json, metrics.jsonl, account-rank<r>.json, summary.json."""

    log_every_steps: PositiveInt = 10
    """Steps between two lines for people; metrics.jsonl has every step."""

    threads: PositiveInt | None = None
    """Compute threads per rank; None shares the machine's cores among its ranks."""

    timeout_seconds: PositiveFloat = 300.0  # longer than a slow checkpoint, shorter than a coffee
    """How long a rank may make no progress, or wait for the others, before it is ended."""

    @model_validator(mode="after")
    def _checks_across_sections(self) -> "TrainConfig":
        if self.optimizer.warmup_steps > self.optimizer.num_steps:
            raise ValueError(
                f"optimizer.warmup_steps={self.optimizer.warmup_steps} exceeds "
                f"optimizer.num_steps={self.optimizer.num_steps}; the run would never warm up"
            )
        if self.parallel.data == "local_sgd":
            if self.checkpoint.every_steps % self.parallel.sync_every:
                raise ValueError(
                    f"checkpoint.every_steps={self.checkpoint.every_steps} must be a multiple of "
                    f"parallel.sync_every={self.parallel.sync_every}: between two averages the ranks differ"
                )
            if self.precision == "fp16":
                raise ValueError("parallel.data=local_sgd needs precision bf16 or fp32: ranks would skip updates apart")
        return self

    @property
    def checkpoint_url(self) -> str:
        return self.checkpoint.url or str(self.folder / "checkpoints")


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> TrainConfig:
    """The configuration in a TOML, YAML or JSON file, after overrides like `optimizer.lr=3e-4`.

    Raises:
        ValueError: a file that does not parse, an unknown name (the message gives the nearest) or a
            value that is not allowed; one line per mistake.
        OSError: the file cannot be read.
    """
    values = _read(path) if path is not None else {}
    for override in overrides:
        _set(values, override)
    return parse_config(values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One name of the configuration."""

    name: str
    """Dotted, as on the command line."""

    default: str
    """As it is typed on a command line; empty for the one without, `data.url`."""

    meaning: str


def settings(section: type[BaseModel] | None = None, prefix: str = "") -> Iterator[Setting]:
    """Every setting there is, in the order of the configuration."""
    for name, info in (section or TrainConfig).model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from settings(info.annotation, f"{prefix}{name}.")
            continue
        yield Setting(
            name=prefix + name,
            default="" if info.is_required() else _typed(info.default),
            meaning=" ".join((info.description or "").split()),
        )


def describe_config(config: TrainConfig) -> list[str]:
    """The whole configuration, a line for each section; of storage options, which may be secret, only the names."""
    values = public_values(config)
    sections = {name: value for name, value in values.items() if isinstance(value, dict)}
    rest = {name: value for name, value in values.items() if name not in sections}
    return [
        f"{name}: " + ", ".join(f"{key}={_typed(value)}" for key, value in section.items())
        for name, section in [*sections.items(), ("run", rest)]
    ]


def public_values(config: TrainConfig) -> dict[str, Any]:  # Any: nested JSON values
    """The configuration; of the storage options, which may be credentials, only the names."""
    values = config.model_dump(mode="json")
    for section in ("data", "checkpoint"):
        options = values[section]["storage_options"] or {}
        values[section]["storage_options"] = dict.fromkeys(options, "not recorded") or None
    return values


def _typed(value: Any) -> str:  # Any: JSON values
    if isinstance(value, str | Path):
        return str(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def parse_config(values: Mapping[str, Any]) -> TrainConfig:  # Any: whatever a file holds
    """The configuration that nested mappings of names describe.

    Raises:
        ValueError: as `load_config`.
    """
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        lines = [_describe(mistake) for mistake in error.errors()]
        raise ValueError("\n".join(lines)) from None


def _read(path: Path) -> dict[str, Any]:  # Any: whatever a file holds
    parsers: dict[str, Callable[[str], Any]] = {".json": json.loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load}
    parse = parsers.get(path.suffix, tomllib.loads)
    try:
        values = parse(path.read_text())
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} does not parse: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold an object of settings, got {type(values).__name__}")
    return values


def _set(values: dict[str, Any], override: str) -> None:  # Any: whatever a file holds
    name, equals, text = override.partition("=")
    if not equals:
        raise ValueError(f"an override reads name=value, got {override!r}")
    *sections, last = name.strip().split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ValueError(f"{name} is not a setting: {section} has no names below it")
    try:
        values[last] = json.loads(text)
    except ValueError:
        values[last] = text  # a plain word needs no quotes on a command line


def _describe(mistake: Mapping[str, Any]) -> str:  # Any: pydantic's error details
    name = ".".join(str(part) for part in mistake["loc"])
    if mistake["type"] == "extra_forbidden":
        nearest = _nearest(name)
        hint = f"; did you mean {nearest}?" if nearest else ""
        return f"unknown setting {name}{hint}"
    if mistake["type"] == "missing":
        name = "data.url" if name == "data" else name
        return f"setting {name} is missing; give it in a file (--config) or as --set {name}=VALUE"
    if not name:  # a check across sections speaks for itself
        return str(mistake["msg"]).removeprefix("Value error, ")
    message = mistake["msg"][0].lower() + mistake["msg"][1:]
    return f"setting {name}={mistake['input']!r} is not allowed: {message}"


def _nearest(name: str) -> str | None:
    names = [setting.name for setting in settings()]
    names += sorted({known.partition(".")[0] for known in names if "." in known})
    close = difflib.get_close_matches(name, names, n=1)
    last = name.rpartition(".")[2]
    same_last = [known for known in names if known.rpartition(".")[2] == last]
    return next(iter([*same_last, *close]), None)


def _at_least(name: str, configured: int | None, dataset: int | None) -> int:
    value = configured if configured is not None else dataset
    if value is None:
        raise ValueError(f"the dataset does not say its {name}; set model.{name}")
    if dataset is not None and value < dataset:
        raise ValueError(f"model.{name}={value} is below the dataset's {dataset}; leave it out")
    return value

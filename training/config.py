"""One typed configuration for a run: read from TOML or JSON, overridden by the same dotted names.

Values are checked here once; nothing below reads a settings file, an argument or the environment.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from training.model import GPTConfig

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(_Section):
    """Which dataset, and how this rank reads it."""

    url: str
    """Dataset folder on any fsspec store."""

    batch_size: PositiveInt = 8
    """Samples per rank and micro-batch. 8 rows of 2,048 tokens fit a laptop's memory."""

    shuffle: bool = True
    seed: NonNegativeInt = 0
    """Seed of the order; the weights have their own."""

    version: PositiveInt | None = None
    """Version of the dataset; None pins the newest one at the start."""

    cache_dir: Path | None = None
    """None leaves this and the next two to the loader's own defaults."""

    cache_bytes: PositiveInt | None = None
    memory_bytes: PositiveInt | None = None
    storage_options: dict[str, Any] | None = None  # Any: handed to fsspec as they are


class ModelConfig(_Section):
    """The included GPT. By default 3.2 M parameters beside the embedding, which a CPU can train."""

    vocab_size: PositiveInt | None = None
    """None takes the dataset's own, from its metadata."""

    context: PositiveInt | None = None
    """Longest row in tokens; None takes the width of the dataset's tokens column."""

    num_layers: PositiveInt = 4
    num_heads: PositiveInt = 4
    width: PositiveInt = 256
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
            width=self.width,
        )


class OptimizerConfig(_Section):
    """AdamW with warm-up and cosine decay. Defaults are GPT-3's (Brown et al. 2020) unless noted."""

    lr: PositiveFloat = 6e-4
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Applied to matrices and embeddings only."""

    num_steps: PositiveInt = 1_000  # a few minutes of the default model on a laptop
    """Updates in the whole run, those before a resume included."""

    warmup_steps: NonNegativeInt = 20  # 2 % of num_steps
    min_lr_ratio: Fraction = 0.1
    clip_norm: PositiveFloat | None = 1.0
    """Largest global gradient norm; None only measures it."""

    accumulation: PositiveInt = 1
    """Micro-batches per update."""


class CheckpointConfig(_Section):
    """When checkpoints are written and how many stay."""

    folder: Path | None = None
    """None puts them into `checkpoints` of the run's folder. All ranks must reach it."""

    every_steps: PositiveInt = 100  # a tenth of the default run is the most that a kill can lose
    keep: PositiveInt = 2  # one more than needed, in case the last one captured a diverging model
    resume: bool = True
    """Whether to continue from the newest checkpoint; if not, a folder that has one is refused."""


class TrainConfig(_Section):
    """Everything that a run is made of."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: NonNegativeInt = 0
    """Seed of the weights and of the generators."""

    folder: Path = Path("run")
    """The run's folder: config.json, metrics.jsonl, account-rank<r>.json, summary.json."""

    log_every_steps: PositiveInt = 10
    """Steps between two lines for people; metrics.jsonl has every step."""

    threads: PositiveInt | None = None
    """Compute threads per rank; None shares the machine's cores among its ranks."""

    timeout_seconds: PositiveFloat = 300.0  # longer than a slow checkpoint, shorter than a coffee
    """How long a rank waits for the others before it gives up."""

    @model_validator(mode="after")
    def _checks_across_sections(self) -> "TrainConfig":
        if self.optimizer.warmup_steps > self.optimizer.num_steps:
            raise ValueError(
                f"optimizer.warmup_steps={self.optimizer.warmup_steps} exceeds "
                f"optimizer.num_steps={self.optimizer.num_steps}; the run would never warm up"
            )
        return self

    @property
    def checkpoint_folder(self) -> Path:
        return self.checkpoint.folder or self.folder / "checkpoints"


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> TrainConfig:
    """The configuration in a TOML or JSON file, after overrides like `optimizer.lr=3e-4`.

    Raises:
        ValueError: a file that does not parse, an unknown name (the message gives the nearest) or a
            value that is not allowed; one line per mistake.
        OSError: the file cannot be read.
    """
    values = _read(path) if path is not None else {}
    for override in overrides:
        _set(values, override)
    return parse_config(values)


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
    try:
        values = (json if path.suffix == ".json" else tomllib).loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} does not parse: {error}") from None
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
        return f"setting {name} is missing; give it in the file or as {name}=value"
    if not name:  # a check across sections speaks for itself
        return str(mistake["msg"]).removeprefix("Value error, ")
    message = mistake["msg"][0].lower() + mistake["msg"][1:]
    return f"setting {name}={mistake['input']!r} is not allowed: {message}"


def _nearest(name: str) -> str | None:
    names = list(_names(TrainConfig))
    close = difflib.get_close_matches(name, names, n=1)
    last = name.rpartition(".")[2]
    same_last = [known for known in names if known.rpartition(".")[2] == last]
    return next(iter([*same_last, *close]), None)


def _names(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, info in section.model_fields.items():
        yield prefix + name
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from _names(info.annotation, f"{prefix}{name}.")


def _at_least(name: str, configured: int | None, dataset: int | None) -> int:
    value = configured if configured is not None else dataset
    if value is None:
        raise ValueError(f"the dataset does not say its {name}; set model.{name}")
    if dataset is not None and value < dataset:
        raise ValueError(f"model.{name}={value} is below the dataset's {dataset}; leave it out")
    return value

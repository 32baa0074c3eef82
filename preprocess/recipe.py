"""What to make of the inputs: the choices that decide, with the inputs, every byte of the dataset."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import get_args

from dataplane.catalog import Encoding
from preprocess.operations import AnyOperation
from preprocess.packing import Mode
from preprocess.shuffle import Shuffle
from preprocess.sources import Reading
from preprocess.split import Split

# A block of a megabyte is a ranged read that an object store serves at near full speed, and shuffles finely.
BLOCK_BYTES = 1 << 20
# String columns of a block count bytes in 31 bits.
_MAX_BLOCK_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """Documents become tokens, and tokens rows of equal length."""

    tokenizer: str
    """URL or path of a `tokenizers` JSON file, of tiktoken ranks (.tiktoken) or of a sentencepiece model (.model)."""
    sequence_length: int = 2048
    eos_token: str | None = None
    """Appended to each document."""
    mode: Mode = "concatenate"
    """`concatenate` joins all documents and cuts rows off; `best-fit` cuts no document that fits in a row, and pads."""
    split_pattern: str | None = None
    """How ranks split text before they merge it; known for the files of tiktoken itself by their names."""
    special_tokens: Mapping[str, int] | None = None
    """Special tokens of ranks."""

    def __post_init__(self) -> None:
        if self.sequence_length < 1:
            raise ValueError(f"sequence_length must be at least 1, got {self.sequence_length}")
        if self.sequence_length > _MAX_BLOCK_BYTES // 4:
            raise ValueError(f"sequence_length must be at most {_MAX_BLOCK_BYTES // 4}, got {self.sequence_length}")
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode must be {' or '.join(get_args(Mode))}, got {self.mode!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Reads, changes the rows, perhaps tokenises and packs, splits, shuffles, and encodes."""

    reading: Reading = field(default_factory=Reading)
    operations: tuple[AnyOperation, ...] = ()
    """What happens to the rows, in this order, before they are packed."""
    packing: Packing | None = None
    """None keeps the rows as they are."""
    columns: tuple[str, ...] | None = None
    """Columns of rows to keep, in this order; None keeps all. Not for packing, which reads the text column."""
    block_bytes: int = BLOCK_BYTES
    """Bytes of a block's rows in memory; a larger row is a block of its own."""
    encoding: Encoding = field(default_factory=Encoding)
    split: Split | None = None
    """Parts of the rows that become datasets of their own; None writes one."""
    shuffle: Shuffle | None = None
    """None keeps the order of the inputs."""
    task_bytes: int | None = None
    """Bytes of input that are done and kept as a whole; None shares the inputs out in 64 tasks of 4 to 256 MiB."""

    def __post_init__(self) -> None:
        if self.task_bytes is not None and self.task_bytes < 1:
            raise ValueError(f"task_bytes must be at least 1, got {self.task_bytes}")
        if not 1 <= self.block_bytes <= _MAX_BLOCK_BYTES:
            raise ValueError(f"block_bytes must be in [1, {_MAX_BLOCK_BYTES}], got {self.block_bytes}")
        if self.encoding.shard_bytes < 1:
            raise ValueError(f"shard_bytes must be at least 1, got {self.encoding.shard_bytes}")
        if self.encoding.codec not in ("zstd", "lz4", "none"):
            raise ValueError(f"codec must be zstd, lz4 or none, got {self.encoding.codec!r}")
        if not 1 <= self.encoding.level <= 22:
            raise ValueError(f"level of zstd must be in [1, 22], got {self.encoding.level}")
        if self.columns is not None and self.packing is not None:
            raise ValueError("columns are chosen for rows; packing reads text_column, leave columns out")
        if self.columns is not None and (not self.columns or len(set(self.columns)) < len(self.columns)):
            raise ValueError(f"columns must name at least one column and each once, got {self.columns}")

    def to_json(self) -> str:
        """Every setting, in one spelling: equal recipes have equal texts."""
        values = {
            "reading": asdict(self.reading),
            "operations": [operation.to_dict() for operation in self.operations],
            "packing": None if self.packing is None else asdict(self.packing),
            "columns": self.columns,
            "block_bytes": self.block_bytes,
            "encoding": asdict(self.encoding),
            # A split's parts have an order: it decides which rows each gets.
            "split": None if self.split is None else [self.split.key, *self.split.fractions.items()],
            "shuffle": None if self.shuffle is None else self.shuffle.model_dump(),
            "task_bytes": self.task_bytes,
        }
        return json.dumps(values, sort_keys=True, ensure_ascii=False)

    def depends_on(self) -> dict[str, str]:
        """Digests of what decides the rows beside the settings, such as the text of users' functions."""
        return {name: digest for operation in self.operations for name, digest in operation.depends_on().items()}

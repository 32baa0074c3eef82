"""A GPT in one file: rotary positions, RMSNorm, SwiGLU, grouped-query attention, a tied head, tensor parallelism.

Shapes: b rows, t positions, w width, h heads, g heads of keys and values, d = w / h, v vocabulary. Under tensor
parallelism h and g are this rank's.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

ROTARY_BASE = 10_000.0  # Su et al. 2021; holds for contexts of some thousand tokens
INIT_STD = 0.02  # GPT-2
MLP_MULTIPLE = 8  # widths in multiples of 8 use the tensor cores


@dataclass(frozen=True, kw_only=True, slots=True)
class GPTConfig:
    """The size of a GPT."""

    vocab_size: int
    context: int
    """Longest row in tokens."""

    num_layers: int
    num_heads: int
    width: int
    num_kv_heads: int = 0
    """Heads of keys and values, each shared by num_heads / num_kv_heads heads of queries; 0 for as many as heads."""

    recompute: bool = False
    """Whether blocks are computed again in the backward pass instead of kept: a third more work, far less memory."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "num_layers", "num_heads", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % (2 * self.num_heads):
            raise ValueError(
                f"width must be a multiple of 2 * num_heads, got width={self.width} and num_heads={self.num_heads}"
            )
        if self.num_kv_heads < 0 or self.num_heads % self.kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, got num_heads={self.num_heads} and "
                f"num_kv_heads={self.num_kv_heads}"
            )

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads


class GPT(nn.Module):
    """Maps token ids to the logits of the token that follows each of them."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.head.weight = self.embedding.weight
        self._initialise()

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits [b, t, v] for ids int64 [b, t].

        `mask` is bool [b, 1, t, t], true where a position may look; None is plain causal.

        Raises:
            ValueError: rows are longer than the context.
        """
        length = tokens.shape[1]
        if length > self.config.context:
            raise ValueError(f"rows of {length} tokens exceed the model's context of {self.config.context}")
        rotary = _rotary_table(length, self.config.head_width, device=tokens.device)
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.config.recompute and self.training:
                x = checkpoint(block, x, rotary, mask, use_reentrant=False)
            else:
                x = block(x, rotary, mask)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def divide(self, mesh: DeviceMesh) -> None:
        """Tensor parallelism: each rank of the mesh keeps its part of the heads, of the MLP and of the vocabulary.

        Raises:
            ValueError: one of them does not divide into as many equal parts.
        """
        config = self.config
        for name, value in (
            ("num_heads", config.num_heads),
            ("num_kv_heads", config.kv_heads),
            ("vocab_size", config.vocab_size),
            ("the MLP's width", _mlp_width(config.width)),
        ):
            if value % mesh.size():
                raise ValueError(f"{name} must be a multiple of parallel.tensor={mesh.size()}, got {value}")
        blocks: dict[str, ParallelStyle] = {}
        for number in range(config.num_layers):
            block = f"blocks.{number}"
            blocks |= {f"{block}.attention_norm": _Copied(), f"{block}.mlp_norm": _Copied()}
            blocks |= {f"{block}.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
            blocks |= {f"{block}.mlp.{name}": ColwiseParallel() for name in ("gate", "value")}
            blocks |= {f"{block}.attention.output": RowwiseParallel(), f"{block}.mlp.output": RowwiseParallel()}
        ends: dict[str, ParallelStyle] = {
            "embedding": RowwiseParallel(input_layouts=Replicate()),
            "norm": _Copied(),
            "head": ColwiseParallel(output_layouts=Replicate()),
        }
        parallelize_module(self, mesh, {**ends, **blocks})
        self.head.weight = self.embedding.weight  # each was divided, in the same way

    def _initialise(self) -> None:
        residual_std = INIT_STD / math.sqrt(2 * self.config.num_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                std = residual_std if name.endswith("output.weight") else INIT_STD
                nn.init.normal_(parameter, std=std)


class _Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = _Attention(config)
        self.mlp_norm = nn.RMSNorm(config.width)
        self.mlp = _MLP(config.width)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary, mask)
        return x + self.mlp(self.mlp_norm(x))


class _Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.is_grouped = config.kv_heads < config.num_heads
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.kv_heads * config.head_width, bias=False)
        self.value = nn.Linear(config.width, config.kv_heads * config.head_width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(
            _rotate(query, rotary),
            _rotate(key, rotary),
            value,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=self.is_grouped,
        )
        result: Tensor = self.output(y.transpose(1, 2).flatten(2))
        return result

    def _heads(self, x: Tensor) -> Tensor:
        """[b, t, h * d] -> [b, h, t, d], or with g for h."""
        return x.unflatten(2, (-1, self.head_width)).transpose(1, 2)


class _MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = _mlp_width(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.value = nn.Linear(width, hidden, bias=False)
        self.output = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.output(F.silu(self.gate(x)) * self.value(x))
        return result


class _Copied(ParallelStyle):
    """A layer that each rank of a mesh computes whole: its weights become DTensors like all others."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(_: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:  # Any: as torch declares them
            return tuple(DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in inputs)

        def leave(_: nn.Module, output: Any, mesh: DeviceMesh) -> Any:  # Any: as torch declares them
            return output.to_local()

        return distribute_module(module, device_mesh, None, enter, leave)


def _mlp_width(width: int) -> int:
    """Two thirds of 4 * width: with its third matrix, SwiGLU is then as large as a plain MLP."""
    return math.ceil(8 * width / 3 / MLP_MULTIPLE) * MLP_MULTIPLE


def document_mask(values: Tensor, offsets: Tensor, *, length: int) -> Tensor:
    """Which positions may look at which: earlier ones of the same document. Bool [b, 1, t, t].

    Row i's documents start at its places `values[offsets[i]:offsets[i + 1]]`; places at or past
    `length` are ignored. `offsets` is int64 [b + 1].
    """
    num_rows = offsets.numel() - 1
    rows = torch.repeat_interleave(torch.arange(num_rows, device=values.device), offsets.diff())
    inside = values < length
    starts = torch.zeros(num_rows, length, dtype=torch.int32, device=values.device)
    starts[rows[inside], values[inside].to(torch.int64)] = 1
    document = starts.cumsum(dim=1)
    same = document[:, :, None] == document[:, None, :]
    return same.tril().unsqueeze(1)


def next_token_loss(logits: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """Sum of the cross entropies over the counted positions, in nats: float32, no dimension.

    `logits` [b, t, v], `targets` int64 [b, t], `counted` bool [b, t].
    """
    ignored = -100
    return F.cross_entropy(
        logits.float().flatten(0, 1),
        targets.masked_fill(~counted, ignored).flatten(),
        ignore_index=ignored,
        reduction="sum",
    )


def _rotary_table(length: int, head_width: int, *, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [length, head_width / 2] each.

    Made anew in each pass: as buffers, DDP would send them around with every one.
    """
    places = torch.arange(length, device=device, dtype=torch.float32)
    exponents = torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width
    angles = places[:, None] * ROTARY_BASE**-exponents
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (table.to(x.dtype) for table in rotary)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)

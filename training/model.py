"""A GPT in one file: rotary positions, RMSNorm, SwiGLU, causal attention, a tied head.

Shapes: b rows, t positions, w width, h heads, d = w / h, v vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "num_layers", "num_heads", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % (2 * self.num_heads):
            raise ValueError(
                f"width must be a multiple of 2 * num_heads, got width={self.width} and num_heads={self.num_heads}"
            )


class GPT(nn.Module):
    """Maps token ids to the logits of the token that follows each of them."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.width)
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
        rotary = _rotary_table(length, self.config.width // self.config.num_heads, device=tokens.device)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, rotary, mask)
        return F.linear(self.norm(x), self.embedding.weight)

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
        self.num_heads = config.num_heads
        self.input = nn.Linear(config.width, 3 * config.width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        b, t, w = x.shape
        heads = self.input(x).view(b, t, 3, self.num_heads, w // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each [b, h, t, d]
        y = F.scaled_dot_product_attention(
            _rotate(query, rotary),
            _rotate(key, rotary),
            value,
            attn_mask=mask,
            is_causal=mask is None,
        )
        return self.output(y.transpose(1, 2).reshape(b, t, w))


class _MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        # Two thirds of 4 * width: with its third matrix, SwiGLU is then as large as a plain MLP.
        hidden = math.ceil(8 * width / 3 / MLP_MULTIPLE) * MLP_MULTIPLE
        self.input = nn.Linear(width, 2 * hidden, bias=False)
        self.output = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.input(x).chunk(2, dim=-1)
        return self.output(F.silu(gate) * value)


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

"""A loader without a dataset, and a configuration to train from it: what the trainer's tests run on."""

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import torch

from dataplane import Position, Topology
from training import TrainConfig, load_config

VOCAB_SIZE = 17
WIDTH = 12


class FakeBatch(dict):
    """Columns, and the position after them."""

    position: Position


class FakeLoader:
    """Endless rows of tokens with a pattern; which rows a rank gets follows from its position alone."""

    schema = pa.schema([("tokens", pa.list_(pa.int32(), WIDTH)), ("length", pa.int32())])
    metadata = {"vocab_size": str(VOCAB_SIZE)}
    metrics = SimpleNamespace(snapshot=dict)
    num_rows = 40

    def __init__(self, topology=None, *, batch_size=2, on_batch=lambda consumed: None):
        self.topology = topology or Topology()
        self.batch_size = batch_size
        self.consumed = 0
        self.on_batch = on_batch

    def __iter__(self):
        while True:
            self.on_batch(self.consumed)
            first = self.consumed + self.topology.rank * self.batch_size
            self.consumed += self.batch_size * self.topology.world_size
            batch = FakeBatch(rows(range(first, first + self.batch_size)))
            epoch, consumed = divmod(self.consumed, self.num_rows)
            batch.position = Position(epoch, consumed)
            yield batch

    def state_dict(self):
        return {"consumed": self.consumed}

    def load_state_dict(self, state):
        self.consumed = state["consumed"]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def rows(numbers):
    """Row n counts up from n in steps that depend on n; every third row ends early."""
    tokens = [[(n + place * (1 + n % 3)) % VOCAB_SIZE for place in range(WIDTH)] for n in numbers]
    lengths = [WIDTH if n % 3 else WIDTH // 2 for n in numbers]
    return {"tokens": torch.tensor(tokens, dtype=torch.int32), "length": torch.tensor(lengths, dtype=torch.int32)}


def small_settings(folder: Path, *overrides: str) -> list[str]:
    """A run of six updates of a model with some thousand parameters, as on a command line."""
    return [
        "data.url=memory://fake",
        "model.num_layers=1",
        "model.num_heads=2",
        "model.width=16",
        "optimizer.num_steps=6",
        "optimizer.warmup_steps=2",
        "optimizer.lr=0.01",
        "checkpoint.every_steps=2",
        "device=cpu",
        "precision=fp32",
        "timeout_seconds=40",
        "threads=1",
        f"folder={folder}",
        *overrides,
    ]


def small_config(folder: Path, *overrides: str) -> TrainConfig:
    """The same as a configuration."""
    return load_config(None, small_settings(folder, *overrides))


def open_fake(**settings):
    """What `run` opens instead of a dataset."""
    return lambda config, topology, columns: FakeLoader(topology, **settings)


def losses(folder: Path) -> dict[int, float]:
    """The loss of each step in a run's metrics."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines)}


class Crash(Exception):
    """Ends a run where a test wants it to end."""


def crash_at(sample):
    def on_batch(consumed):
        if consumed == sample:
            raise Crash

    return on_batch

"""A model of one weight, whose losses and gradients can be worked out by hand, on one rank or several."""

import math
import multiprocessing
from pathlib import Path

import torch
from torch import nn
from torch.multiprocessing import start_processes

from dataplane import Position, Topology
from dataplane.profile import StepAccount
from training import Precision, Trainer, Warmup
from training.ema import Ema
from training.group import Group, process_group
from training.loop import Recipe
from training.parallel import Sharing, share
from training.signals import StopRequest

CPU = torch.device("cpu")
SINGLE = Group(Topology(), CPU)
SHARING = Sharing()
FP32 = Precision(dtype=torch.float32, loss_scaling=False)
SCALED = Precision(dtype=torch.float32, loss_scaling=True)  # what fp16 does, where there is no fp16


class ToyBatch(dict):
    """Columns, and the position after them."""

    position = Position(0, 0)


def batch(value, count=1, overflow=False):
    """Sequences of `count` targets; each target has the loss weight * value, its gradient is value."""
    return ToyBatch(
        value=torch.tensor(value, dtype=torch.float32).reshape(-1, 1),
        count=torch.tensor(count).reshape(-1, 1),
        overflow=torch.tensor(overflow),
    )


class ToyLoader(list):
    """Batches in a list; it ends when they do."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class ToyObjective:
    """The mean over targets of weight * value."""

    columns = ["value", "count", "overflow"]

    def count(self, batch):
        return int(batch["count"].sum())

    def loss(self, model, batch):
        output = model(batch["value"])
        if batch["overflow"]:
            output.register_hook(lambda gradient: gradient * math.inf)
        return (output * batch["count"]).sum()


class FakeLog(list):
    """Keeps what the trainer would write."""

    write = list.append


def toy_trainer(
    group,
    batches,
    *,
    lr=1.0,
    num_steps=1,
    min_ratio=1.0,
    decay="cosine",
    accumulation=1,
    clip_norm=None,
    clip_value=None,
    ema_decay=None,
    precision=FP32,
    sharing=SHARING,
):
    """Plain gradient descent on the weight, from 1.0, with a learning rate that stays unless told otherwise."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    return Trainer(
        model=share(model, sharing, group.layout, CPU),
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        objective=ToyObjective(),
        loader=ToyLoader(batches),
        recipe=Recipe(
            schedule=Warmup(
                peak=lr,
                warmup_steps=0,
                num_steps=num_steps,
                min_ratio=min_ratio,
                decay=decay,
                step_every=20,
                step_factor=0.5,
            ),
            clip_value=clip_value,
            clip_norm=clip_norm,
            accumulation=accumulation,
            precision=precision,
            sync_every=sharing.sync_every if sharing.method == "local_sgd" else None,
        ),
        group=group,
        device=CPU,
        account=StepAccount(rank=group.rank),
        log=FakeLog(),
        ema=Ema(model, ema_decay) if ema_decay else None,
    )


def train(trainer, num_steps=10**6):
    """Train to the end of the data, without signals."""
    return trainer.train(num_steps=num_steps, stop=StopRequest())


def weight(trainer):
    """The toy's weight."""
    return next(trainer._model.parameters()).item()


def on_ranks(world_size, function, folder: Path, *arguments):
    """What `function(group, *arguments)` returns on each of `world_size` processes; plain values only."""
    if world_size == 1:
        return [function(SINGLE, *arguments)]
    return in_processes(world_size, _with_group, folder, function, *arguments)


def in_processes(world_size, function, folder: Path, *arguments):
    """What `function(topology, rendezvous, *arguments)` returns in each process; plain values only."""
    # Forked from one process that has torch imported already: that import costs more than most tests.
    multiprocessing.set_forkserver_preload(["torch._dynamo", "training.runs"])
    start_processes(_call, (world_size, function, folder, arguments), nprocs=world_size, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world_size)]


def _call(rank, world_size, function, folder, arguments):
    torch.set_num_threads(1)
    topology = Topology(rank=rank, world_size=world_size)
    torch.save(function(topology, f"file://{folder}/rendezvous", *arguments), folder / f"{rank}.pt")


def _with_group(topology, rendezvous, function, *arguments):
    with process_group(topology, CPU, rendezvous=rendezvous, timeout_seconds=50) as group:
        return function(group, *arguments)

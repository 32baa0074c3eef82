"""What is decided before anything runs: precision, schedule, devices, threads, groups."""

import pyarrow as pa
import pytest
import torch
from torch import nn

from training import Plateau, Precision, Warmup, load_config
from training.checkpoint import decide_kept
from training.generators import generator_state, restore_generators, seed_generators
from training.optimizer import build_optimizer, decay_groups
from training.precision import decide_precision
from training.runs import decide_device, row_width, threads_per_rank


@pytest.mark.parametrize(
    ("name", "device_type", "bf16_in_hardware", "decided"),
    [
        ("fp32", "cpu", True, Precision(dtype=torch.float32, loss_scaling=False)),
        ("tf32", "cuda", False, Precision(dtype=torch.float32, loss_scaling=False, tf32=True)),
        ("bf16", "cpu", False, Precision(dtype=torch.bfloat16, loss_scaling=False)),
        ("bf16", "cuda", True, Precision(dtype=torch.bfloat16, loss_scaling=False)),
        ("fp16", "cuda", False, Precision(dtype=torch.float16, loss_scaling=True)),
        ("fp16", "cpu", False, Precision(dtype=torch.float16, loss_scaling=True)),
        ("auto", "cpu", True, Precision(dtype=torch.bfloat16, loss_scaling=False)),
        ("auto", "cuda", False, Precision(dtype=torch.float32, loss_scaling=False)),
    ],
)
def test_the_precision_follows_from_the_setting_and_the_hardware(name, device_type, bf16_in_hardware, decided):
    precision = decide_precision(name, device_type=device_type, bf16_in_hardware=bf16_in_hardware)

    assert precision == decided
    assert precision.name == (("fp32", "bf16")[bf16_in_hardware] if name == "auto" else name)


def test_a_device_that_cannot_is_refused():
    with pytest.raises(ValueError, match="'tf32' needs a CUDA device, this one is cpu"):
        decide_precision("tf32", device_type="cpu", bf16_in_hardware=True)
    with pytest.raises(ValueError, match="this cuda device has no bf16"):
        decide_precision("bf16", device_type="cuda", bf16_in_hardware=False)


@pytest.mark.parametrize(
    ("metrics", "keep", "keep_best", "kept"),
    [
        ({1: 5.0, 2: 3.0, 3: 4.0, 4: 6.0}, 1, 0, {4}),
        ({1: 5.0, 2: 3.0, 3: 4.0, 4: 6.0}, 1, 1, {2, 4}),
        ({1: 5.0, 2: 3.0, 3: 4.0, 4: 6.0}, 2, 2, {2, 3, 4}),
        ({1: 1.0, 2: 1.0}, 1, 1, {2}),
        ({1: None, 2: 9.0, 3: None}, 1, 1, {2, 3}),
        ({}, 1, 1, set()),
    ],
)
def test_the_newest_checkpoints_stay_and_the_best(metrics, keep, keep_best, kept):
    assert decide_kept(metrics, keep=keep, keep_best=keep_best) == kept


@pytest.mark.parametrize("decay", ["cosine", "linear"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 10])
def test_the_schedule_warms_up_to_its_peak_and_ends_at_its_floor(warmup_steps, decay):
    schedule = Warmup(peak=2.0, warmup_steps=warmup_steps, num_steps=100, min_ratio=0.1, decay=decay)
    lrs = [schedule.lr(step) for step in range(100)]

    assert lrs[:warmup_steps] == sorted(lrs[:warmup_steps])
    assert lrs[warmup_steps:] == sorted(lrs[warmup_steps:], reverse=True)
    assert max(lrs) == lrs[warmup_steps] == 2.0
    assert lrs[-1] == schedule.lr(1000) == pytest.approx(0.2)


def test_a_schedule_of_steps_drops_at_each():
    schedule = Warmup(peak=8.0, warmup_steps=0, num_steps=60, decay="step", step_every=20, step_factor=0.5)

    assert [schedule.lr(step) for step in range(60)] == [8.0] * 20 + [4.0] * 20 + [2.0] * 20
    assert Warmup(peak=8.0, warmup_steps=0, num_steps=9, decay="constant").lr(10**6) == 8.0


def test_a_plateau_drops_the_rate_and_falling_losses_do_not():
    schedule = Plateau(peak=8.0, warmup_steps=2, window=2, patience=2, factor=0.5, min_ratio=0.2)
    rates = [schedule.lr(0), schedule.lr(1)]
    for loss in [9.0, 7.0, 6.0, 5.0]:
        schedule.observe(loss)
    rates.append(schedule.lr(4))
    for _ in range(2 * 2 * 3):
        schedule.observe(6.0)
        rates.append(schedule.lr(5))
    again = Plateau(peak=8.0, warmup_steps=2, window=2, patience=2, factor=0.5, min_ratio=0.2)
    again.load_state_dict(schedule.state_dict())

    assert rates == [4.0, 8.0, 8.0] + [8.0] * 3 + [4.0] * 4 + [2.0] * 4 + [1.6]
    assert again.lr(9) == schedule.lr(9) == 1.6


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_each_optimizer_decays_matrices_only(name, kind):
    config = load_config(None, ["data.url=memory://d", f"optimizer.name={name}", "optimizer.weight_decay=0.3"])
    optimizer = build_optimizer(nn.Linear(2, 2), config.optimizer)

    assert type(optimizer) is kind
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]


def test_matrices_decay_and_vectors_do_not():
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 5), nn.RMSNorm(5))
    decaying, others = decay_groups(model.parameters(), weight_decay=0.1)

    assert [parameter.dim() for parameter in decaying["params"]] == [2, 2]
    assert [parameter.dim() for parameter in others["params"]] == [1, 1]
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)


def test_generators_go_on_from_where_they_were():
    import random

    import numpy as np

    def draw():
        return random.random(), np.random.random(), torch.rand(1).item()

    seed_generators(3, rank=1)
    state = generator_state(torch.device("cpu"))
    first = draw()
    restore_generators(state, torch.device("cpu"))

    assert draw() == first
    seed_generators(3, rank=2)
    assert not set(draw()) & set(first)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_auto_means_cpu_and_cuda_is_refused():
    assert decide_device("auto", 0).type == "cpu"
    with pytest.raises(ValueError, match="local rank 0 has no GPU, this machine has 0"):
        decide_device("cuda", 0)


def test_ranks_share_the_cores():
    assert threads_per_rank(1) >= threads_per_rank(2) >= threads_per_rank(10**6) == 1


def test_the_width_of_rows_comes_from_the_schema():
    def width(kind):
        return row_width(pa.schema([("tokens", kind)]))

    assert width(pa.list_(pa.uint16(), 128)) == 128
    assert width(pa.fixed_shape_tensor(pa.int32(), [64])) == 64
    assert width(pa.list_(pa.int32())) is None
    with pytest.raises(ValueError, match="has the columns text and no column 'tokens'"):
        row_width(pa.schema([("text", pa.string())]))

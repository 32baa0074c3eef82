"""However a model is shared among ranks, it learns what one process learns, and its checkpoints are everybody's."""

import pytest
import torch
from fake_loader import Crash, crash_at, losses, open_fake, small_config
from torch import nn
from toy import SINGLE, batch, in_processes, on_ranks, toy_trainer, train, weight

from training import parse_config, run
from training.parallel import Layout, Sharing, decide_layout, share, wire_bytes

GLOBAL_BATCH = 8
MODEL = ["model.num_layers=2", "model.width=32", "model.num_heads=4", "model.num_kv_heads=2", "model.vocab_size=20"]
CLIPPED = "optimizer.clip_norm=0.1"
WAYS = {
    2: {
        "ddp": [],
        "ddp, accumulated": ["optimizer.accumulation=2", "parallel.static_graph=true"],
        "fsdp": ["parallel.data=fsdp"],
        "tensor": ["parallel.tensor=2"],
        "tensor, recomputed": ["parallel.tensor=2", "model.recompute=true"],
    },
    4: {
        "ddp": [],
        "fsdp, accumulated": ["parallel.data=fsdp", "optimizer.accumulation=2"],
        "hybrid": ["parallel.data=fsdp", "parallel.shard=2"],
        "clipped": ["parallel.data=fsdp", CLIPPED],
        "fsdp and tensor": ["parallel.data=fsdp", "parallel.tensor=2"],
    },
}


ACROSS = {2: ["fsdp", "tensor"], 4: ["hybrid", "fsdp and tensor"]}


def batch_size(settings, data_ranks):
    accumulation = 2 if "optimizer.accumulation=2" in settings else 1
    return GLOBAL_BATCH // data_ranks // accumulation


def train_all_ways(topology, rendezvous, folder):
    """Each way once; "across" goes on in one way from where another one crashed."""
    for name, settings in WAYS[topology.world_size].items():
        config = small_config(folder / name, *MODEL, *settings)
        data_ranks = config.parallel.layout(topology.world_size).data_ranks
        loader = open_fake(batch_size=batch_size(settings, data_ranks))
        run(config, topology, rendezvous=f"{rendezvous}-{name}", open_loader=loader)
    for number, name in enumerate(ACROSS[topology.world_size]):
        settings = WAYS[topology.world_size][name]
        config = small_config(folder / "across", *MODEL, *settings)
        size = GLOBAL_BATCH // config.parallel.layout(topology.world_size).data_ranks
        loader = open_fake(batch_size=size, on_batch=crash_at([24, 40][number]))
        with pytest.raises(Crash):
            run(config, topology, rendezvous=f"{rendezvous}-across-{number}", open_loader=loader)
    return True


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_way_agrees_with_a_single_process_and_reads_the_others_checkpoints(world_size, tmp_path):
    def alone(name, *settings):
        folder = tmp_path / name
        run(small_config(folder, *MODEL, *settings), open_loader=open_fake(batch_size=GLOBAL_BATCH))
        return pytest.approx(losses(folder), abs=1e-3)

    in_processes(world_size, train_all_ways, tmp_path, tmp_path / "runs")
    expected, clipped = alone("alone"), alone("clipped", CLIPPED)
    for name, settings in WAYS[world_size].items():
        assert losses(tmp_path / "runs" / name) == (clipped if CLIPPED in settings else expected), name
    alone("runs/across")  # to the end, from where two other ways left it
    assert losses(tmp_path / "runs" / "across") == expected


@pytest.mark.parametrize(
    ("world_size", "arguments", "layout"),
    [
        (1, {"method": "ddp", "shard": None, "tensor": 1}, Layout()),
        (8, {"method": "ddp", "shard": None, "tensor": 1}, Layout(replicate=8)),
        (8, {"method": "local_sgd", "shard": None, "tensor": 1}, Layout(replicate=8)),
        (8, {"method": "fsdp", "shard": None, "tensor": 1}, Layout(shard=8)),
        (8, {"method": "fsdp", "shard": 2, "tensor": 2}, Layout(replicate=2, shard=2, tensor=2)),
        (2, {"method": "ddp", "shard": None, "tensor": 2}, Layout(tensor=2)),
    ],
)
def test_ranks_form_a_grid_and_tensor_peers_receive_the_same_samples(world_size, arguments, layout):
    assert decide_layout(world_size, **arguments) == layout
    receivers = [layout.data(rank).rank for rank in range(world_size)]
    assert receivers == [number for number in range(layout.data_ranks) for _ in range(layout.tensor)]


@pytest.mark.parametrize(
    ("world_size", "arguments", "message"),
    [
        (3, {"method": "ddp", "shard": None, "tensor": 2}, "parallel.tensor=2 does not divide the 3 ranks"),
        (4, {"method": "ddp", "shard": None, "tensor": 2}, "goes with parallel.data=fsdp, got ddp"),
        (4, {"method": "ddp", "shard": 2, "tensor": 1}, "parallel.shard=2 goes with parallel.data=fsdp"),
        (6, {"method": "fsdp", "shard": 4, "tensor": 1}, "does not divide the 6 ranks .* use one of 1, 2, 3, 6"),
    ],
)
def test_ranks_that_form_no_grid_are_refused(world_size, arguments, message):
    with pytest.raises(ValueError, match=message):
        decide_layout(world_size, **arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "fsdp", "compress": "powersgd"}, "parallel.compress=powersgd does not go with parallel.data=fsdp"),
        ({"data": "local_sgd", "sync_every": 7}, "must be a multiple of parallel.sync_every=7"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        parse_config({"data": {"url": "memory://d"}, "parallel": settings})


def test_bytes_on_the_wire_are_those_of_rings():
    shapes = [(100, 100), (50,)]
    ddp, half = Layout(replicate=4), Layout(shard=4)

    assert wire_bytes(shapes, Layout(), Sharing()) == 0
    assert wire_bytes(shapes, ddp, Sharing()) == 2 * 4 * 10_050 * 3 // 4
    assert wire_bytes(shapes, ddp, Sharing(compression="bf16")) == wire_bytes(shapes, ddp, Sharing()) // 2
    assert wire_bytes(shapes, ddp, Sharing(compression="powersgd")) == 2 * 4 * (4 * 200 + 50) * 3 // 4
    assert wire_bytes(shapes, half, Sharing(method="fsdp")) == 3 * 4 * 10_050 * 3 // 4
    assert wire_bytes(shapes, ddp, Sharing(method="local_sgd", sync_every=6)) == wire_bytes(shapes, ddp, Sharing()) // 2


def test_a_model_that_cannot_be_divided_says_so(tmp_path):
    assert on_ranks(2, refusals, tmp_path)[0] == [
        "Linear has no method divide(mesh), which parallel.tensor=2 needs",
        "num_heads must be a multiple of parallel.tensor=2, got 3",
    ]


def refusals(group):
    from training import GPT, GPTConfig

    odd = GPT(GPTConfig(vocab_size=8, context=8, num_layers=1, num_heads=3, width=12))
    said = []
    for model in (nn.Linear(2, 2), odd):
        with pytest.raises(ValueError, match=r"parallel\.tensor=2") as caught:
            share(model, Sharing(), Layout(tensor=2), torch.device("cpu"))
        said.append(str(caught.value))
    return said


def test_two_ranks_average_their_weights_now_and_then_and_compress_what_they_send(tmp_path):
    first, second = on_ranks(2, averages, tmp_path)

    assert first["local sgd"] == second["local sgd"] == pytest.approx(1.0 - 4 * (2.0 + 4.0) / 2)
    assert first["apart"] != second["apart"]
    for name in ("bf16", "fp16", "powersgd"):
        assert first[name] == second[name] == pytest.approx(1.0 - 12 * 3.0, rel=0.01)
    assert first["uneven"] == second["uneven"] == (2, 3)


def averages(group):
    value = [2.0, 4.0][group.rank]
    results = {}
    local = toy_trainer(group, [batch(value)] * 4, num_steps=9, sharing=Sharing(method="local_sgd", sync_every=2))
    train(local, num_steps=4)
    results["local sgd"] = weight(local)
    apart = toy_trainer(group, [batch(value)] * 4, num_steps=9, sharing=Sharing(method="local_sgd", sync_every=100))
    apart._align = lambda finished: False  # as if it never came to an average
    train(apart, num_steps=4)
    results["apart"] = weight(apart)
    for compression in ("bf16", "fp16", "powersgd"):
        trainer = toy_trainer(group, [batch(value)] * 12, num_steps=12, sharing=Sharing(compression=compression))
        train(trainer, num_steps=12)
        results[compression] = weight(trainer)
    uneven = toy_trainer(group, [batch(value)] * (2 + 3 * group.rank), num_steps=9)
    train(uneven)
    results["uneven"] = (uneven.progress.step, uneven.progress.num_left + 2)
    return results


def test_on_a_single_rank_nothing_is_shared():
    model = nn.Linear(2, 2)

    assert share(model, Sharing(), Layout(), SINGLE._device) is model

"""What one update does, worked out by hand: on one rank and several, accumulated or not."""

import math

import pytest
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from toy import SCALED, SINGLE, batch, on_ranks, toy_trainer, train, weight

from training import NonFiniteError

MEAN = (10 * 1 + 100 * 2) / 110


def logged(trainer, name):
    return [getattr(line, name) for line in trainer.log]


def loss_and_gradient(group, batches, accumulation):
    """Of the mean loss over all of the batches of all of the ranks."""
    trainer = toy_trainer(group, batches[group.rank], accumulation=accumulation)
    train(trainer)
    return trainer.progress.loss, 1.0 - weight(trainer)


@pytest.mark.parametrize(
    ("batches", "accumulation"),
    [([batch([1, 2], [10, 100])], 1), ([batch(1, 10), batch(2, 100)], 2)],
    ids=["one batch", "accumulated"],
)
def test_loss_and_gradient_weigh_every_token_alike(batches, accumulation):
    assert loss_and_gradient(SINGLE, [batches], accumulation) == pytest.approx((MEAN, MEAN), abs=1e-6)


def test_a_short_last_group_is_an_update_of_its_own():
    values = [1.0, 2.0, 3.0, 4.0, 10.0]
    accumulated = toy_trainer(SINGLE, [batch(value) for value in values], accumulation=4)
    train(accumulated)
    whole = toy_trainer(SINGLE, [batch(values[:4], [1] * 4), batch(values[4])])
    train(whole)

    assert accumulated.progress.step == whole.progress.step == 2
    assert weight(accumulated) == pytest.approx(weight(whole), abs=1e-6)


@pytest.mark.parametrize(("norm", "applied"), [(0.5, 0.5), (4.0, 1.0)])
def test_clipping_sees_the_gradient_without_its_loss_scale(norm, applied):
    trainer = toy_trainer(SINGLE, [batch(norm)], clip_norm=1.0, precision=SCALED)
    train(trainer)

    assert logged(trainer, "loss_scale") == [65_536]
    assert logged(trainer, "grad_norm") == pytest.approx([norm])
    assert 1.0 - weight(trainer) == pytest.approx(applied, abs=1e-5)


def test_clipping_by_value_bounds_each_number_after_the_norm():
    trainer = toy_trainer(SINGLE, [batch(4.0)], clip_norm=2.0, clip_value=0.25)
    train(trainer)

    assert logged(trainer, "grad_norm") == [4.0]
    assert 1.0 - weight(trainer) == pytest.approx(0.25)


def test_the_running_mean_follows_the_weights_and_is_lent_for_a_while():
    trainer = toy_trainer(SINGLE, [batch(1.0)] * 2, ema_decay=0.75)
    train(trainer)  # 1.0, 0.0, -1.0

    with trainer._ema.in_place():
        assert weight(trainer) == 0.75 * 0.75 * 1.0 + 0.25 * -1.0
    assert weight(trainer) == -1.0


def test_a_gradient_that_overflows_without_a_loss_scale_stops_the_run():
    trainer = toy_trainer(SINGLE, [batch(1.0), batch(1.0, overflow=True)])

    with pytest.raises(NonFiniteError, match="gradient norm of update 2 is"):
        train(trainer)
    assert weight(trainer) == 0.0  # of the first update


def test_a_gradient_that_overflows_at_any_loss_scale_stops_the_run():
    trainer = toy_trainer(SINGLE, [batch(1.0, overflow=True)] * 100, precision=SCALED)

    with pytest.raises(NonFiniteError, match="overflows at a loss scale"):
        train(trainer)
    assert weight(trainer) == 1.0


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_an_overflow_skips_the_update_and_the_schedule_waits(world_size, tmp_path):
    for step, skipped, lrs, final in on_ranks(world_size, skip_steps_1_and_4, tmp_path):
        assert (step, skipped) == (8, 2)
        assert lrs == sorted(lrs, reverse=True)
        assert len(set(lrs)) == 8  # one learning rate for each update made
        assert final == pytest.approx(1.0 - sum(sorted(set(lrs))))


def skip_steps_1_and_4(group):
    own = group.rank == group.world_size - 1  # one rank is enough
    batches = [batch(1.0, overflow=own and attempt in (1, 4)) for attempt in range(1, 11)]
    trainer = toy_trainer(group, batches, lr=0.1, num_steps=8, min_ratio=0.1, precision=SCALED)
    train(trainer, num_steps=8)
    return trainer.progress.step, trainer.progress.skipped, logged(trainer, "lr"), weight(trainer)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_learning_rate_depends_on_the_update_number_only(world_size, tmp_path):
    expected = [8e-3] * 20 + [4e-3] * 20 + [2e-3] * 20
    for lrs_of_rank in on_ranks(world_size, dropping_lrs, tmp_path):
        assert lrs_of_rank == [expected, expected]


def dropping_lrs(group):
    found = []
    for accumulation in (1, 3):
        trainer = toy_trainer(group, [batch(1.0)] * 60 * accumulation, lr=8e-3, decay="step", accumulation=accumulation)
        train(trainer, num_steps=60)
        found.append(logged(trainer, "lr"))
    return found


def test_two_ranks_make_the_updates_of_one(tmp_path):
    first, second = on_ranks(2, several_laws, tmp_path)

    assert first["exact weights"] == second["exact weights"]
    assert first["applied"] == second["applied"] == pytest.approx(5.5)
    assert first["exchanges"] == 20 + 1  # and one to lay out the exchange, before the first update
    for result in (first, second):
        assert result["mean"] == pytest.approx((MEAN, MEAN), abs=1e-6)
        assert result["lrs"] == result["lrs of one rank"]
        for rank in (0, 1):
            assert f"update 3 is not finite on rank {rank};" in result[f"nan on {rank}"]
            assert result[f"weight after nan on {rank}"] == -1.0  # after two updates


def several_laws(group):
    """One start of the processes serves several claims: it costs more than they do."""
    return {
        **accumulated_gradients(group),
        "mean": loss_and_gradient(group, [[batch(1, 10)], [batch(2, 100)]], 1),
        "lrs": lrs(group),
        "lrs of one rank": lrs(SINGLE),
        **non_finite_loss(group, 0),
        **non_finite_loss(group, 1),
    }


def accumulated_gradients(group):
    values = [(3.0, 5.0), (6.0, 8.0)][group.rank]  # means 4.0 and 7.0
    trainer = toy_trainer(group, [batch(value) for value in values] * 20, lr=0.1, accumulation=2)
    exchanges = []
    trainer._model.register_comm_hook(exchanges, counting_hook)
    train(trainer)
    return {
        "exact weights": weight(trainer).hex(),
        "applied": (1.0 - weight(trainer)) / 20 / 0.1,
        "exchanges": len(exchanges),
    }


def counting_hook(exchanges, bucket):
    exchanges.append(bucket.index())
    return allreduce_hook(None, bucket)


def lrs(group):
    trainer = toy_trainer(group, [batch(1.0)] * 10, num_steps=10, min_ratio=0.1)
    train(trainer)
    return logged(trainer, "lr")


def non_finite_loss(group, rank):
    value = math.nan if group.rank == rank else 1.0
    trainer = toy_trainer(group, [batch(1.0), batch(1.0), batch(value), batch(1.0)])
    with pytest.raises(NonFiniteError) as caught:
        train(trainer)
    return {f"nan on {rank}": str(caught.value), f"weight after nan on {rank}": weight(trainer)}

"""Second requests go to what is late, and never cost more than the budget."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.storage.hedging import Hedging


def test_nothing_is_late_before_it_is_known_how_long_requests_take():
    hedging = Hedging()
    for _ in range(15):
        assert hedging.late_after(1000) is None
        hedging.ended(seconds=0.1, num_bytes=1000)
    hedging.ended(seconds=0.1, num_bytes=1000)

    assert hedging.late_after(1000) == pytest.approx(0.25)


@pytest.mark.parametrize("slow_share", [0.0, 0.01, 0.04])
def test_few_of_the_usual_requests_are_late_and_all_of_the_slow_ones(slow_share):
    hedging, numbers = Hedging(), random.Random(1)
    late = {"usual": 0, "slow": 0}
    count = dict(late)
    for _ in range(5000):
        kind = "slow" if numbers.random() < slow_share else "usual"
        seconds = 2.0 if kind == "slow" else numbers.lognormvariate(-3.5, 0.3)
        patience = hedging.late_after(1000)
        if patience is not None:
            count[kind] += 1
            late[kind] += seconds > patience
        hedging.ended(seconds=seconds, num_bytes=1000)

    assert late["usual"] <= 0.02 * count["usual"]
    assert late["slow"] == count["slow"]


def test_a_larger_request_may_take_longer_in_proportion():
    hedging = Hedging()
    for _ in range(20):
        hedging.ended(seconds=0.1, num_bytes=1000)

    assert hedging.late_after(10_000) == pytest.approx(10 * hedging.late_after(1000))
    assert hedging.late_after(10) == hedging.late_after(1000)


@given(steps=st.lists(st.booleans(), max_size=600))
def test_the_budget_is_kept_at_every_moment(steps):
    hedging, first, second = Hedging(), 0, 0
    for wants_second in steps:
        if wants_second:
            second += hedging.spend()
        else:
            hedging.started()
            first += 1
        assert second <= 0.05 * first + 1e-9


def test_a_long_calm_saves_up_for_no_storm():
    hedging = Hedging()
    for _ in range(100_000):
        hedging.started()

    assert sum(hedging.spend() for _ in range(1000)) <= 16

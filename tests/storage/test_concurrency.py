"""The limit finds what a link can carry, whatever its latency and bandwidth, and yields to a store that refuses."""

import heapq
import random

import pytest

from dataplane.storage.concurrency import ConcurrencyLimit

SIZE = 1 << 20


class Link:
    """Requests that take `latency` seconds and then share `rate` bytes a second, first come first served; beyond
    `most` in flight it refuses. Time is a number, moved by the requests."""

    def __init__(self, *, latency, rate, most=None, noise=0.0, seed=0):
        self.latency, self.rate, self.most, self.noise = latency, rate, most, noise
        self.now, self.free_at, self.under_way = 0.0, 0.0, []
        self.random = random.Random(seed)
        self.refusals = 0

    def run(self, limit, num_requests, *, wanted=10**9):
        """Keeps as many requests in flight as the limit says and somebody wants; the rate of the second half."""
        ended, half, bytes_since = 0, None, 0
        while ended < num_requests:
            while len(self.under_way) < min(limit.limit, wanted):
                self._start()
            self.now, started, refused = heapq.heappop(self.under_way)
            if refused:
                self.refusals += 1
                limit.refused(started=started, now=self.now)
                continue
            ended += 1
            limit.ended(now=self.now, num_bytes=SIZE, others_wait=wanted > limit.limit)
            if half is None and ended >= num_requests // 2:
                half = self.now
            elif half is not None:
                bytes_since += SIZE
        return bytes_since / (self.now - half)

    def _start(self):
        if self.most is not None and len(self.under_way) >= self.most:
            heapq.heappush(self.under_way, (self.now + self.latency, self.now, True))
            return
        arrives = self.now + self.latency * self.random.uniform(1 - self.noise, 1 + self.noise)
        seconds = SIZE / self.rate * self.random.uniform(1 - self.noise, 1 + self.noise)
        self.free_at = max(arrives, self.free_at) + seconds
        heapq.heappush(self.under_way, (self.free_at, self.now, False))


@pytest.mark.parametrize("latency", [0.0005, 0.005, 0.03, 0.1])
@pytest.mark.parametrize("rate", [50e6, 500e6, 1e9])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_it_fills_the_link(latency, rate, noise):
    limit = ConcurrencyLimit()
    reached = Link(latency=latency, rate=rate, noise=noise).run(limit, 20_000)

    ceiling = min(rate, limit.most * SIZE / latency)
    assert reached >= 0.9 * ceiling


@pytest.mark.parametrize(("latency", "rate"), [(0.03, 500e6), (0.1, 200e6)])
def test_it_fills_a_new_link_within_a_second(latency, rate):
    limit, link = ConcurrencyLimit(), Link(latency=latency, rate=rate)
    while link.now < 1.0:
        link.run(limit, 2)

    assert limit.limit * SIZE / latency >= 0.9 * rate


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_it_does_not_climb_where_climbing_brings_nothing(noise):
    limit = ConcurrencyLimit()
    Link(latency=0.002, rate=100e6, noise=noise).run(limit, 20_000)

    assert limit.limit <= 16


def test_it_follows_a_link_that_becomes_longer():
    limit = ConcurrencyLimit()
    Link(latency=0.001, rate=500e6).run(limit, 5_000)
    reached = Link(latency=0.05, rate=500e6).run(limit, 20_000)

    assert reached >= 0.9 * 500e6


def test_it_stays_below_what_a_store_refuses():
    limit, link = ConcurrencyLimit(), Link(latency=0.03, rate=1e12, most=20)
    link.run(limit, 20_000)

    assert 10 <= limit.limit <= 28
    assert link.refusals < 0.05 * 20_000


def test_refusals_of_requests_in_flight_at_a_cut_do_not_cut_again():
    limit = ConcurrencyLimit(initial=100)
    cuts = [limit.refused(started=0.0, now=1.0 + number / 100) for number in range(100)]

    assert cuts == [True] + [False] * 99
    assert limit.limit == 70
    assert limit.refused(started=2.5, now=3.0)


def test_it_never_leaves_its_bounds():
    limit = ConcurrencyLimit(initial=16, most=5)
    assert limit.limit == 5
    Link(latency=0.1, rate=1e12).run(limit, 2_000)
    assert limit.limit <= 5
    for number in range(50):
        limit.refused(started=1e6 + number, now=1e6 + number + 0.5)
    assert limit.limit == 1


def test_requests_that_nobody_waits_behind_say_nothing():
    limit = ConcurrencyLimit()
    Link(latency=0.03, rate=1e12).run(limit, 5_000, wanted=3)

    assert limit.limit == 16

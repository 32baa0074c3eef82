"""Blocks asked for in the order of need always fit into as many slots as the plan promises to need."""

import heapq

from hypothesis import given
from hypothesis import strategies as st

from dataplane.pipeline.stream import _Needs
from dataplane.plan import Mixture, Order, Plan, Position, Share, Topology
from tests.plan.planning import index_of


class Slots:
    """What the block stage does about slots, without the blocks."""

    def __init__(self, num_slots):
        self.free, self.live, self.expiry = num_slots, {}, []

    def request(self, block, last_element):
        if block not in self.live:
            if not self.free:
                return False
            self.free -= 1
        if last_element > self.live.get(block, -1):
            self.live[block] = last_element
            heapq.heappush(self.expiry, (last_element, block))
        return True

    def release(self, before):
        while self.expiry and self.expiry[0][0] < before:
            last_element, block = heapq.heappop(self.expiry)
            if self.live.get(block) == last_element:
                del self.live[block]
                self.free += 1


@given(
    sources=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=80), min_size=1, max_size=3),
    weights=st.one_of(st.none(), st.tuples(*[st.sampled_from([0.01, 0.2, 1.0])] * 3)),
    shares=st.one_of(st.none(), st.lists(st.sampled_from([1.0, 1.4, 3.0]), min_size=8, max_size=8)),
    world_size=st.sampled_from([1, 2, 3, 5, 8]),
    batch_size=st.integers(1, 9),
    order=st.one_of(st.none(), st.tuples(st.integers(1, 20), st.integers(1, 5))),
    endless=st.booleans(),
    start=st.floats(0, 0.99),
)
def test_the_promised_slots_always_suffice(sources, weights, shares, world_size, batch_size, order, endless, start):
    lanes, window = order or (None, None)
    shares = tuple(shares[:world_size]) if shares is not None and batch_size > 3 else None
    plan = Plan(
        indexes=tuple(index_of(rows) for rows in sources),
        order=Order.suited(
            seed=1,
            shuffle=True,
            global_batch_size=world_size * batch_size,
            num_lanes=lanes,
            window_blocks=window,
        ),
        batch_size=batch_size,
        topology=Topology(rank=world_size - 1, world_size=world_size),
        endless=endless,
        shares=shares,
        mixture=weights and Mixture(shares=tuple(Share(weight=weight) for weight in weights[: len(sources)])),
    )
    slots = Slots(min(sum(map(len, sources)), plan.most_blocks_at_once))
    begin = int(start * min(plan.sequence.length, 2000))
    needs = _Needs(plan.reads(Position(0, begin)))
    steps = 0
    while steps < 300 and (reads := needs.next_reads()) is not None:
        for step in range(len(reads)):
            slots.release(before=int(reads.start[step]))
            while (need := needs.peek()) is not None and slots.request(*need):
                needs.pop()
            assert set(reads.block[step].tolist()) <= slots.live.keys()
        steps += len(reads)

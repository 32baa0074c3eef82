"""Blocks asked for in the order of need always fit into as many slots as the plan promises to need."""

import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataplane.pipeline.stream import _Needs
from dataplane.plan import BlockIndex, Order, Plan, Position, Topology


def index_of(block_rows):
    count = len(block_rows)
    zeros = np.zeros(count, np.int64)
    digests = np.zeros((count, 32), np.uint8)
    return BlockIndex(["shard"], zeros.astype(np.int32), zeros, zeros, np.array(block_rows), zeros, digests)


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
    block_rows=st.lists(st.integers(1, 9), min_size=1, max_size=120),
    world_size=st.sampled_from([1, 2, 3, 5, 8]),
    batch_size=st.integers(1, 9),
    order=st.one_of(st.none(), st.tuples(st.integers(1, 20), st.integers(1, 5))),
    endless=st.booleans(),
    start=st.floats(0, 0.99),
)
def test_the_promised_slots_always_suffice(block_rows, world_size, batch_size, order, endless, start):
    lanes, window = order or (None, None)
    plan = Plan(
        index=index_of(block_rows),
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
    )
    slots = Slots(min(len(block_rows), plan.most_blocks_at_once))
    needs = _Needs(plan.reads(Position(0, int(start * sum(block_rows)))))
    steps = 0
    while steps < 300 and (reads := needs.next_reads()) is not None:
        for step in range(len(reads)):
            slots.release(before=int(reads.start[step]))
            while (need := needs.peek()) is not None and slots.request(*need):
                needs.pop()
            assert set(reads.block[step].tolist()) <= slots.live.keys()
        steps += len(reads)

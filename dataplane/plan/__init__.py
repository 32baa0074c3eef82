"""DECIDE: which rank takes which rows of which block at which step. Pure: no I/O, clock or torch."""

from dataplane.plan.blocks import Block, BlockIndex
from dataplane.plan.plan import Order, Plan, Reads
from dataplane.plan.position import Position
from dataplane.plan.topology import Topology

__all__ = ["Block", "BlockIndex", "Order", "Plan", "Position", "Reads", "Topology"]

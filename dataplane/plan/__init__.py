"""DECIDE: which rank takes which rows of which block at which step. Pure: no I/O, clock or torch."""

from dataplane.plan.blocks import Block, BlockIndex
from dataplane.plan.mixture import NEVER, Mixture, Share, Stop, Weight
from dataplane.plan.plan import Order, Plan, Reads
from dataplane.plan.position import Position
from dataplane.plan.topology import Topology

__all__ = [
    "NEVER",
    "Block",
    "BlockIndex",
    "Mixture",
    "Order",
    "Plan",
    "Position",
    "Reads",
    "Share",
    "Stop",
    "Topology",
    "Weight",
]

"""MOVE: blocks to record batches to tensors, on threads with bounded queues. Knows no format, URL or world size."""

from dataplane.pipeline.arena import Arena
from dataplane.pipeline.layout import Layout
from dataplane.pipeline.stream import STRETCHES_AT_ONCE, BatchStream, StreamLimits, batch_memory
from dataplane.pipeline.tensors import FILLER_KEY, Batch, Ragged

__all__ = [
    "FILLER_KEY",
    "STRETCHES_AT_ONCE",
    "Arena",
    "Batch",
    "BatchStream",
    "Layout",
    "Ragged",
    "StreamLimits",
    "batch_memory",
]

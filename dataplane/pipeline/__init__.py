"""MOVE: blocks to record batches to tensors, on threads with bounded queues. Knows no format, URL or world size."""

from dataplane.pipeline.arena import Arena
from dataplane.pipeline.layout import Layout
from dataplane.pipeline.stream import BatchStream, StreamLimits, batch_memory
from dataplane.pipeline.tensors import Batch, Ragged, allocate_pinned

__all__ = ["Arena", "Batch", "BatchStream", "Layout", "Ragged", "StreamLimits", "allocate_pinned", "batch_memory"]

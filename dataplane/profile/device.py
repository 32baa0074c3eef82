"""A CUDA stream as the timeline of a step account: marks are events, and none of them waits.

An event is reached when the device has finished everything launched before it. The time between
the events set before and after the wait for a batch is therefore the *exposed* wait: the part of it
that the device's backlog of launched kernels did not cover. Only a GPU can check this file; the
arithmetic on marks is tested on an emulated device. Imported only where a CUDA device is in use.
"""

import torch

NS_PER_MS = 1_000_000


class CudaClock:
    """Marks on the compute stream of one device, measured once the device has passed them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def reached(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())

    def elapsed_ns(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> int:
        """Nanoseconds of device time, at the events' resolution of about half a microsecond."""
        stop.synchronize()
        milliseconds = float(start.elapsed_time(stop))
        return round(milliseconds * NS_PER_MS)

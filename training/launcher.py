"""Several ranks on this machine: torchrun as a child process, which ends when its parent does."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from training.signals import die_with_parent

INTERRUPTED = 130  # a shell's status for a command ended by Ctrl-C


def launch(arguments: Sequence[str], num_ranks: int) -> int:
    """Run `python -m training` with `arguments` on `num_ranks` ranks; its exit status.

    SIGTERM and SIGINT are passed on to the ranks, which finish their step and write a checkpoint:
    the status is then 0 after SIGTERM and 130 after SIGINT. Call it from the main thread.

    Raises:
        ValueError: `num_ranks` is below one.
    """
    received: list[int] = []
    process = start_ranks(arguments, num_ranks)

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        _stop_ranks(process.pid)

    former = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        status = process.wait()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    return INTERRUPTED if status == 0 and signal.SIGINT in received else status


def start_ranks(arguments: Sequence[str], num_ranks: int) -> subprocess.Popen[bytes]:
    """Start `python -m training` with `arguments` on `num_ranks` ranks, which end when this process does.

    Raises:
        ValueError: `num_ranks` is below one.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks must be at least 1, got {num_ranks}")
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    return subprocess.Popen(
        # torchrun warns unless OMP_NUM_THREADS is set; each rank sets its own number of threads anyway. The safe path
        # keeps a training.py of the user's folder from taking our place.
        ["env", "OMP_NUM_THREADS=1", "PYTHONSAFEPATH=1", sys.executable, *torchrun, "-m", "training", *arguments],
        start_new_session=True,  # Ctrl-C reaches the ranks from here, and once
        preexec_fn=die_with_parent,
    )


def _stop_ranks(torchrun: int) -> None:
    """Ask torchrun's children to stop: asked itself, it calls their clean exit a failure."""
    try:
        children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    except OSError:  # not Linux: torchrun tells them, and its status is then 1
        children = []
    for process in [int(child) for child in children] or [torchrun]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)

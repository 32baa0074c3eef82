"""Several ranks on this machine, as a child process that ends when its parent does."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from training.signals import die_with_parent

INTERRUPTED = 130  # a shell's status for a command ended by Ctrl-C


def launch(arguments: Sequence[str], num_ranks: int, *, max_restarts: int = 0) -> int:
    """Run `python -m training` with `arguments` on `num_ranks` ranks; its exit status.

    A failure is told once, on stderr: that of the rank that failed first. Up to `max_restarts` times
    all ranks start again, from the newest checkpoint. SIGTERM and SIGINT are passed on to the ranks,
    which finish their step and write a checkpoint: the status is then 0 after SIGTERM and 130 after
    SIGINT. Call it from the main thread.

    Raises:
        ValueError: `num_ranks` is below one.
    """
    received: list[int] = []
    process = start_ranks(arguments, num_ranks, max_restarts=max_restarts)

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        process.send_signal(signal.SIGTERM)

    former = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        status = process.wait()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    return INTERRUPTED if status == 0 and signal.SIGINT in received else status


def start_ranks(arguments: Sequence[str], num_ranks: int, *, max_restarts: int = 0) -> subprocess.Popen[bytes]:
    """Start `python -m training` with `arguments` on `num_ranks` ranks, which end when this process does.

    Raises:
        ValueError: `num_ranks` is below one.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks must be at least 1, got {num_ranks}")
    agent = ["-m", "training.agent", f"--ranks={num_ranks}", f"--max-restarts={max_restarts}", "--"]
    return subprocess.Popen(
        # Each rank sets its own number of threads; those of a library that nobody asked would fight for the cores. The
        # safe path keeps a training.py of the user's folder from taking our place.
        ["env", "OMP_NUM_THREADS=1", "PYTHONSAFEPATH=1", sys.executable, *agent, *arguments],
        start_new_session=True,  # Ctrl-C reaches the ranks from here, and once
        preexec_fn=die_with_parent,
    )

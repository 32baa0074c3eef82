"""`python -m failing_rank` is `python -m training` on a fake loader, and does on rank 1 what FAILURE says."""

import errno
import os
import signal
import sys
import time
from functools import partial

from training.signals import StopRequest, die_with_parent

SAMPLE = 12  # of the third update or so, whatever the number of ranks
FULL = OSError(errno.ENOSPC, "no space left on the disk of rank 1")


def fail_in_decoding(consumed):
    if consumed >= SAMPLE:
        raise ValueError(f"sample {consumed} of rank 1 does not decode")


def hang(consumed):
    if consumed >= SAMPLE:
        time.sleep(600)


def be_killed(consumed):
    if consumed >= SAMPLE:
        os.kill(os.getpid(), signal.SIGKILL)


def fail_in_forward():
    from training import GPT

    def forward(*_):
        raise RuntimeError("the kernel of rank 1 does not exist")

    GPT.forward = forward


def fail_in_checkpoint():
    from dataplane.storage.local import LocalStore

    def write(*_):
        raise FULL

    LocalStore.write = write


def main(stop):
    import fake_loader

    from training import rank, runs

    failure = os.environ["FAILURE"] if os.environ.get("RANK") == "1" else ""
    on_batch = {"decode": fail_in_decoding, "hang": hang, "kill": be_killed}.get(failure, lambda consumed: None)
    if failure == "forward":
        fail_in_forward()
    if failure == "checkpoint":
        fail_in_checkpoint()
    rank.run = partial(runs.run, open_loader=fake_loader.open_fake(on_batch=on_batch))
    return rank.main(sys.argv[1:], os.environ, stop)


if __name__ == "__main__":
    die_with_parent()
    with StopRequest() as stop:
        sys.exit(main(stop))

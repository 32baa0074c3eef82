"""Several ranks on this machine, under torch's elastic agent: restarts them together, and says which one failed first.

`python -m training.agent --ranks N [--max-restarts N] -- ARGUMENTS` runs `python -m training ARGUMENTS` on each.
"""

import argparse
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from training.failure import Failure, first_failure, read_failures

SHUTDOWN_SECONDS = 10  # between asking the ranks that are left to stop, and killing them


def main(arguments: Sequence[str]) -> int:
    """Run the ranks; 0 when all of them ended well, else 1 and one message on stderr.

    SIGTERM and SIGINT are passed on to the ranks, which then end well after a checkpoint.
    """
    options = _parser().parse_args(arguments)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it would tell each failure at length
    stopping: list[int] = []

    def stop_ranks(number: int, frame: FrameType | None) -> None:
        stopping.append(number)
        _stop_ranks()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_ranks)
    with tempfile.TemporaryDirectory(prefix="dataplane-ranks-") as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=options.ranks,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=options.max_restarts,
            signals_to_handle="SIGHUP,SIGQUIT",
            shutdown_timeout=SHUTDOWN_SECONDS,
            logs_specs=DefaultLogsSpecs(log_dir=f"{folder}/logs"),
        )
        try:
            elastic_launch(config, sys.executable)("-m", options.module, "--failures", folder, *options.arguments)
        except ChildFailedError as error:
            if stopping and all(process.exitcode == -signal.SIGTERM for process in error.failures.values()):
                return 0  # they were asked to stop before they could listen
            attempts = sorted(Path(folder).glob("attempt-*"), key=lambda path: int(path.name.rpartition("-")[2]))
            failure = decide_failure(read_failures(attempts[-1]) if attempts else [], error.failures)
            print(failure.report(), file=sys.stderr, flush=True)
            return 1
    return 0


def decide_failure(told: Sequence[Failure], ended: dict[int, ProcessFailure]) -> Failure:
    """What to tell of a failed start: a rank that was killed cannot speak, and comes before the echoes of its end."""
    killed = [
        Failure(
            rank=rank,
            message=f"the process (pid {process.pid}) was ended by {process.signal_name()}"
            if process.exitcode < 0
            else f"the process (pid {process.pid}) ended with status {process.exitcode} and said nothing",
            traceback=None,
            is_echo=False,
            seconds=process.timestamp,
        )
        for rank, process in ended.items()
        if rank not in {failure.rank for failure in told}
    ]
    failure = first_failure([*told, *killed])
    assert failure is not None  # a failed start has a rank that failed
    return failure


def _stop_ranks() -> None:
    """Ask the ranks to stop: the agent itself, if asked, would call their clean exit a failure."""
    own = os.getpid()
    with suppress(OSError):  # not Linux: the agent then ends them without a checkpoint, when it ends
        for child in Path(f"/proc/{own}/task/{own}/children").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="training.agent", description="Run `python -m training` on several ranks.")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--max-restarts", type=int, default=0, help="times to start again from the last checkpoint")
    parser.add_argument("--module", default="training", help="run this one instead; it takes the same arguments")
    parser.add_argument("arguments", nargs="*", help="for each rank, after `--`")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

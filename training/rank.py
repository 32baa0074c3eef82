"""One rank of a run: from arguments and environment to an exit status and at most one message."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dataplane import Topology
from training.config import load_config
from training.failure import Failure, describe, first_failure, read_failures
from training.launcher import INTERRUPTED
from training.runs import run
from training.signals import StopRequest


def main(arguments: Sequence[str], environment: Mapping[str, str], stop: StopRequest) -> int:
    """Train; 0 when the run is finished or was ended by SIGTERM, 130 by SIGINT, 1 by an error."""
    options = _parser().parse_args(arguments)
    restarts = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    teller = _Teller(options.failures, rank=int(environment.get("RANK", "0")), restarts=restarts)
    try:
        teller.tell_of_restart()
        summary = run(
            load_config(options.config, options.set),
            Topology.from_env(environment),
            local_rank=int(environment.get("LOCAL_RANK", "0")),
            local_world_size=int(environment.get("LOCAL_WORLD_SIZE", "1")),
            rendezvous=_rendezvous(environment),
            stop=stop,
            on_failure=teller.tell,
        )
    except Exception as error:
        teller.tell(error)
        return 1
    return INTERRUPTED if summary.stopped_by == "SIGINT" else 0


class _Teller:
    """Tells why this rank failed, once: to the launcher that gave it a folder, else on stderr."""

    def __init__(self, folder: Path | None, *, rank: int, restarts: int) -> None:
        self._folder = folder
        self._rank = rank
        self._restarts = restarts
        self._told = False

    def tell(self, error: BaseException) -> None:
        if self._told:
            return
        self._told = True
        failure = describe(error, rank=self._rank)
        if self._folder is not None:
            failure.save(self._attempt(self._restarts))
        else:
            print(failure.report(), file=sys.stderr, flush=True)

    def tell_of_restart(self) -> None:
        """Say what the attempt before this one failed of, where the launcher kept it to itself."""
        if self._folder is None or self._restarts == 0 or self._rank != 0:
            return
        former: Failure | None = first_failure(read_failures(self._attempt(self._restarts - 1)))
        reason = former.report() if former is not None else "a rank was killed"
        print(f"restart {self._restarts}, all ranks: {reason}", file=sys.stderr, flush=True)

    def _attempt(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"attempt-{number}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="training", description="Train a GPT from a dataset.")
    parser.add_argument("--config", type=Path, help="a TOML, YAML or JSON file of settings")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override one setting, for example optimizer.lr=3e-4",
    )
    parser.add_argument("--failures", type=Path, help=argparse.SUPPRESS)  # where our own launcher reads them
    return parser


def _rendezvous(environment: Mapping[str, str]) -> str | None:
    if "MASTER_ADDR" not in environment:
        return None
    return f"tcp://{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', '29500')}"

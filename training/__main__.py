"""`python -m training` for one rank, `torchrun -m training` for several.

The environment is read here and nowhere else.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from training.signals import die_with_parent

if "TORCHELASTIC_RUN_ID" in os.environ:
    die_with_parent()  # before the seconds that the next imports take

from dataplane import Topology
from dataplane.errors import DataplaneError
from training.config import load_config
from training.launcher import INTERRUPTED
from training.runs import run


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Train; 0 when the run is finished or was ended by SIGTERM, 130 by SIGINT, 1 by an error."""
    options = _parser().parse_args(arguments)
    rank = environment.get("RANK", "0")
    try:
        summary = run(
            load_config(options.config, options.set),
            Topology.from_env(environment),
            local_rank=int(environment.get("LOCAL_RANK", "0")),
            local_world_size=int(environment.get("LOCAL_WORLD_SIZE", "1")),
            rendezvous=_rendezvous(environment),
        )
    except (DataplaneError, ValueError, OSError) as error:
        message = "\n".join([str(error), *getattr(error, "__notes__", [])])
        print(f"error on rank {rank}: {message}", file=sys.stderr, flush=True)
        return 1
    except Exception as error:
        traceback.print_exc()
        print(f"error on rank {rank}: {error}", file=sys.stderr, flush=True)
        return 1
    return INTERRUPTED if summary.stopped_by == "SIGINT" else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="training", description="Train a GPT from a dataset.")
    parser.add_argument("--config", type=Path, help="a TOML or JSON file of settings")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override one setting, for example optimizer.lr=3e-4",
    )
    return parser


def _rendezvous(environment: Mapping[str, str]) -> str | None:
    if "MASTER_ADDR" not in environment:
        return None
    return f"tcp://{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', '29500')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))

"""One rank fails or hangs: all of them end, and one message says whose fault it was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_loader import small_settings

from training.agent import decide_failure
from training.errors import HangError, OtherRankError
from training.failure import Failure, describe, first_failure, read_failures
from training.watchdog import Watchdog

DEADLINE_SECONDS = 60


def start(folder, *, num_ranks, failure="", settings=(), max_restarts=0):
    """Ranks under the agent, on the fake loader; rank 1 fails as told."""
    options = [f"--ranks={num_ranks}", f"--max-restarts={max_restarts}", "--module=failing_rank", "--"]
    arguments = [word for setting in small_settings(folder, *settings) for word in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, "-m", "training.agent", *options, *arguments],
        env={**os.environ, "FAILURE": failure, "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[2]}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("failure", "num_ranks", "message"),
    [
        ("decode", 3, "error on rank 1: sample 12 of rank 1 does not decode\n"),
        ("forward", 3, "error on rank 1: the kernel of rank 1 does not exist\n"),
        ("checkpoint", 3, "no space left on the disk of rank 1"),
        ("hang", 2, "error on rank 1: rank 1 made no progress for timeout_seconds=4 while waiting for the batch of"),
        ("kill", 2, "was ended by SIGKILL\n"),
    ],
)
def test_when_rank_1_fails_all_ranks_end_and_its_message_is_the_only_one(failure, num_ranks, message, tmp_path):
    settings = ["timeout_seconds=4"] if failure == "hang" else []
    process = start(tmp_path, num_ranks=num_ranks, failure=failure, settings=settings)
    _, said = process.communicate(timeout=DEADLINE_SECONDS)

    assert process.returncode == 1
    assert message in said
    assert said.count("error on rank") == 1
    if failure in ("decode", "kill", "checkpoint"):
        assert "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_ranks_start_ends_them_well(number, tmp_path):
    process = start(tmp_path, num_ranks=2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(children.read_text().split()) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=DEADLINE_SECONDS)

    assert (process.returncode, said) == (0, "")


def failure_at(seconds, *, rank, is_echo=False):
    return Failure(rank=rank, message="", traceback=None, is_echo=is_echo, seconds=seconds)


def test_the_first_failure_that_is_no_echo_is_told():
    failures = [failure_at(3, rank=0), failure_at(1, rank=1, is_echo=True), failure_at(2, rank=2)]

    assert first_failure(failures).rank == 2
    assert first_failure(failures[1:2]).rank == 1
    assert first_failure([]) is None


def test_a_rank_that_was_killed_comes_before_the_echoes_of_its_end():
    class Killed:
        """What torch's agent knows of a process."""

        pid, exitcode, timestamp = 77, -9, 5

        def signal_name(self):
            return "SIGKILL"

    told = decide_failure([failure_at(4, rank=0, is_echo=True)], {0: Killed(), 1: Killed()})

    assert (told.rank, told.message) == (1, "the process (pid 77) was ended by SIGKILL")


@pytest.mark.parametrize(
    ("error", "is_echo", "foreseen"),
    [
        (ValueError("a"), False, True),
        (OtherRankError("b"), True, True),
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:5] Connection closed by peer"), True, False),
        (KeyError("c"), False, False),
    ],
)
def test_an_error_is_told_with_its_kind(error, is_echo, foreseen, tmp_path):
    error.add_note("while testing")
    failure = describe(error, rank=3)
    failure.save(tmp_path / "folder")

    assert (failure.is_echo, failure.traceback is None) == (is_echo, foreseen)
    assert "while testing" in failure.report()
    assert read_failures(tmp_path / "folder") == [failure]


def test_a_rank_that_beats_lives_and_one_that_does_not_ends():
    told, ended = [], []
    with Watchdog(0.2, rank=5, report=told.append, end=ended.append, dump=lambda: None) as watchdog:
        for step in range(10):
            watchdog.beat(f"making update {step}")
            time.sleep(0.02)
        assert not told
        watchdog._thread.join(DEADLINE_SECONDS)

    assert ended == [1]
    assert isinstance(told[0], HangError)
    assert "rank 5 made no progress for timeout_seconds=0.2 while making update 9" in str(told[0])

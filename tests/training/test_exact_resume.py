"""A run that is stopped, killed or moved goes on as if nothing had happened, bit for bit."""

import json
import os
import signal
import subprocess
import sys

import fake_loader
import pytest
import torch.multiprocessing
from fake_loader import losses, open_fake, small_config

from dataplane import Topology
from training import run

FAKE_RUN = [sys.executable, fake_loader.__file__]
SAMPLES_PER_BATCH = 2


class Crash(Exception):
    """Ends a run where a test wants it to end."""


def crash_at(sample):
    def on_batch(consumed):
        if consumed == sample:
            raise Crash

    return on_batch


def train(folder, *overrides, **settings):
    return run(small_config(folder, *overrides), open_loader=open_fake(**settings))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The losses of six steps without any interruption."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(folder)
    return losses(folder)


@pytest.mark.parametrize("stop", range(6))
def test_a_crash_before_any_step_leaves_the_losses_as_they_were(stop, tmp_path, uninterrupted):
    with pytest.raises(Crash):
        train(tmp_path, on_batch=crash_at(stop * SAMPLES_PER_BATCH))
    summary = train(tmp_path)

    assert summary.resumed_from == (stop // 2 * 2 or None)  # saved every two steps
    assert losses(tmp_path) == uninterrupted


@pytest.mark.parametrize("overrides", [["optimizer.accumulation=2"], ["precision=bf16"], ["optimizer.clip_norm=0.1"]])
def test_resume_is_exact_with_accumulation_bf16_and_clipping(overrides, tmp_path):
    train(tmp_path / "whole", *overrides)
    for sample in (6, 10):
        with pytest.raises(Crash):
            train(tmp_path / "parts", *overrides, "checkpoint.every_steps=1", on_batch=crash_at(sample))
    train(tmp_path / "parts", *overrides)

    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_a_finished_run_has_nothing_more_to_do(tmp_path, uninterrupted):
    train(tmp_path)
    summary = train(tmp_path, on_batch=crash_at(0))

    assert (summary.step, summary.resumed_from, summary.loss) == (6, 6, uninterrupted[6])


def test_a_folder_with_checkpoints_is_refused_when_they_are_not_to_be_resumed(tmp_path):
    train(tmp_path)

    with pytest.raises(ValueError, match="holds a checkpoint of step 6; set checkpoint.resume=true"):
        train(tmp_path, "checkpoint.resume=false")


def start(folder, *arguments):
    """A run in another process, which asks before it takes each batch."""
    command = [*FAKE_RUN, str(folder), "--announce", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env={"PYTHONPATH": os.pathsep.join(sys.path)}, **pipes)


def let_run(process, num_batches):
    """Wait until the process asks for a batch, allow it, and so on; returns at the next question."""
    for line in process.stdout:
        if line.startswith("batch after"):
            if num_batches == 0:
                return
            num_batches -= 1
            process.stdin.write("\n")
            process.stdin.flush()


def finish(process):
    """Allow everything; the exit status and what was said."""
    output, errors = process.communicate("\n" * 100, timeout=60)
    return process.returncode, output + errors


def test_killing_the_process_three_times_changes_nothing(tmp_path, uninterrupted):
    for num_batches in (3, 1, 0):
        process = start(tmp_path)
        let_run(process, num_batches)
        process.kill()
        process.communicate()
    status, said = finish(start(tmp_path))

    assert status == 0, said
    assert losses(tmp_path) == uninterrupted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(number, tmp_path, uninterrupted):
    process = start(tmp_path)
    let_run(process, 2)
    process.send_signal(number)
    status, said = finish(process)

    assert status == 0, said
    assert f"stopped by {number.name} after step 3 of 6" in said
    assert json.loads((tmp_path / "account-rank0.json").read_text())["num_steps"] == 3
    assert train(tmp_path).resumed_from == 3
    assert losses(tmp_path) == uninterrupted


def run_ranks(world_size, folder, *overrides, crash=None):
    """Train on several processes; `crash` is (rank, sample)."""
    (folder / "rendezvous").unlink(missing_ok=True)
    torch.multiprocessing.spawn(_run_rank, (world_size, folder, overrides, crash), nprocs=world_size)


def _run_rank(rank, world_size, folder, overrides, crash):
    on_batch = crash_at(crash[1]) if crash and crash[0] == rank else lambda consumed: None
    run(
        small_config(folder, "threads=1", *overrides),
        Topology(rank=rank, world_size=world_size),
        rendezvous=f"file://{folder}/rendezvous",
        open_loader=open_fake(on_batch=on_batch),
    )


def test_three_ranks_resume_exactly_and_one_goes_on_alone(tmp_path):
    """With three ranks, the order of a sum shows in its last bit; the width makes several buckets' worth."""
    wide = ["model.width=64", "checkpoint.every_steps=1"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    run_ranks(3, whole, *wide)
    with pytest.raises(torch.multiprocessing.ProcessRaisedException):
        run_ranks(3, parts, *wide, crash=(1, 3 * 3 * SAMPLES_PER_BATCH))
    run_ranks(3, parts, *wide)

    assert losses(parts) == losses(whole)
    assert sorted(path.name for path in parts.glob("account-*")) == [f"account-rank{r}.json" for r in range(3)]

    summary = train(parts, *wide, "optimizer.num_steps=8")
    assert (summary.step, summary.resumed_from) == (8, 6)
    assert losses(parts)[8] < losses(parts)[1]


def test_when_one_rank_fails_both_end_and_its_message_is_seen(tmp_path):
    first = start(tmp_path, "--world-size", "2")
    second = start(tmp_path, "--world-size", "2", "--rank", "1", "--fail-at", "8")
    (status, _), (failed_status, said) = finish(first), finish(second)

    assert status != 0
    assert failed_status != 0
    assert "block of sample 8 does not decode" in said
    assert json.loads((tmp_path / "account-rank1.json").read_text())["num_steps"] == 2

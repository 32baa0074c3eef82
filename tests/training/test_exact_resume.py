"""A run that is stopped, killed or moved goes on as if nothing had happened, bit for bit."""

import contextlib
import json
import multiprocessing
import os
import random
import resource
import signal

import fake_loader
import pytest
import torch
from fake_loader import Crash, FakeLoader, crash_at, losses, open_fake, small_config
from toy import CPU, SINGLE, on_ranks

from dataplane import Topology
from dataplane.profile import StepAccount
from dataplane.storage import open_store
from training import GPT, Checkpoints, Trainer, run
from training.objective import NextToken
from training.optimizer import build_optimizer
from training.parallel import Sharing, share
from training.runs import build_recipe
from training.signals import StopRequest

PRELOAD = ["torch._dynamo", "training.runs"]  # importing these takes longer than the runs do
SAMPLES_PER_BATCH = 2


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


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile's own, of torch 2.13
@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer.accumulation=2", "optimizer.clip_norm=0.1", "optimizer.clip_value=0.01"],
        ["precision=bf16", "optimizer.schedule=plateau", "optimizer.step_every=1", "optimizer.patience=1"],
        ["precision=fp16", "optimizer.name=sgd", "model.recompute=true"],
        ["optimizer.name=adam", "optimizer.ema_decay=0.9", "optimizer.schedule=linear", "compile=eager"],
    ],
)
def test_resume_is_exact_in_every_way_of_training(overrides, tmp_path):
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

    with pytest.raises(ValueError, match=r"holds a checkpoint of step 6; set checkpoint.resume=true"):
        train(tmp_path, "checkpoint.resume=false")


class Run:
    """A run in a process of its own, which asks before it takes each batch."""

    def __init__(self, folder, *overrides, full_at=None):
        multiprocessing.set_forkserver_preload(PRELOAD)
        context = multiprocessing.get_context("forkserver")
        self.connection, other_end = context.Pipe()
        self.output = folder / "output.txt"
        self.process = context.Process(target=controlled, args=(other_end, self.output, folder, overrides, full_at))
        self.process.start()
        other_end.close()

    def let(self, num_batches):
        """Allow so many batches; returns when the process asks for the next one."""
        for _ in range(num_batches):
            self.connection.recv()
            self.connection.send("go on")
        self.connection.poll(60)

    def finish(self):
        """Allow everything; the exit status and what was said."""
        with contextlib.suppress(EOFError, ConnectionError):
            self.let(10**6)
        self.process.join(60)
        return self.process.exitcode, self.output.read_text()


def controlled(connection, output, folder, overrides, full_at):
    """Train as one rank, asking through the connection; everything that is said goes to a file."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

    def ask(consumed):
        if consumed == full_at:  # a real limit of the system: no file may grow larger, as if the disk were full
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
        connection.send(consumed)
        connection.recv()

    run(small_config(folder, *overrides), open_loader=open_fake(on_batch=ask))


def test_killing_the_process_three_times_changes_nothing(tmp_path, uninterrupted):
    for num_batches in (3, 1, 0):
        killed = Run(tmp_path)
        killed.let(num_batches)
        killed.process.kill()
        killed.process.join()
    status, said = Run(tmp_path).finish()

    assert status == 0, said
    assert losses(tmp_path) == uninterrupted


EVERY_STEP = ["checkpoint.every_steps=1", "optimizer.num_steps=60"]


def newest_checkpoint(folder):
    checkpoints = Checkpoints(open_store(str(folder / "checkpoints")), keep=1, group=SINGLE)
    return max(checkpoints._steps(), default=0)


def last_confirmed(folder):
    """The newest checkpoint that the run's own log calls complete."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return max((json.loads(line)["checkpoint"] or 0 for line in lines if line.endswith("\n")), default=0)


def test_twenty_kills_at_random_moments_and_a_full_disk_change_nothing(tmp_path):
    train(tmp_path / "whole", *EVERY_STEP)
    folder, moments = tmp_path / "killed", random.Random(1)
    folder.mkdir()
    for attempt in range(21):
        consumed = newest_checkpoint(folder) * SAMPLES_PER_BATCH
        killed = Run(folder, *EVERY_STEP, full_at=consumed + SAMPLES_PER_BATCH if attempt == 10 else None)
        if attempt == 10:
            status, said = killed.finish()
            assert status == 1
            assert "could not save the checkpoint of step" in said
            assert "File too large" in said
        else:
            killed.let(moments.randint(0, 4))
            killed.process.join(moments.uniform(0, 0.03))  # in the middle of whatever it does
            killed.process.kill()
            killed.process.join()
        assert newest_checkpoint(folder) >= last_confirmed(folder)
    status, said = Run(folder, *EVERY_STEP).finish()

    assert status == 0, said
    assert losses(folder) == losses(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(number, tmp_path, uninterrupted):
    stopped = Run(tmp_path)
    stopped.let(2)
    os.kill(stopped.process.pid, number)
    status, said = stopped.finish()

    assert status == 0, said
    assert f"stopped by {number.name} after step 3 of 6" in said
    assert json.loads((tmp_path / "account-rank0.json").read_text())["num_steps"] == 3
    assert train(tmp_path).resumed_from == 3
    assert losses(tmp_path) == uninterrupted


def test_three_ranks_resume_exactly_and_one_goes_on_alone(tmp_path):
    """With three ranks, the order of a sum shows in its last bit; the width fills several buckets."""
    for whole, resumed in on_ranks(3, steps_2_to_4_twice, tmp_path, tmp_path / "run/checkpoints"):
        assert resumed == whole

    summary = train(tmp_path / "run", "model.width=64")
    assert (summary.step, summary.resumed_from) == (6, 2)


def steps_2_to_4_twice(group, folder):
    """The weights of four steps in one go, and of the last two of them from the checkpoint between."""
    config = small_config(folder.parent, "model.width=64")
    checkpoints = Checkpoints(open_store(str(folder)), keep=9, group=group)

    def build():
        torch.manual_seed(0)
        model = GPT(config.model.gpt(vocab_size=fake_loader.VOCAB_SIZE, context=fake_loader.WIDTH))
        return model, Trainer(
            model=share(model, Sharing(), group.layout, CPU),
            optimizer=build_optimizer(model, config.optimizer),
            objective=NextToken(),
            loader=FakeLoader(Topology(rank=group.rank, world_size=group.world_size)),
            recipe=build_recipe(config, CPU),
            group=group,
            device=CPU,
            account=StepAccount(),
        )

    model, trainer = build()
    trainer.train(num_steps=2, stop=StopRequest(), checkpoints=checkpoints)
    trainer.train(num_steps=4, stop=StopRequest())
    again, trainer = build()
    trainer.resume(checkpoints, 2)
    trainer.train(num_steps=4, stop=StopRequest())
    return model.embedding.weight.tolist(), again.embedding.weight.tolist()

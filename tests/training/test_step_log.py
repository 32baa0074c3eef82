"""Every step is a line of JSON; people get few lines, and no control characters in a file."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from training.log import StepLog, StepMetrics, forget_after

METRICS = StepMetrics(
    step=1,
    loss=2.5,
    lr=1e-3,
    grad_norm=0.5,
    tokens=100,
    tokens_per_second=1000.0,
    data_wait=0.01,
    epoch=0,
    consumed=8,
    skipped=0,
    loss_scale=1.0,
    checkpoint=None,
)


def written(path, num_steps, *, every_steps=1, seconds_per_step=0.1, **console):
    """What people see of a run of so many steps."""
    out = io.StringIO()
    clock = iter(range(10**6))
    with StepLog(
        path,
        console=Console(file=out, width=120, **console),
        every_steps=every_steps,
        num_steps=num_steps,
        now=lambda: next(clock) * seconds_per_step,
    ) as log:
        for step in range(1, num_steps + 1):
            log.write(replace(METRICS, step=step))
    return out.getvalue()


def test_a_redirected_run_prints_few_plain_lines_and_every_step_as_json(tmp_path):
    shown = written(tmp_path / "metrics.jsonl", 600)  # about a minute
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]

    assert steps == list(range(1, 601))
    assert 5 < shown.count("\n") < 50
    assert "\x1b" not in shown
    assert "step 600/600  loss 2.5000" in shown.splitlines()[-1]


def test_a_terminal_shows_one_line_that_changes(tmp_path):
    shown = written(tmp_path / "metrics.jsonl", 20, force_terminal=True)

    assert "step 20/20" in shown
    assert shown.count("\n") <= 2


@pytest.mark.parametrize(("step", "kept"), [(0, 0), (3, 3), (9, 5)])
def test_steps_that_will_be_made_again_are_forgotten(step, kept, tmp_path):
    path = tmp_path / "metrics.jsonl"
    written(path, 5)
    with path.open("a") as file:
        file.write('{"step": 6, "lo')  # cut short by a kill

    forget_after(path, step)

    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(1, kept + 1))


def test_a_run_that_has_no_metrics_yet_has_nothing_to_forget(tmp_path):
    forget_after(tmp_path / "metrics.jsonl", 5)

    assert not list(tmp_path.iterdir())

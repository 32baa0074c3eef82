"""What every engine promises: each task once, the first failure in order, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dataplane.errors import WorkerDiedError
from preprocess.engines import Inline, Processes, Ray
from tests.preprocess.engine_steps import Doing, Number
from tests.processes import is_alive, wait_until

ENGINES = {
    "inline": Inline(),
    "one process": Processes(1, 1),
    "three processes": Processes(3, 1),
    "ray": Ray(workers=2),
}
TASKS = [Number(number) for number in range(7)]


def outcomes_of(engine, step, tasks):
    with engine.session() as session:
        return list(session.run(step, tasks, silent))


def silent(task, counts):
    assert counts == {"input_bytes": 1}


@pytest.fixture(params=ENGINES)
def engine(request):
    return ENGINES[request.param]


def children():
    """Process ids of the processes that this one started and that have not been waited for."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(autouse=True)
def no_process_is_left():
    before = children()
    yield
    assert children() <= before


def test_each_task_is_done_once(engine):
    outcomes = outcomes_of(engine, Doing({}), TASKS)

    assert sorted((number, outcome.result["square"]) for number, outcome in outcomes) == [(n, n * n) for n in range(7)]


def test_no_tasks_are_no_work(engine):
    assert outcomes_of(engine, Doing({}), []) == []


def test_the_first_failure_in_order_is_raised(engine, tmp_path):
    deeds = {2: "go", 1: "fail late"} if engine is ENGINES["three processes"] else {1: "fail", 2: "fail"}

    with pytest.raises(ValueError, match="task 1 fails"):
        outcomes_of(engine, Doing(deeds, str(tmp_path)), TASKS)


def test_an_error_of_a_worker_says_where_it_happened():
    with pytest.raises(ValueError, match="task 3 fails") as caught:
        outcomes_of(Processes(2, 1), Doing({3: "fail"}), TASKS)

    assert "engine_steps.py" in str(caught.value.__cause__)


def test_an_error_that_cannot_travel_is_told_in_words():
    with pytest.raises(RuntimeError, match="Unportable"):
        outcomes_of(Processes(2, 1), Doing({0: "odd"}), TASKS)


def test_a_killed_worker_is_named_with_the_input_it_was_at():
    with pytest.raises(WorkerDiedError, match=r"worker \d .*SIGKILL.* while it was at input number 4"):
        outcomes_of(Processes(2, 1), Doing({4: "die"}), TASKS)


def test_whoever_stops_taking_outcomes_leaves_no_worker(tmp_path):
    with Processes(2, 1).session() as session:
        run = session.run(Doing({1: "hang"}, str(tmp_path)), TASKS, silent)
        assert next(run)[0] != 1
        run.close()


def test_a_session_goes_from_step_to_step(engine):
    with engine.session() as session:
        first = dict(session.run(Doing({}), TASKS, silent))
        second = dict(session.run(Doing({}, name="again"), TASKS[:3], silent))

    assert (len(first), len(second)) == (7, 3)


def test_work_is_done_here_or_elsewhere():
    here, there = (outcomes_of(engine, Doing({}), TASKS[:1]) for engine in (Inline(), Processes(1, 1)))

    assert [here[0][1].result["pid"] == os.getpid(), there[0][1].result["pid"] == os.getpid()] == [True, False]


def test_workers_end_when_their_parent_is_killed(tmp_path):
    program = textwrap.dedent(f"""
        from preprocess.engines import Processes
        from tests.preprocess.engine_steps import Doing, Number
        step = Doing({{0: "hang", 1: "hang"}}, {str(tmp_path)!r})
        with Processes(2, 1).session() as session:
            list(session.run(step, [Number(0), Number(1)], lambda task, counts: None))
    """)
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    wait_until(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]

    parent.send_signal(signal.SIGKILL)
    parent.wait()

    wait_until(lambda: not any(map(is_alive, pids)))


def test_a_script_needs_no_guard_around_its_main_part(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        from preprocess.engines import Processes
        from tests.preprocess.engine_steps import Doing, Number
        with Processes(2, 1).session() as session:
            outcomes = session.run(Doing({}), [Number(0), Number(1)], lambda task, counts: None)
            print(sorted(number for number, _ in outcomes))
    """)
    )
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])

    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=60
    )

    assert done.stdout == "[0, 1]\n", done.stderr

"""A Ray cluster, or a local one that is started for the run.

Inputs, destination and the tokenizer must be reachable from every node under the same URLs, and this package and the
user's modules importable there.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dataplane.errors import MissingExtraError, WorkerDiedError
from preprocess.engines.base import OnCounts, Outcome, Session, Step, Task
from preprocess.engines.task_queue import TaskQueue
from preprocess.engines.worker import Done, Failed, failure


class Ray:
    """Runs tasks in actors of one CPU each."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        """`address` as `ray.init` has it; None joins the cluster of the environment, else starts a local one.

        `workers` None takes every CPU of the cluster.
        """
        self._address = address
        self._workers = workers

    @contextmanager
    def session(self) -> Iterator[Session]:
        ray = _import_ray()
        started = not ray.is_initialized()
        if started:
            ray.init(address=self._address, log_to_driver=False, include_dashboard=False)
        try:
            yield _Cluster(ray, self._workers or int(ray.cluster_resources().get("CPU", 1)))
        finally:
            if started:
                ray.shutdown()


class _Cluster:
    """The cluster while a run uses it."""

    def __init__(self, ray: Any, workers: int) -> None:  # Any: the optional package
        self._ray = ray
        self._workers = workers

    def run(self, step: Step, tasks: Sequence[Task], on_counts: OnCounts) -> Iterator[tuple[int, Outcome]]:
        ray = self._ray
        actor = ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        shared = ray.put(step)
        actors = [actor.remote(shared) for _ in range(min(self._workers, len(tasks)))]
        idle = list(actors)
        waiting = TaskQueue(tasks)
        running: dict[Any, tuple[Task, Any]] = {}  # Any: Ray's references and handles
        try:
            while waiting or running:
                while waiting and idle:
                    handle, task = idle.pop(), waiting.take()
                    running[handle.run.remote(task)] = (task, handle)
                (reference, *_), _ = ray.wait(list(running), num_returns=1)
                task, handle = running.pop(reference)
                match _answer(ray, reference, task):
                    case Failed() as failed:
                        waiting.fail(task, failed)
                    case Done(outcome):
                        yield task.number, outcome
                idle.append(handle)
        finally:
            for each in actors:
                ray.kill(each)
        waiting.check()


class _Actor:
    """A step opened in a process of the cluster."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._running: Any = None  # Any: opened with the first task, so that a failure has a task

    def run(self, task: Task) -> Done | Failed:
        try:
            if self._running is None:
                self._running = self._step.open()
            return Done(self._running.run(task))
        except Exception as error:
            return failure(error)


def _answer(ray: Any, reference: Any, task: Task) -> Done | Failed:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise WorkerDiedError(
            f"a Ray worker ended while it was at {task} ({reason}); "
            "finished work is kept, run the same command again to go on"
        ) from None


def _import_ray() -> Any:  # Any: Ray is optional
    try:
        import ray
    except ImportError:
        raise MissingExtraError("the ray engine needs the package ray; install dataplane[ray]") from None
    return ray

"""Worker processes of this machine.

They are plain child programs at the ends of socket pairs: no fork of a process that has threads, no guard that a
script would need around its main part, nothing that outlives the run. A worker ends by itself, at once, when its parent
is gone.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import cast

from dataplane.errors import WorkerDiedError
from preprocess.engines.base import OnCounts, Outcome, Session, Step, Task
from preprocess.engines.task_queue import TaskQueue
from preprocess.engines.worker import Begin, Counted, Done, Failed, Message

# The child imports what this process could import, whatever it was started with.
_PROGRAM = """\
import json, sys
descriptor, threads, path = sys.argv[1:]
sys.path[:] = json.loads(path)
from preprocess.engines.worker import main
main(int(descriptor), int(threads))
"""
# A worker that was told to end needs no longer than this to do so; then it is killed.
_SECONDS_TO_END = 5.0


class Processes:
    """Runs tasks in `workers` processes, each with `threads` native threads; None shares out the cores."""

    def __init__(self, workers: int | None = None, threads: int | None = None) -> None:
        for name, value in (("workers", workers), ("threads", threads)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._workers = workers or available_cores()
        self._threads = threads

    @contextmanager
    def session(self) -> Iterator[Session]:
        pool = _Pool(self._workers, self._threads)
        try:
            yield pool
        finally:
            pool.stop()


class _Pool:
    """Workers, started when there is a task for them, and kept from step to step."""

    def __init__(self, most: int, threads: int | None) -> None:
        self._most = most
        self._threads = threads
        self._workers: list[_Worker] = []

    def run(self, step: Step, tasks: Sequence[Task], on_counts: OnCounts) -> Iterator[tuple[int, Outcome]]:
        waiting = TaskQueue(tasks)
        try:
            for worker in self._for_tasks(len(tasks)):
                worker.begin(step)
                worker.give(waiting.take())
            while busy := {worker.connection: worker for worker in self._workers if worker.task is not None}:
                for connection in wait(list(busy)):
                    worker = busy[cast("Connection", connection)]
                    task = worker.task
                    assert task is not None
                    match worker.receive():
                        case Counted(counts):
                            on_counts(task.number, counts)
                            continue
                        case Failed() as failed:
                            waiting.fail(task, failed)
                            worker.task = None
                        case Done(outcome):
                            worker.task = None
                            yield task.number, outcome
                    if waiting:
                        worker.give(waiting.take())
            waiting.check()
        finally:
            self._stop([worker for worker in self._workers if worker.task is not None])

    def stop(self) -> None:
        """Ends all workers."""
        self._stop(self._workers)

    def _for_tasks(self, num_tasks: int) -> "list[_Worker]":
        count = min(self._most, num_tasks)
        threads = self._threads or max(1, available_cores() // max(1, count))
        while len(self._workers) < count:
            self._workers.append(_Worker(len(self._workers) + 1, threads))
        return self._workers[:count]

    def _stop(self, workers: "list[_Worker]") -> None:
        for worker in workers:
            worker.stop()
        self._workers = [worker for worker in self._workers if worker not in workers]


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


class _Worker:
    """One child process, and the task that it is at."""

    def __init__(self, number: int, threads: int) -> None:
        self.number = number
        self.task: Task | None = None
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), str(threads), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_environment(threads)},
            )
        self.connection = Connection(ours.detach())

    def begin(self, step: Step) -> None:
        """The tasks given from now on are of this step."""
        self._send(Begin(step))

    def give(self, task: Task) -> None:
        self.task = task
        self._send(task)

    def receive(self) -> Message:
        """What the worker has to say. Raises WorkerDiedError if it is gone."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            raise self._death() from None

    def stop(self) -> None:
        """Ends the process, whatever it is at."""
        self.connection.close()
        if self.task is not None:
            self._process.kill()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: object) -> None:
        try:
            self.connection.send(message)
        except ConnectionError:
            raise self._death() from None

    def _death(self) -> WorkerDiedError:
        try:
            status = self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return WorkerDiedError(f"worker {self.number} closed its connection{self._at()}")
        how = f"with status {status}"
        if status < 0:
            how = f"by signal {-status} ({signal.Signals(-status).name})"
        hint = "; a machine out of memory kills so, try fewer --workers" if status == -signal.SIGKILL else ""
        return WorkerDiedError(
            f"worker {self.number} (process {self._process.pid}) was ended {how}{self._at()}{hint}; "
            "finished work is kept, run the same command again to go on"
        )

    def _at(self) -> str:
        return "" if self.task is None else f" while it was at {self.task}"


def _environment(threads: int) -> dict[str, str]:
    """What makes native libraries use so many threads; they read it when they are loaded."""
    return {
        "RAYON_NUM_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
    }

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
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait

from dataplane.errors import WorkerDiedError
from preprocess.engines.base import OnCounts, Outcome, Step, Task
from preprocess.engines.worker import Counted, Done, Failed, Message, WorkerTraceback

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
    """Runs tasks in `workers` processes, each with `threads` native threads."""

    def __init__(self, workers: int, threads: int) -> None:
        self._num_workers = workers
        self._threads = threads

    def run(self, step: Step, tasks: Sequence[Task], on_counts: OnCounts) -> Iterator[tuple[int, Outcome]]:
        waiting = deque(tasks)
        workers: list[_Worker] = []
        failures: dict[int, BaseException] = {}
        try:
            for number in range(min(self._num_workers, len(tasks))):
                workers.append(_Worker(number + 1, step, self._threads))
                workers[-1].give(waiting.popleft())
            while busy := [worker for worker in workers if worker.task is not None]:
                for connection in wait([worker.connection for worker in busy]):
                    worker = next(each for each in busy if each.connection is connection)
                    task = worker.task
                    assert task is not None
                    match worker.receive():
                        case Counted(counts):
                            on_counts(task.number, counts)
                            continue
                        case Failed(error, trace):
                            error.__cause__ = WorkerTraceback(trace)
                            failures[task.number] = error
                            # Whichever task fails first on the clock, the first in order is reported.
                            waiting = deque(each for each in waiting if each.number < task.number)
                            worker.task = None
                        case Done(outcome):
                            worker.task = None
                            yield task.number, outcome
                    if waiting:
                        worker.give(waiting.popleft())
            if failures:
                raise failures[min(failures)]
        finally:
            for worker in workers:
                worker.stop()


class _Worker:
    """One child process, and the task that it is at."""

    def __init__(self, number: int, step: Step, threads: int) -> None:
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
        self._send(step)

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

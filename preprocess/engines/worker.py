"""The program of a worker process: takes tasks from its parent until the parent has no more, or is gone."""

import contextlib
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from preprocess.engines.base import Counts, Outcome, Running, Step
from preprocess.engines.ticker import ticking


@dataclass(frozen=True, slots=True)
class Begin:
    """The tasks that follow are of this step."""

    step: Step


@dataclass(frozen=True, slots=True)
class Counted:
    """What the task has counted so far."""

    counts: Counts


@dataclass(frozen=True, slots=True)
class Done:
    """The task is finished."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Failed:
    """The task raised."""

    error: Exception
    traceback: str
    """As the worker would have printed it."""


Message = Counted | Done | Failed


class WorkerTraceback(Exception):  # a cause to show, never raised
    """Where an error happened, in the process in which it did."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def main(descriptor: int, threads: int) -> None:
    """Serves the parent at the other end of a socket; native code uses `threads` threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    pa.set_cpu_count(threads)
    connection = Connection(descriptor)
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()  # Any: Begin, or a task of the step that has begun
    threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
    sending = threading.Lock()

    def send(message: Message) -> None:
        with sending, contextlib.suppress(ConnectionError):
            connection.send(message)

    step: Step | None = None
    running: Running | None = None
    while True:
        task = received.get()
        if isinstance(task, Begin):
            step, running = task.step, None
            continue
        assert step is not None
        try:
            if running is None:
                running = step.open()
            with ticking(partial(_report, send, running)):
                outcome = running.run(task)
        except Exception as error:
            send(failure(error))
        else:
            send(Done(outcome))


def _report(send: Callable[[Message], None], running: Running) -> None:
    send(Counted(running.counts()))


def failure(error: Exception) -> Failed:
    """The error as it can travel to another process."""
    trace = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        # Some errors of libraries hold handles, or cannot be made anew from their arguments.
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return Failed(error, trace)


def _receive(connection: Connection, received: queue.SimpleQueue[Any]) -> None:
    while True:
        try:
            received.put(connection.recv())
        except (EOFError, OSError):
            # Nobody will take what is being made: end at once, whatever the other threads are at.
            os._exit(0)

"""Steps for tests of engines: values that worker processes can import."""

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from preprocess.engines import Outcome


@dataclass(frozen=True)
class Number:
    """A task."""

    number: int

    def __str__(self):
        return f"input number {self.number}"


@dataclass(frozen=True)
class Doing:
    """A step whose tasks do what `deeds` says for their number: nothing, or die, fail, or wait."""

    deeds: dict
    folder: str = ""
    name: str = "doing"

    def open(self):
        return _Doing(self.deeds, Path(self.folder))


class _Doing:
    def __init__(self, deeds, folder):
        self.deeds = deeds
        self.folder = folder

    def counts(self):
        return {"input_bytes": 1}

    def run(self, task):
        match self.deeds.get(task.number):
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "fail":
                raise ValueError(f"task {task.number} fails")
            case "fail late":
                wait_for(self.folder / "go")
                raise ValueError(f"task {task.number} fails")
            case "go":
                (self.folder / "go").touch()
                raise ValueError(f"task {task.number} fails")
            case "odd":
                raise Unportable(threading.Lock())
            case "hang":
                (self.folder / f"pid-{os.getpid()}").touch()
                threading.Event().wait()
        return Outcome({"square": task.number**2, "pid": os.getpid()}, {"input_bytes": 2})


class Unportable(Exception):
    """An error that no pickle holds."""


def wait_for(path):
    """Until a file is there."""
    while not path.exists():
        time.sleep(0.01)

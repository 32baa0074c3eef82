"""What every engine can do: run the tasks of a step, wherever, and hand back what each of them made."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

Counts = Mapping[str, float]
OnCounts = Callable[[int, Counts], None]
"""Called with a task's number and what it counted so far; may be called often, or never."""


class Task(Protocol):
    """A part of a step's work; `str` of it names the inputs, for people. Travels to other processes."""

    @property
    def number(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task made, once all of it is durable."""

    result: Mapping[str, Any]  # Any: JSON, as the step has it
    counts: Counts
    peak_bytes: int = 0
    """Most memory that the process which ran it ever held."""


class Running(Protocol):
    """A step in the process that runs its tasks, one after the other."""

    def run(self, task: Any) -> Outcome:  # Any: the step's own kind of task
        """Does the task; what it makes is durable when this returns."""
        ...

    def counts(self) -> Counts:
        """Of the task that runs now. Called from another thread."""
        ...


class Step(Protocol):
    """What to do with each task. A value that travels to other processes."""

    @property
    def name(self) -> str:
        """Another one for each step of a run."""
        ...

    def open(self) -> Running:
        """Loads what the tasks need: tokenizers, functions, stores. Once for each process."""
        ...


class Session(Protocol):
    """Workers that are there for the steps of a run."""

    def run(self, step: Step, tasks: Sequence[Task], on_counts: OnCounts) -> Iterator[tuple[int, Outcome]]:
        """Number and outcome of each task as they finish, in any order.

        Raises what a task raised, the first of them in the order of the tasks; no task runs any more then, nor when
        the iterator was closed.
        """
        ...


class Engine(Protocol):
    """Where tasks run. The outcome of a task does not depend on it."""

    def session(self) -> AbstractContextManager[Session]:
        """Workers for one run, one step after the other; at the end of the block none of them is left."""
        ...

"""RUN: tasks on this process, on processes of this machine, or on a cluster; the outcome is the same."""

from preprocess.engines.base import Counts, Engine, OnCounts, Outcome, Running, Session, Step, Task
from preprocess.engines.inline import Inline
from preprocess.engines.processes import Processes, available_cores
from preprocess.engines.ray_cluster import Ray

__all__ = [
    "Counts",
    "Engine",
    "Inline",
    "OnCounts",
    "Outcome",
    "Processes",
    "Ray",
    "Running",
    "Session",
    "Step",
    "Task",
    "available_cores",
]

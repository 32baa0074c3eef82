"""What every benchmark shares: alternating repeats, medians, the machine, JSON lines and a table."""

import contextlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table


def machine() -> dict[str, Any]:
    """What a reader must know to compare figures."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


@contextmanager
def pinned_to_one_core() -> Iterator[None]:
    """Every thread of this process, those started inside too, shares one core."""
    before = os.sched_getaffinity(0)
    _pin_all_threads({min(before)})
    try:
        yield
    finally:
        _pin_all_threads(before)


def _pin_all_threads(cores: set[int]) -> None:
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # a thread may end meanwhile
            os.sched_setaffinity(int(name), cores)


def alternate(contestants: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, list[float]]:
    """Each contestant's figures, measured in turn: the machine's moods hit all alike. A first round is dropped."""
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, measure in contestants.items():
            figure = measure()
            if number > 0:
                figures[name].append(figure)
    return figures


def report(question: str, figures: Mapping[str, list[float]], *, unit: str, limit: str, **facts: Any) -> None:
    """One JSON line on stdout, a table on stderr: median, range, and the ratio to the contestant named `limit`."""
    bound = statistics.median(figures[limit])
    rows = {
        name: {
            "median": round(statistics.median(values), 3),
            "least": round(min(values), 3),
            "most": round(max(values), 3),
            "ratio": round(statistics.median(values) / bound, 3),
        }
        for name, values in figures.items()
    }
    print(json.dumps({"question": question, "unit": unit, "limit": limit, **facts, "figures": rows, **machine()}))
    table = Table(title=f"{question} ({unit})")
    for heading in ("", "median", "least", "most", f"of {limit}"):
        table.add_column(heading)
    for name, row in rows.items():
        table.add_row(name, str(row["median"]), str(row["least"]), str(row["most"]), f"{row['ratio']:.0%}")
    Console(file=sys.stderr).print(table)

"""The step account for people: a table of shares, and a line that says whether data is late."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dataplane.profile.account import PARTS, Account, JobAccount

# The bands of stall diagnostics (under 5 % healthy, over 20 % input bound; DS-Analyzer and the
# TensorFlow profiler agree on them).
HEALTHY_BELOW = 0.05
BOUND_ABOVE = 0.20

NS_PER_MS = 1e6
NS_PER_S = 1e9


def read_accounts(folder: Path) -> JobAccount:
    """The accounts that the ranks of a run left in its folder, as `account-rank<r>.json`.

    Raises:
        ValueError: there is none, or a file is not an account; the message names it.
    """
    accounts = []
    for path in sorted(folder.glob("account-rank*.json")):
        try:
            accounts.append(Account.from_dict(json.loads(path.read_text())))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a step account: {error}") from error
    if not accounts:
        raise ValueError(f"{folder} has no account-rank*.json; give the folder of a training run")
    return JobAccount.merge(accounts)


def print_report(job: JobAccount, console: Console) -> None:
    """Print the table and the verdict."""
    console.print(table(job))
    console.print(verdict(job))


def table(job: JobAccount) -> Table:
    """One row per part: share and seconds (mean of ranks), per-step times (of the slowest rank)."""
    several = len(job.ranks) > 1
    longest = max(job.ranks, key=lambda account: account.wall.total_ns)
    title = f"{longest.num_steps} steps in {longest.wall.total_ns / NS_PER_S:.1f} s"
    view = Table(title=f"{title} on {len(job.ranks)} ranks" if several else title)
    view.add_column("part")
    for heading in ("share", "seconds", "p50 ms", "p95 ms"):
        view.add_column(heading, justify="right")
    if several:
        view.add_column("most", justify="right")
    for part in PARTS:
        view.add_row(*_row(job, part, several=several))
    return view


def verdict(job: JobAccount) -> str:
    """One line: how much of the time the job waited for data, and what that means."""
    share = job.share("data_wait")
    if share < HEALTHY_BELOW:
        meaning = f"data keeps up; most time goes into {_largest_part(job)}"
    elif share <= BOUND_ABOVE:
        meaning = "data is late at times; look at its p95, and at the cache and the read-ahead"
    else:
        meaning = "data limits this run; a faster model or accelerator would only wait longer"
    line = f"waiting for data {share:.1%} of the time: {meaning}"
    worst = job.worst("data_wait")
    if len(job.ranks) > 1 and worst.share("data_wait") > 2 * share:
        line += f" (rank {worst.rank} waits {worst.share('data_wait'):.1%}, the others wait for it)"
    return line


def _largest_part(job: JobAccount) -> str:
    return max((part for part in PARTS if part != "data_wait"), key=job.share)


def _row(job: JobAccount, part: str, *, several: bool) -> list[str]:
    num_ranks = len(job.ranks)
    times = [account.parts[part] for account in job.ranks]
    row = [
        part,
        f"{job.share(part):.1%}",
        f"{sum(time.total_ns for time in times) / num_ranks / NS_PER_S:.2f}",
        f"{max(time.p50_ns for time in times) / NS_PER_MS:.2f}",
        f"{max(time.p95_ns for time in times) / NS_PER_MS:.2f}",
    ]
    if several:
        worst = job.worst(part)
        row.append(f"rank {worst.rank}: {worst.share(part):.1%}")
    return row

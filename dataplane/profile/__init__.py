"""ACCOUNT: where the time of a training loop goes, and a report that says it in one line."""

from dataplane.profile.account import (
    PARTS,
    Account,
    Clock,
    HostClock,
    JobAccount,
    PartTime,
    StepAccount,
)
from dataplane.profile.report import print_report, read_accounts, verdict

__all__ = [
    "PARTS",
    "Account",
    "Clock",
    "HostClock",
    "JobAccount",
    "PartTime",
    "StepAccount",
    "print_report",
    "read_accounts",
    "verdict",
]

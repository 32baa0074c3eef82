"""What the report tells people."""

import io
import json

import pytest
from rich.console import Console

from dataplane.profile import PARTS, Account, JobAccount, PartTime, print_report, read_accounts, verdict


def account(rank=0, **shares):
    """An account of ten steps in ten seconds, with the shares of its parts in percent."""
    shares["other"] = 100 - sum(shares.values())
    times = {part: shares.get(part, 0) * 10**8 for part in PARTS}
    return Account(
        rank=rank,
        num_steps=10,
        wall=PartTime(total_ns=10**10, p50_ns=10**9, p95_ns=10**9),
        parts={part: PartTime(total_ns=ns, p50_ns=ns // 10, p95_ns=ns // 10) for part, ns in times.items()},
    )


@pytest.mark.parametrize(
    ("wait", "meaning"), [(0, "data keeps up"), (4, "data keeps up"), (12, "late at times"), (60, "data limits")]
)
def test_the_verdict_gives_the_share_and_its_meaning(wait, meaning):
    line = verdict(JobAccount.merge([account(data_wait=wait)]))

    assert f"waiting for data {wait}.0% of the time" in line
    assert meaning in line


def test_the_verdict_names_a_rank_that_keeps_the_others_waiting():
    job = JobAccount.merge([account(0), account(1), account(2, data_wait=30)])

    assert "rank 2 waits 30.0%" in verdict(job)


def test_the_report_is_one_row_per_part_and_the_verdict(tmp_path):
    for rank in (0, 1):
        text = json.dumps(account(rank, forward=20, backward=40).to_dict())
        (tmp_path / f"account-rank{rank}.json").write_text(text)
    console = Console(file=io.StringIO(), width=100)

    print_report(read_accounts(tmp_path), console)

    shown = console.file.getvalue()
    assert all(part in shown for part in PARTS)
    assert "10 steps in 10.0 s on 2 ranks" in shown
    assert shown.endswith("most time goes into backward\n")


def test_a_folder_without_accounts_and_a_file_that_is_none_are_named(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} has no account-rank"):
        read_accounts(tmp_path)
    (tmp_path / "account-rank0.json").write_text("{}")
    with pytest.raises(ValueError, match=r"account-rank0.json is not a step account"):
        read_accounts(tmp_path)

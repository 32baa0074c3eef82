"""The step account adds up, and charges each delay to the part that it lay in."""

import json

import pytest

from dataplane.profile import PARTS, Account, JobAccount, StepAccount

MS = 1_000_000
PHASES = PARTS[1:-1]


class FakeClock:
    """A host clock that stands still until it is told how long something took."""

    def __init__(self):
        self.now = 0

    def spend(self, milliseconds):
        self.now += milliseconds * MS

    def mark(self):
        return self.now

    def reached(self, mark):
        return mark <= self.now

    def elapsed_ns(self, start, stop):
        return stop - start


class FakeDevice(FakeClock):
    """A device that works through a queue of launched tasks, while the host goes on."""

    def __init__(self):
        super().__init__()
        self.idle_from = 0

    def launch(self, milliseconds):
        self.idle_from = max(self.idle_from, self.now) + milliseconds * MS

    def mark(self):
        return max(self.idle_from, self.now)


def batches(clock, *waits):
    for wait in waits:
        clock.spend(wait)
        yield wait


@pytest.mark.parametrize("part", PHASES)
def test_a_delay_lands_in_its_part(part):
    clock = FakeClock()
    account = StepAccount(clock=clock)
    for _ in account.steps(batches(clock, 3, 5)):
        clock.spend(1)
        with account.phase(part):
            clock.spend(20)

    spent = {name: times.total_ns // MS for name, times in account.summary().parts.items()}

    assert spent == dict.fromkeys(PARTS, 0) | {"data_wait": 8, "other": 2, part: 40}


@pytest.mark.parametrize(("wait", "work", "share"), [(0, 100, 0.0), (100, 10, 10 / 11), (50, 50, 0.5)])
def test_the_waiting_share_is_that_of_the_loop(wait, work, share):
    clock = FakeClock()
    account = StepAccount(clock=clock)
    for _ in account.steps(batches(clock, *[wait] * 10)):
        with account.phase("forward"):
            clock.spend(work)

    assert account.summary().share("data_wait") == pytest.approx(share)


@pytest.mark.parametrize(
    ("wait", "backlog", "exposed"), [(0, 100, 0), (100, 10, 90), (50, 50, 0), (50, 20, 30), (10, 0, 10)]
)
def test_a_wait_that_the_device_spends_working_is_not_charged(wait, backlog, exposed):
    device = FakeDevice()
    account = StepAccount(clock=device)
    for _ in account.steps(batches(device, *[wait] * 10)):
        with account.phase("forward"):
            device.launch(backlog)
    device.spend(backlog)
    parts = account.summary().parts

    first_wait = wait  # before it nothing was launched
    assert parts["data_wait"].total_ns == (first_wait + 9 * exposed) * MS
    assert parts["forward"].total_ns == 10 * backlog * MS


def test_steps_are_added_up_only_when_the_device_has_passed_them():
    device = FakeDevice()
    account = StepAccount(clock=device)
    for _ in account.steps(batches(device, 0, 0, 0)):
        with account.phase("backward"):
            device.launch(40)
        assert account.progress()["backward"] == 0  # asking does not wait either

    assert account.summary().parts["backward"].total_ns == 120 * MS


def test_parts_add_up_to_the_wall_time_whatever_ends_the_loop():
    clock = FakeClock()
    account = StepAccount(clock=clock)

    def loop():
        for wait in account.steps(batches(clock, 1, 2, 3, 4)):
            with account.phase("optimizer"):
                clock.spend(7)
                if wait == 3:
                    raise KeyError

    with pytest.raises(KeyError):
        loop()
    summary = account.summary()

    assert summary.num_steps == 3
    assert summary.wall.total_ns == clock.now == sum(times.total_ns for times in summary.parts.values())


def test_the_wait_that_brings_no_batch_counts_as_time_but_not_as_a_step():
    clock = FakeClock()

    def slow_end():
        yield 1
        clock.spend(9)

    account = StepAccount(clock=clock)
    list(account.steps(slow_end()))

    assert account.summary().num_steps == 1
    assert account.summary().parts["data_wait"].total_ns == 9 * MS


def test_percentiles_are_per_step():
    clock = FakeClock()
    account = StepAccount(clock=clock)
    list(account.steps(batches(clock, *range(1, 101))))

    waits = account.summary().parts["data_wait"]
    assert (waits.p50_ns, waits.p95_ns) == (50 * MS, 95 * MS)


def test_phases_do_not_nest():
    account = StepAccount(clock=FakeClock())
    for _ in account.steps([1]):
        with account.phase("forward"), pytest.raises(ValueError, match="'backward' opened inside 'forward'"):
            account.phase("backward").__enter__()


def test_a_phase_outside_a_step_or_of_an_unknown_name_is_refused():
    account = StepAccount(clock=FakeClock())
    with pytest.raises(ValueError, match="outside a step"), account.phase("forward"):
        pass
    with pytest.raises(ValueError, match="must be one of transfer, forward"):
        account.phase("foward")


def test_an_account_survives_json_and_merging_names_the_worst_rank():
    def rank_account(rank, wait):
        clock = FakeClock()
        account = StepAccount(clock=clock, rank=rank)
        for _ in account.steps(batches(clock, wait)):
            with account.phase("backward"):
                clock.spend(100 - wait)
        return account.summary()

    accounts = [rank_account(1, 40), rank_account(0, 10)]
    restored = [Account.from_dict(json.loads(json.dumps(account.to_dict()))) for account in accounts]
    job = JobAccount.merge(restored)

    assert restored == accounts
    assert job.share("data_wait") == pytest.approx(0.25)
    assert job.worst("data_wait").rank == 1


def test_merging_refuses_no_account_and_two_of_one_rank():
    account = StepAccount(clock=FakeClock()).summary()
    with pytest.raises(ValueError, match="no account"):
        JobAccount.merge([])
    with pytest.raises(ValueError, match=r"got ranks \[0, 0\]"):
        JobAccount.merge([account, account])

"""Trying again: how often, how long, with which waits, and every attempt counted.

A store's own client is told not to retry, so that no attempt goes unseen.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from dataplane.errors import StoreUnavailableError
from dataplane.metrics import Metrics

T = TypeVar("T")

# Answers that ask for fewer requests.
THROTTLED = (429, 503)


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How a request that failed in passing is made again."""

    max_tries: int = 10
    timeout_seconds: float = 30.0
    """No try begins later than this after the first: a store that never answers is reported within a minute."""
    first_wait_seconds: float = 0.1
    most_wait_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.max_tries < 1 or self.timeout_seconds <= 0:
            raise ValueError(f"a retry policy needs at least one try and some time, got {self}")
        if not 0 <= self.first_wait_seconds <= self.most_wait_seconds:
            raise ValueError(f"waits must grow from first_wait_seconds to most_wait_seconds, got {self}")

    def wait_seconds(self, failures: int, jitter: float) -> float:
        """The wait after so many failures, at least 1; `jitter` in [0, 1). Doubles, so that each exceeds the last."""
        return min(self.most_wait_seconds, self.first_wait_seconds * 2 ** (failures - 1)) * (0.75 + 0.5 * jitter)

    def call(self, request: Callable[[int], T], metrics: Metrics) -> T:
        """What `request` returns; its argument counts the tries from 1.

        Tries again after StoreUnavailableError alone, which in the end says how many tries there were. Adds
        `store_attempts`, `store_retries`, `store_throttled` (answers that asked for fewer requests),
        `store_backoff_seconds` and `store_failures` (requests given up).
        """
        tries = 0

        def attempt() -> T:
            nonlocal tries
            tries += 1
            metrics.add(store_attempts=1)
            try:
                return request(tries)
            except StoreUnavailableError as error:
                metrics.add(store_throttled=error.status in THROTTLED)
                raise

        def count(state: RetryCallState) -> None:
            metrics.add(store_retries=1, store_backoff_seconds=state.upcoming_sleep)

        start = time.monotonic()
        try:
            return Retrying(
                wait=lambda state: self.wait_seconds(state.attempt_number, random.random()),
                stop=lambda state: (
                    tries == self.max_tries or time.monotonic() - start + state.upcoming_sleep > self.timeout_seconds
                ),
                retry=retry_if_exception_type(StoreUnavailableError),
                before_sleep=count,
                reraise=True,
            )(attempt)
        except StoreUnavailableError as error:
            metrics.add(store_failures=1)
            raise StoreUnavailableError(
                f"{error}; gave up after {tries} {'try' if tries == 1 else 'tries'} "
                f"in {time.monotonic() - start:.1f} s",
                status=error.status,
            ) from error


def policy_of(options: Mapping[str, Any]) -> tuple[RetryPolicy, dict[str, Any]]:  # Any: as the stores' own options
    """The policy that storage options ask for, and the other options.

    `timeout_seconds` and `max_tries` say how long and how often; `retry_config` says it in obstore's words:
    max_retries, retry_timeout, and backoff with init_backoff and max_backoff.
    """
    rest = dict(options)
    asked: dict[str, Any] = {}
    config = rest.pop("retry_config", {})
    backoff = config.get("backoff", {})
    for name, value in (
        ("timeout_seconds", config.get("retry_timeout")),
        ("first_wait_seconds", backoff.get("init_backoff")),
        ("most_wait_seconds", backoff.get("max_backoff")),
    ):
        if value is not None:
            asked[name] = value.total_seconds()
    if "max_retries" in config:
        asked["max_tries"] = 1 + config["max_retries"]
    if "timeout_seconds" in rest:
        asked["timeout_seconds"] = float(rest.pop("timeout_seconds"))
    if "max_tries" in rest:
        asked["max_tries"] = int(rest.pop("max_tries"))
    return RetryPolicy(**asked), rest

"""Work done on threads a little ahead of whoever consumes its results in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(function: Callable[[Item], Result], items: Iterable[Item], *, threads: int) -> Iterator[Result]:
    """The function's results for the items, in their order; at most twice as many as threads are held.

    Raises what the function raised for the first item that failed; what is under way then is waited for.
    """
    waiting = iter(items)
    with ThreadPoolExecutor(threads, thread_name_prefix="ahead") as pool:
        under_way: deque[Future[Result]] = deque()
        try:
            while True:
                under_way.extend(pool.submit(function, item) for item in islice(waiting, 2 * threads - len(under_way)))
                if not under_way:
                    return
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()

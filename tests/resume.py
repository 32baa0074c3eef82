"""The harness of everything that resumes: stop anywhere, start anew, and the sequence must not show it."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Protocol


class Resumable(Protocol):
    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def ids_of(batches: Iterable[Any]) -> list[list[int]]:
    """The ids of each batch, fillers left out."""
    return [batch["id"][: len(batch["id"]) - batch.num_filler].tolist() for batch in batches]


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def assert_resumes_exactly(make: Callable[[], Resumable], stops: Iterable[int], *, steps: int) -> None:
    """Stopping after each number of steps in turn, the pieces laid end to end equal one uninterrupted run."""
    whole = make()
    expected = ids_of(islice(whole, steps))
    final = whole.state_dict()
    whole.close()
    pieces, state, done = [], None, 0
    for stop in [*stops, steps]:
        loader = make()
        if state is not None:
            loader.load_state_dict(state)
        pieces += ids_of(islice(loader, stop - done))
        state, done = loader.state_dict(), stop
        loader.close()
    assert pieces == expected
    assert state == final

"""Stores whose client libraries do not outlive a fork, made safe to use after one."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from dataplane.metrics import Metrics
from dataplane.storage.relay import RelayedStore
from dataplane.storage.store import Stat, Store


class Library:
    """Whether this process may use a library: not after a fork from a process that had used it.

    Its threads are not copied by a fork, and its connections are shared after one: requests would hang, or get the
    answers to the parent's.
    """

    def __init__(self) -> None:
        self.used = False
        self.lost = False

    def use(self) -> None:
        if not self.used and not self.lost:
            self.used = True
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.used, self.lost = False, True


class ForkSafeStore:
    """A store of `library` in this process, if it may use the library; else the same through a relay process."""

    is_local = False

    def __init__(
        self,
        make: Callable[[str, Mapping[str, Any]], Store],  # Any: as the stores' own options
        library: Library,
        url: str,
        options: Mapping[str, Any],
    ) -> None:
        self.url = url.rstrip("/")
        self.metrics = Metrics()
        self._make = make
        self._library = library
        self._options = dict(options)
        self._direct: Store | None = None

    def __reduce__(self) -> tuple[Any, tuple[str, dict[str, Any]]]:
        from dataplane.storage.open import open_store  # here, since it imports this module

        return open_store, (self.url, self._options)

    def read(self, path: str) -> bytes:
        return self._here().read(path)

    def read_range(self, path: str, start: int, stop: int) -> bytes | memoryview:
        return self._here().read_range(path, start, stop)

    def write(self, path: str, data: bytes | memoryview) -> None:
        self._here().write(path, data)

    def create(self, path: str, data: bytes | memoryview) -> None:
        self._here().create(path, data)

    def list(self, folder: str) -> list[str]:
        return self._here().list(folder)

    def size(self, path: str) -> int:
        return self._here().size(path)

    def stat(self, path: str) -> Stat:
        return self._here().stat(path)

    def scan(self, folder: str) -> dict[str, Stat]:
        return self._here().scan(folder)

    def delete(self, path: str) -> None:
        self._here().delete(path)

    def _here(self) -> Store:
        if self._library.lost:
            store: Store = RelayedStore(self.url, self._options)
        else:
            self._library.use()
            if self._direct is None:
                self._direct = self._make(self.url, self._options)
            store = self._direct
        store.metrics = self.metrics
        return store

"""Noticing that an object was replaced while it is read range by range."""

import threading
from collections import OrderedDict

from dataplane.errors import ChangedObjectError

# Objects remembered; one that is forgotten is taken as it is found when it is next read.
_MOST = 4096


class FirstSeen:
    """What each object was when it was first read. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def check(self, where: str, path: str, identity: str, num_bytes: int) -> None:
        """Raises ChangedObjectError, once, if the object is not the one that was first read."""
        with self._lock:
            first, first_bytes = self._known.setdefault(path, (identity, num_bytes))
            if first != identity:
                del self._known[path]
                raise ChangedObjectError(
                    f"{where}: the object was replaced while it was being read ({first_bytes} bytes before, "
                    f"{num_bytes} now); start again, or restore the old one"
                )
            self._known.move_to_end(path)
            if len(self._known) > _MOST:
                self._known.popitem(last=False)

    def forget(self, path: str) -> None:
        """Of an object that its reader changed itself."""
        with self._lock:
            self._known.pop(path, None)

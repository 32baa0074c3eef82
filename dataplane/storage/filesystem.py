"""The fsspec file system of a URL, for code that streams files instead of reading ranges of known objects."""

from collections.abc import Mapping
from typing import Any, cast

import fsspec
from obstore.fsspec import FsspecStore as ObstoreFilesystem

from dataplane.errors import StoreError
from dataplane.storage import object_store


def protocol_of(url: str) -> str:
    """The URL's protocol in lower case; "file" for plain paths."""
    protocol, separator, _ = url.partition("://")
    return protocol.lower() if separator and "/" not in protocol else "file"


def filesystem_of(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The file system and the path in it. Raises StoreError for a protocol that nothing serves.

    Belongs to the process that asks for it: unlike a store, it is not for use after a fork.
    """
    protocol = protocol_of(url)
    options = dict(options or {})
    if protocol == "file":
        return fsspec.filesystem("file"), url.removeprefix("file://")
    try:
        if protocol in object_store.PROTOCOLS:
            if object_store.LIBRARY.lost:
                raise StoreError(
                    f"{url}: this process was forked from one that had used an object store; "
                    "start it with spawn or forkserver instead"
                )
            object_store.LIBRARY.use()
            arguments: Any = object_store.connection_arguments(url, options)
            return ObstoreFilesystem(cast("Any", protocol), **arguments), url.split("://", 1)[1]
        filesystem, path = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        raise StoreError(f"{url}: no file system for protocol {protocol!r}: {error}") from error
    return filesystem, path

"""The fsspec file system of a URL."""

from collections.abc import Mapping
from typing import Any

import fsspec

from dataplane.errors import StoreError


def protocol_of(url: str) -> str:
    """The URL's protocol in lower case; "file" for plain paths."""
    protocol, separator, _ = url.partition("://")
    return protocol.lower() if separator and "/" not in protocol else "file"


def filesystem_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:  # Any: fsspec has no types
    """The file system and the path in it. Raises StoreError for a protocol that nothing serves."""
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        raise StoreError(f"{url}: no file system for protocol {protocol_of(url)!r}: {error}") from error
    return filesystem, path

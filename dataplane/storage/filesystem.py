"""The fsspec file system of a URL."""

from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec.registry import known_implementations, registry

from dataplane.errors import MissingExtraError, StoreError


def protocol_of(url: str) -> str:
    """The URL's protocol in lower case; "file" for plain paths."""
    protocol, separator, _ = url.partition("://")
    return protocol.lower() if separator and "/" not in protocol else "file"


def refuse_unknown(url: str) -> None:
    """Raises StoreError for a protocol that nothing serves."""
    if (protocol := protocol_of(url)) not in (*known_implementations, *registry):
        raise StoreError(f"{url}: no file system for protocol {protocol!r}: Protocol not known")


# What pip installs for protocols that fsspec itself serves.
_EXTRAS = {"http": "http", "https": "http", "s3": "s3fs", "s3a": "s3fs", "webhdfs": "webhdfs"}


def filesystem_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:  # Any: fsspec has no types
    """A new file system, for this process, and the path in it.

    Raises StoreError for a protocol that nothing serves, MissingExtraError where a package is missing.
    """
    protocol = protocol_of(url)
    try:
        filesystem, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)
    except ImportError as error:
        if extra := _EXTRAS.get(protocol):
            raise MissingExtraError(f"{url}: {error}: pip install 'dataplane[{extra}]'") from None
        raise StoreError(f"{url}: no file system for protocol {protocol!r}: {error}") from error
    except ValueError as error:
        raise StoreError(f"{url}: no file system for protocol {protocol!r}: {error}") from error
    if protocol in ("s3", "s3a"):
        filesystem.retries = 1  # ours are counted
    return filesystem, path

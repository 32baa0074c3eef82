"""URL to store."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataplane.storage import hdfs, object_store
from dataplane.storage.filesystem import filesystem_of, protocol_of
from dataplane.storage.fork_safe import ForkSafeStore
from dataplane.storage.fsspec_store import FsspecStore
from dataplane.storage.hdfs import HdfsStore
from dataplane.storage.local import LocalStore
from dataplane.storage.object_store import ObjectStore
from dataplane.storage.secrets import refuse_secrets_in
from dataplane.storage.store import Store


def open_store(url: str, options: Mapping[str, Any] | None = None) -> Store:
    """The store whose root is `url`. Makes no request.

    Raises StoreError for a protocol that nothing serves, and for a URL that carries credentials.

    `options` are the store's own (endpoint, access_key_id, region, ... for S3); s3fs's names for them are understood.
    """
    refuse_secrets_in(url)
    protocol = protocol_of(url)
    if protocol == "file":
        return LocalStore(Path(url.removeprefix("file://")).absolute())
    if protocol in object_store.PROTOCOLS:
        return ForkSafeStore(ObjectStore, object_store.LIBRARY, url, options or {})
    if protocol == "hdfs":
        return ForkSafeStore(HdfsStore, hdfs.LIBRARY, url, options or {})
    filesystem, path = filesystem_of(url, options or {})
    return FsspecStore(filesystem, path, url.rstrip("/"))

"""URL to store."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataplane.errors import StoreError
from dataplane.storage import hdfs, object_store
from dataplane.storage.filesystem import protocol_of, refuse_unknown
from dataplane.storage.fork_safe import ForkSafeStore
from dataplane.storage.fsspec_store import FsspecStore
from dataplane.storage.hdfs import HdfsStore
from dataplane.storage.local import LocalStore
from dataplane.storage.object_store import ObjectStore
from dataplane.storage.s3fs_options import s3fs_options
from dataplane.storage.secrets import refuse_secrets_in
from dataplane.storage.store import Store


def open_store(url: str, options: Mapping[str, Any] | None = None) -> Store:
    """The store whose root is `url`. Makes no request.

    Raises StoreError for a protocol that nothing serves, and for a URL that carries credentials.

    `options` are the store's own (endpoint, access_key_id, region, ... for S3); s3fs's names for them are understood.
    `client="s3fs"` serves S3 through s3fs instead of obstore.
    """
    refuse_secrets_in(url)
    protocol = protocol_of(url)
    options = dict(options or {})
    client = options.pop("client", None)
    if client not in (None, "s3fs") or (client and protocol not in ("s3", "s3a")):
        raise StoreError(f"{url}: storage option client={client} is not known; there is client=s3fs, for s3://")
    if protocol == "file":
        return LocalStore(Path(url.removeprefix("file://")).absolute())
    if client == "s3fs":
        return FsspecStore(url, s3fs_options(options))
    if protocol in object_store.PROTOCOLS:
        return ForkSafeStore(ObjectStore, object_store.LIBRARY, url, options)
    if protocol == "hdfs":
        return ForkSafeStore(HdfsStore, hdfs.LIBRARY, url, options)
    refuse_unknown(url)
    return FsspecStore(url, options)

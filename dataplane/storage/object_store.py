"""A prefix of a bucket on S3, GCS or Azure, through obstore."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import from_url

from dataplane.errors import StoreError, StorePermissionError, StoreUnavailableError, TruncatedObjectError
from dataplane.metrics import Metrics
from dataplane.storage.fork_safe import Library
from dataplane.storage.store import Stat, check_length

PROTOCOLS = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl")

# s3fs's words for what obstore calls otherwise, so that one set of options serves both.
_SYNONYMS = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
    "anon": "skip_signature",
}
# obstore draws each wait between the first one and `base` times the last: these eight add up to some 5 s, and to 18 s
# in one case of twenty: they outlast a burst of 503s, and an unreachable endpoint is reported before anyone gives up.
_RETRIES: Any = {
    "max_retries": 8,
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 3,
    },
    "retry_timeout": timedelta(seconds=25),
}
# Where obstore asks for the credentials of a cloud machine when it was given none.
_INSTANCE_METADATA = "http://169.254.169.254/"
_SDK_REGIONS = {"AWS_REGION", "AWS_DEFAULT_REGION"}
# Of one try: with the retries above, a store that no longer answers is reported within a minute.
_CLIENT = {"connect_timeout": "5s", "timeout": "20s"}


LIBRARY = Library()


class ObjectStore:
    """Objects below a prefix. Retries with jittered exponential back-off are obstore's."""

    is_local = False

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:  # Any: as obstore's own options
        self.url = url.rstrip("/")
        self.metrics = Metrics()
        self._options = dict(options)
        self._store: Any = None

    def read(self, path: str) -> bytes:
        with self._translated(path) as store:
            return obstore.get(store, path).bytes().to_bytes()

    def read_range(self, path: str, start: int, stop: int) -> memoryview:
        if start == stop:  # an empty range cannot be asked for
            self.size(path)
            return memoryview(b"")
        with self._translated(path) as store:
            data = memoryview(obstore.get_range(store, path, start=start, end=stop))
        check_length(self.url, path, start, stop, len(data))
        return data

    def write(self, path: str, data: bytes | memoryview) -> None:
        with self._translated(path) as store:
            obstore.put(store, path, data)

    def create(self, path: str, data: bytes | memoryview) -> None:
        with self._translated(path) as store:
            # A conditional put is one request; only a multipart upload could leave parts behind.
            obstore.put(store, path, data, mode="create", use_multipart=False)

    def list(self, folder: str) -> list[str]:
        with self._translated(folder) as store:
            pages = obstore.list(store, prefix=folder or None)
            return sorted(entry["path"] for page in pages for entry in page)

    def size(self, path: str) -> int:
        return self.stat(path).num_bytes

    def stat(self, path: str) -> Stat:
        with self._translated(path) as store:
            return _stat_of(obstore.head(store, path))

    def scan(self, folder: str) -> dict[str, Stat]:
        with self._translated(folder) as store:
            pages = obstore.list(store, prefix=folder or None)
            found = {entry["path"]: _stat_of(entry) for page in pages for entry in page}
            return dict(sorted(found.items()))

    def delete(self, path: str) -> None:
        with self._translated(path) as store:
            try:
                obstore.delete(store, path)
            except FileNotFoundError:
                return

    def _opened(self) -> Any:  # Any: one of obstore's store classes
        if self._store is None:
            protocol, _, path = self.url.partition("://")
            # Every character of our URLs is literal; obstore takes some for escapes, queries and fragments.
            url = f"{protocol.replace('s3a', 's3')}://{quote(path, safe='/@:')}"
            self._store = from_url(url, **connection_arguments(url, self._options))
        return self._store

    @contextmanager
    def _translated(self, path: str) -> Iterator[Any]:
        """The store; turns obstore's errors into ours, with one line of its words."""
        where = f"{self.url}/{path}" if path else self.url
        try:
            yield self._opened()
        except AlreadyExistsError as error:
            raise FileExistsError(f"{where} exists already") from error
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{where} does not exist") from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise _refused(where, error) from error
        except (UnknownConfigurationKeyError, ValueError) as error:
            raise StoreError(f"{where}: {_reason(error)}") from error
        except BaseError as error:
            # obstore tells these apart for some requests only.
            status = re.search(r"status code: (\d{3})", str(error))
            match status and status[1]:
                case "401" | "403":
                    raise _refused(where, error) from error
                case "416":
                    raise TruncatedObjectError(f"{where}: ends before the bytes asked for") from error
                case "404":
                    raise StoreError(f"{where}: {_reason(error)}") from error
            raise StoreUnavailableError(f"{where}: {_reason(error)}") from error


def _stat_of(entry: Any) -> Stat:  # Any: obstore's ObjectMeta, which only its stubs have
    num_bytes, modified = entry["size"], entry["last_modified"].timestamp()
    return Stat(num_bytes, entry["e_tag"] or f"{num_bytes}:{modified}", modified)


def connection_arguments(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of obstore's constructors for a URL: config, client options, retries."""
    config = {_SYNONYMS.get(name, name): value for name, value in options.items()}
    client = {**_CLIENT, **config.pop("client_options", {})}
    retries = config.pop("retry_config", _RETRIES)
    endpoint = str(config.get("endpoint", "")) or _endpoint_from_sdk_environment(url)
    if endpoint.startswith("http://"):
        client.setdefault("allow_http", True)
    if url.startswith(("s3:", "s3a:")) and not _SDK_REGIONS & os.environ.keys():
        config.setdefault("region", "us-east-1")
    return {"config": config, "client_options": client, "retry_config": retries}


def _endpoint_from_sdk_environment(url: str) -> str:
    """The endpoint that the cloud SDKs' own variables name; obstore reads them too, but not for `allow_http`."""
    if not url.startswith(("s3:", "s3a:")):
        return ""
    return os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", ""))


def _refused(where: str, error: Exception) -> StorePermissionError:
    if _INSTANCE_METADATA in str(error):
        return StorePermissionError(
            f"{where}: no credentials in the storage options or the environment, and this machine has no instance "
            "role; give access_key_id and secret_access_key, or skip_signature=true for a public bucket"
        )
    return StorePermissionError(f"{where}: the store refuses these credentials: {_reason(error)}")


def _reason(error: Exception) -> str:
    """What the store said, else the first line of obstore's error and the cause in its debug output."""
    text = str(error)
    if said := re.search(r"<Code>([^<]+)</Code>\s*<Message>([^<]*)</Message>", text):
        status = re.search(r"status code: (\d{3})", text)
        return f"{status[1]} {said[1]}: {said[2]}" if status else f"{said[1]}: {said[2]}"
    line = text.split("\n", 1)[0].strip()
    causes = re.findall(r'(?:message|error|kind): "?([A-Z][^"\n{(]{5,80})"?', text)
    return f"{line} ({causes[-1].strip()})" if causes else line

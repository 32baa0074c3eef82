"""A prefix of a bucket on S3, GCS or Azure, through obstore."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar
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

from dataplane.errors import (
    ExpiredCredentialsError,
    MissingExtraError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
    TruncatedObjectError,
)
from dataplane.metrics import Metrics
from dataplane.storage.aws_credentials import AwsCredentials
from dataplane.storage.fork_safe import Library
from dataplane.storage.identity import FirstSeen
from dataplane.storage.retry import policy_of
from dataplane.storage.secrets import without_secrets
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
# Retries are ours, so that each attempt is seen.
_NO_RETRIES: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=0)}
# The least part that stores take, with room for growth, and the most parts: the strictest store allows a hundred.
_PART_BYTES = 8 << 20
_MOST_PARTS = 90
# Where obstore asks for the credentials of a cloud machine when it was given none.
_INSTANCE_METADATA = "http://169.254.169.254/"
_SDK_REGIONS = {"AWS_REGION", "AWS_DEFAULT_REGION"}
_PROFILES = {"AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"}
_KEYS = {"access_key_id", "secret_access_key", "skip_signature", "credential_provider"}
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_EXPIRED = {
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "RequestExpired",
    "ExpiredAuthenticationToken",
}
# Answers below 500 that another try may change.
_TRANSIENT = (408, 409, 425, 429)
# Of one try: with the retries of a policy, a store that no longer answers is reported within a minute.
_CLIENT = {"connect_timeout": "5s", "timeout": "20s"}


T = TypeVar("T")

LIBRARY = Library()


class ObjectStore:
    """Objects below a prefix. Every request is tried again with growing waits, and counted.

    Credentials that the store refuses are asked for once more from where they came from.
    """

    is_local = False

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:  # Any: as obstore's own options
        self.url = url.rstrip("/")
        self.metrics = Metrics()
        self._policy, self._options = policy_of(options)
        self._store: Any = None
        self._first_seen = FirstSeen()

    def read(self, path: str) -> bytes:
        return self._ask(path, lambda store, _: obstore.get(store, path).bytes().to_bytes())

    def read_range(self, path: str, start: int, stop: int) -> memoryview:
        if start == stop:  # an empty range cannot be asked for
            self.size(path)
            return memoryview(b"")

        def request(store: Any, _: int) -> memoryview:
            answer = obstore.get(store, path, options={"range": (start, stop)})
            stat = _stat_of(answer.meta)
            self._first_seen.check(f"{self.url}/{path}", path, stat.identity, stat.num_bytes)
            data = memoryview(answer.bytes())
            if len(data) < min(stop, stat.num_bytes) - start:
                raise StoreUnavailableError(
                    f"{self.url}/{path}: bytes [{start}, {stop}) came short, {len(data)} of {stop - start}"
                )
            return data

        data = self._ask(path, request)
        check_length(self.url, path, start, stop, len(data))
        return data

    def write(self, path: str, data: bytes | memoryview) -> None:
        # One that fails is aborted by obstore, so that no parts are left behind.
        self._ask(path, lambda store, _: obstore.put(store, path, data, chunk_size=part_bytes(len(data))))
        self._first_seen.forget(path)

    def create(self, path: str, data: bytes | memoryview) -> None:
        def request(store: Any, number: int) -> None:
            try:
                # A conditional put is one request; only a multipart upload could leave parts behind.
                obstore.put(store, path, data, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                if "ConditionalRequestConflict" in str(error):  # another is being written, and may yet fail
                    raise StoreUnavailableError(f"{self.url}/{path}: {_reason(error)}", status=409) from error
                # After a first try whose answer was lost, what is there may be our own.
                if number == 1 or obstore.get(store, path).bytes().to_bytes() != data:
                    raise

        self._ask(path, request)
        self._first_seen.forget(path)

    def list(self, folder: str) -> list[str]:
        return list(self.scan(folder))

    def size(self, path: str) -> int:
        return self.stat(path).num_bytes

    def stat(self, path: str) -> Stat:
        def request(store: Any, _: int) -> Stat:
            try:
                return _stat_of(obstore.head(store, path))
            except BaseError as error:
                if _status_of(error) in (400, 401, 403):  # the answer to a HEAD cannot say why: ask so that it can
                    obstore.get_range(store, path, start=0, end=1)
                    return _stat_of(obstore.head(store, path))
                raise

        return self._ask(path, request)

    def scan(self, folder: str) -> dict[str, Stat]:
        found: dict[str, Stat] = {}

        def request(store: Any, _: int) -> None:
            last = max(found, default=None)  # what earlier tries found stays found
            for page in obstore.list(store, prefix=folder or None, offset=last):
                found.update({entry["path"]: _stat_of(entry) for entry in page})

        self._ask(folder, request)
        return dict(sorted(found.items()))

    def delete(self, path: str) -> None:
        def request(store: Any, _: int) -> None:
            with suppress(FileNotFoundError):
                obstore.delete(store, path)

        self._ask(path, request)
        self._first_seen.forget(path)

    def _ask(self, path: str, request: Callable[[Any, int], T]) -> T:  # Any: one of obstore's store classes
        """The answer to a request that is given the number of its try; in our errors."""

        def attempt(number: int) -> T:
            try:
                with self._translated(path):
                    return request(self._opened(), number)
            except StorePermissionError as error:
                if self._has_fixed_credentials or _INSTANCE_METADATA in str(error.__cause__):
                    raise
                self.metrics.add(store_credentials_refreshed=1, store_attempts=1)
                self._store = None
                with self._translated(path):
                    return request(self._opened(), number)

        return self._policy.call(attempt, self.metrics)

    @property
    def _has_fixed_credentials(self) -> bool:
        names = {_SYNONYMS.get(name, name) for name in self._options}
        return bool(names & {"access_key_id", "secret_access_key", "session_token", "skip_signature"})

    def _opened(self) -> Any:  # Any: one of obstore's store classes
        if self._store is None:
            protocol, _, path = self.url.partition("://")
            # Every character of our URLs is literal; obstore takes some for escapes, queries and fragments.
            url = f"{protocol.replace('s3a', 's3')}://{quote(path, safe='/@:')}"
            self._store = from_url(url, **connection_arguments(url, self._options))
        return self._store

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """Turns obstore's errors into ours, with one line of its words and none of its secrets."""
        where = f"{self.url}/{path}" if path else self.url
        try:
            yield
        except (StoreError, MissingExtraError):
            raise
        except AlreadyExistsError:
            raise FileExistsError(f"{where} exists already") from None
        except FileNotFoundError:
            raise FileNotFoundError(f"{where} does not exist") from None
        except (BaseError, ValueError) as error:
            text = str(error)
            safe = without_secrets(text, self._options)
            # What obstore says is known to no one but us, so a cause that would tell a secret is left out.
            raise _failure(where, error, safe) from (error if safe == text else None)


def part_bytes(num_bytes: int) -> int:
    """How large the parts of an upload are."""
    return max(_PART_BYTES, -(-num_bytes // _MOST_PARTS))


def _failure(where: str, error: Exception, text: str) -> StoreError:
    """Our error for one of obstore's; `text` is its own, without secrets."""
    reason, status = _reason(text), _status_of(error)
    code = said[1] if (said := _CODE.search(text)) else ""
    if code in _EXPIRED:
        return ExpiredCredentialsError(
            f"{where}: the credentials have expired, and where they came from offers no others: {reason}; renew them"
        )
    if status in (401, 403) or isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return _refused(where, text, reason)
    if status == 416:
        return TruncatedObjectError(f"{where}: ends before the bytes asked for")
    refused = status is not None and status < 500 and status not in _TRANSIENT
    if refused or isinstance(error, UnknownConfigurationKeyError | ValueError) or text.startswith("Generic URL error"):
        return StoreError(f"{where}: {reason}")
    if words := re.search(r"no credentials for [^\n\"]*|[^\n\"]*pip install 'dataplane\[aws\]'", text):
        return StorePermissionError(f"{where}: {words[0]}")
    return StoreUnavailableError(f"{where}: {reason}", status=status)


def _status_of(error: Exception) -> int | None:
    """The HTTP status of the store's answer; None where there was none."""
    found = re.search(r"status code: (\d{3})", str(error))
    return int(found[1]) if found else None


def _stat_of(entry: Any) -> Stat:  # Any: obstore's ObjectMeta, which only its stubs have
    num_bytes, modified = entry["size"], entry["last_modified"].timestamp()
    return Stat(num_bytes, entry["e_tag"] or f"{num_bytes}:{modified}", modified)


def connection_arguments(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of obstore's constructors for a URL: config, client options, credentials."""
    config = {_SYNONYMS.get(name, name): value for name, value in options.items()}
    client = {**_CLIENT, **config.pop("client_options", {})}
    endpoint = str(config.get("endpoint", "")) or _endpoint_from_sdk_environment(url)
    if endpoint.startswith("http://"):
        client.setdefault("allow_http", True)
    arguments: dict[str, Any] = {"config": config, "client_options": client, "retry_config": _NO_RETRIES}
    if url.startswith(("s3:", "s3a:")):
        if not _SDK_REGIONS & os.environ.keys():
            config.setdefault("region", "us-east-1")
        if "path_style" in config:
            config["virtual_hosted_style_request"] = str(config.pop("path_style")).lower() in ("false", "0", "no")
        profile, role_arn = config.pop("profile", None), config.pop("role_arn", None)
        if profile or role_arn or (_PROFILES & os.environ.keys() and not config.keys() & _KEYS):
            arguments["credential_provider"] = AwsCredentials(
                profile=profile, role_arn=role_arn, region=config.get("region")
            )
    if "credential_provider" in config:
        arguments["credential_provider"] = config.pop("credential_provider")
    return arguments


def _endpoint_from_sdk_environment(url: str) -> str:
    """The endpoint that the cloud SDKs' own variables name; obstore reads them too, but not for `allow_http`."""
    if not url.startswith(("s3:", "s3a:")):
        return ""
    return os.environ.get("AWS_ENDPOINT_URL", os.environ.get("AWS_ENDPOINT", ""))


def _refused(where: str, text: str, reason: str) -> StorePermissionError:
    if _INSTANCE_METADATA in text:
        return StorePermissionError(
            f"{where}: no credentials in the storage options or the environment, and this machine has no instance "
            "role; give access_key_id and secret_access_key, profile, or skip_signature=true for a public bucket"
        )
    return StorePermissionError(f"{where}: the store refuses these credentials: {reason}")


def _reason(error: Exception | str) -> str:
    """What the store said, else the first line of obstore's error and the cause in its debug output."""
    text = str(error)
    if said := re.search(r"<Code>([^<]+)</Code>\s*<Message>([^<]*)</Message>", text):
        status = re.search(r"status code: (\d{3})", text)
        return f"{status[1]} {said[1]}: {said[2]}" if status else f"{said[1]}: {said[2]}"
    line = text.split("\n", 1)[0].strip()
    causes = re.findall(r'(?:message|error|kind): "?([A-Z][^"\n{(]{5,80})"?', text)
    return f"{line} ({causes[-1].strip()})" if causes else line

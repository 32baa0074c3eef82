"""Secrets that must not reach a message: those of the options, and those that a signed URL carries."""

import re
from collections.abc import Mapping
from typing import Any

from dataplane.errors import StoreError

HIDDEN = "***"
_SECRET_NAME = re.compile(r"secret|token|password|passwd|key|signature|sas|credential|auth", re.IGNORECASE)
# Signatures in the queries of S3, GCS and Azure, and a user's password before the host.
_SIGNED = re.compile(
    r"(?i)([?&](?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|awsaccesskeyid|"
    r"signature|sig|access_token|token|key)=)[^&\s\"'<>)]+"
)
_PASSWORD = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")


def without_secrets(text: str, options: Mapping[str, Any]) -> str:
    """The text with the secret values among the options, signatures and passwords hidden."""
    for value in sorted(_secret_values(options), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return _PASSWORD.sub(HIDDEN, _SIGNED.sub(rf"\1{HIDDEN}", text))


def refuse_secrets_in(url: str) -> None:
    """Raises StoreError for a URL that carries credentials, without saying them: URLs are logged and saved."""
    protocol, _, rest = url.partition("://")
    authority = rest.partition("/")[0]
    if ":" in authority.rpartition("@")[0] or (protocol in ("http", "https") and _SIGNED.search(url)):
        raise StoreError(
            f"{without_secrets(url, {})}: the URL carries credentials, which would be logged and saved with it; "
            "give them as storage options"
        )


def _secret_values(options: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= _secret_values(value)
        elif isinstance(value, str) and len(value) >= 4 and _SECRET_NAME.search(name):
            found.add(value)
    return found

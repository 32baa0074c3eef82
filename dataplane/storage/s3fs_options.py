"""Our words for S3's options in those of s3fs, for whoever chose it with `client="s3fs"`."""

from collections.abc import Mapping
from typing import Any

from dataplane.errors import StoreError

_WORDS = {
    "access_key_id": "key",
    "secret_access_key": "secret",
    "session_token": "token",
    "endpoint": "endpoint_url",
    "skip_signature": "anon",
}


def s3fs_options(options: Mapping[str, Any]) -> dict[str, Any]:  # Any: as s3fs's own options
    """The options as s3fs names them; retries are left to us. Raises StoreError for what s3fs cannot do."""
    if "role_arn" in options:
        raise StoreError("s3fs takes no role_arn; name a profile that has it, or leave client=s3fs out")
    given = {_WORDS.get(name, name): value for name, value in options.items()}
    client = dict(given.pop("client_kwargs", {}))
    if region := given.pop("region", None):
        client["region_name"] = region
    config = {
        "retries": {"max_attempts": 0},
        "connect_timeout": 5,
        "read_timeout": 20,
        **given.pop("config_kwargs", {}),
    }
    if "path_style" in given:
        path_style = str(given.pop("path_style")).lower() not in ("false", "0", "no")
        config["s3"] = {"addressing_style": "path" if path_style else "virtual"}
    if isinstance(given.get("anon"), str):
        given["anon"] = given["anon"].lower() not in ("false", "0", "no")
    return {**given, "client_kwargs": client, "config_kwargs": config}

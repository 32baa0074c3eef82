"""Credentials of a profile or a role, through botocore; obstore by itself knows neither."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from dataplane.errors import MissingExtraError, StorePermissionError

# How long credentials are used that do not say when they end; botocore is asked again then and renews what it must.
_SECONDS_TO_LIVE = 300


class AwsCredentials:
    """Asked by obstore whenever it has no credentials, or they are about to expire; reads their source anew."""

    def __init__(self, *, profile: str | None, role_arn: str | None, region: str | None) -> None:
        self._profile = profile
        self._role_arn = role_arn
        self._region = region

    def __call__(self) -> Mapping[str, Any]:  # Any: strings, and a time
        """Raises StorePermissionError when the source has none."""
        try:
            from botocore.exceptions import BotoCoreError, ClientError
            from botocore.session import Session
        except ImportError:
            raise MissingExtraError("profiles and roles need botocore: pip install 'dataplane[aws]'") from None
        try:
            session = Session(profile=self._profile)
            if self._role_arn is not None:
                client = session.create_client("sts", region_name=self._region or "us-east-1")
                given = client.assume_role(RoleArn=self._role_arn, RoleSessionName="dataplane")["Credentials"]
                return {
                    "access_key_id": given["AccessKeyId"],
                    "secret_access_key": given["SecretAccessKey"],
                    "token": given["SessionToken"],
                    "expires_at": given["Expiration"],
                }
            credentials = session.get_credentials()
        except (BotoCoreError, ClientError) as error:
            raise StorePermissionError(f"no credentials for {self}: {error}") from error
        if credentials is None:
            raise StorePermissionError(f"no credentials for {self}")
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + timedelta(seconds=_SECONDS_TO_LIVE),
        }

    def __str__(self) -> str:
        profile = f"profile {self._profile}" if self._profile else "the default profile"
        return f"role {self._role_arn} by {profile}" if self._role_arn else profile

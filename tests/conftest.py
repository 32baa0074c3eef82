"""Fixtures that all rooms use."""

from tests.services.seaweed import s3, s3_url

__all__ = ["s3", "s3_url"]

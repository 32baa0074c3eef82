"""Fixtures that all rooms use."""

from hypothesis import settings

from tests.services.hdfs import hdfs, hdfs_url
from tests.services.seaweed import s3, s3_url

__all__ = ["hdfs", "hdfs_url", "s3", "s3_url"]

# A slow machine is no failure; more examples are for whoever hunts a fault: `--hypothesis-profile=default`.
settings.register_profile("dataplane", deadline=None, max_examples=30)
settings.load_profile("dataplane")

"""A real S3 server for the whole run; each test has a prefix of its own."""

import uuid

import pytest

from dataplane.seaweed import s3_server


@pytest.fixture(scope="session")
def s3():
    """A running server: `endpoint`, `pid` and `storage_options`."""
    with s3_server("tests") as server:
        yield server


@pytest.fixture
def s3_url():
    """A place on the server that no other test uses."""
    return f"s3://tests/{uuid.uuid4().hex}"

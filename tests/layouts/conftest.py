"""A bucket on this machine, for tables that are in an object store."""

from __future__ import annotations

import pytest

from support.s3_server import S3Server


@pytest.fixture(scope="session")
def bucket(s3: S3Server) -> S3Server:
    """The bucket of the tests' S3 server."""
    return s3

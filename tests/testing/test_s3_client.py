"""Requests to a bucket whose server is busy."""

from __future__ import annotations

import io

import pytest

from support.fault_proxy import FaultProxy, Status
from support.s3_client import BucketClient
from support.s3_server import KEY, SECRET


@pytest.fixture
def proxy(s3):
    with FaultProxy(s3.endpoint) as proxy:
        yield proxy


def client(proxy, s3, **options):
    return BucketClient(proxy.endpoint, s3.bucket, key=KEY, secret=SECRET, **options)


def test_a_server_that_is_busy_is_asked_again(proxy, s3):
    proxy.fail_next(2, Status(500))
    file = io.BytesIO(b"skipped, then sent")
    file.seek(9)
    client(proxy, s3).put("busy/object", file)
    assert s3.get("busy/object") == b"then sent"


def test_a_server_that_stays_busy(proxy, s3):
    proxy.fail_next(2, Status(503))
    with pytest.raises(OSError, match="answered 503"):
        client(proxy, s3, tries=2).put("busy/never", b"x")
    assert "busy/never" not in s3.list("busy")

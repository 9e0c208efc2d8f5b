"""The few requests that put a bucket in order before a test.

They are made with Python's own HTTP client, and not with obstore: once a process has made a request
through obstore, a forked child of it that makes another one hangs. Whatever is tested decides for
itself which of its processes use obstore.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import BinaryIO
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

_UNSIGNED = "UNSIGNED-PAYLOAD"
_PAUSE_S = 0.1


class BucketClient:
    """A bucket of an S3 server, asked by one request after the other.

    Args:
        endpoint: The server's URL.
        bucket: The bucket's name.
        key: Of the credentials, and so is ``secret``.
        region: Where the bucket is.
        tries: How often a server is asked that answers that it cannot just now.
    """

    def __init__(
        self,
        endpoint: str,
        bucket: str,
        *,
        key: str,
        secret: str,
        region: str = "us-east-1",
        tries: int = 4,
    ) -> None:
        self._host = urlsplit(endpoint).netloc
        self._bucket = bucket
        self._key = key
        self._secret = secret
        self._region = region
        self._tries = tries

    def put(self, key: str, data: bytes | BinaryIO) -> None:
        """Write an object."""
        self._ask("PUT", key, body=data)

    def get(self, key: str) -> bytes:
        """Return an object's bytes.

        Raises:
            FileNotFoundError: There is no such object.
        """
        return self._ask("GET", key)

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is no error."""
        self._ask("DELETE", key)

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix, sorted."""
        keys: list[str] = []
        query = {"list-type": "2", "prefix": prefix}
        while True:
            page = ElementTree.fromstring(self._ask("GET", "", query=query))
            space = page.tag.partition("}")[0] + "}" if page.tag.startswith("{") else ""
            keys += [found.text or "" for found in page.iterfind(f"{space}Contents/{space}Key")]
            more = page.findtext(f"{space}NextContinuationToken")
            if not more:
                return sorted(keys)
            query["continuation-token"] = more

    def _ask(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | BinaryIO | None = None,
    ) -> bytes:
        path = f"/{self._bucket}/{quote(key)}" if key else f"/{self._bucket}"
        asked = urlencode(sorted((query or {}).items()), quote_via=quote, safe="")
        start = body.tell() if body is not None and not isinstance(body, bytes) else 0
        for number in range(self._tries):
            if number and body is not None and not isinstance(body, bytes):
                body.seek(start)
            status, reason, data = self._once(method, path, asked, body)
            if status < 500:
                break
            time.sleep(_PAUSE_S * 2**number)  # a busy machine's server grows tired, too
        if status == 404 and method != "DELETE":
            raise FileNotFoundError(f"there is no object {key!r} in the bucket {self._bucket!r}")
        if status >= 300 and status != 404:
            raise OSError(f"{method} {path}: the server answered {status} {reason}")
        return data

    def _once(
        self, method: str, path: str, asked: str, body: bytes | BinaryIO | None
    ) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(self._host, timeout=60)
        try:
            headers = self._signed(method, path, asked)
            connection.request(method, f"{path}?{asked}" if asked else path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.reason, answer.read()
        finally:
            connection.close()

    def _signed(self, method: str, path: str, query: str) -> dict[str, str]:
        """Return the headers of a request, signed as AWS does it (version 4)."""
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = {"host": self._host, "x-amz-content-sha256": _UNSIGNED, "x-amz-date": moment}
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        request = "\n".join((method, path, query, lines, names, _UNSIGNED))
        scope = (moment[:8], self._region, "s3", "aws4_request")
        secret = f"AWS4{self._secret}".encode()
        for part in scope:
            secret = hmac.digest(secret, part.encode(), "sha256")
        text = "\n".join(
            (
                "AWS4-HMAC-SHA256",
                moment,
                "/".join(scope),
                hashlib.sha256(request.encode()).hexdigest(),
            )
        )
        signature = hmac.digest(secret, text.encode(), "sha256").hex()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self._key}/{'/'.join(scope)},"
            f"SignedHeaders={names},Signature={signature}"
        )
        return headers

"""An S3 server in this process that serves a folder and may lie about it: for hostile datasets.

It checks no signature and writes nothing; ``written`` names the requests that wanted to.

    with FolderS3(folder) as store:
        store.lie = endless_listing
        demoreel.open("s3://robots/set", storage_options=store.storage_options)
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PAGE = 1000


class Asked(NamedTuple):
    """A request.

    Attributes:
        key: The object's key; empty for a listing.
        query: The parameters of the URL.
        first: The first byte that is asked for.
        stop: The byte behind the last one.
        size: Bytes of the object; 0 where there is none.
    """

    key: str
    query: Mapping[str, str]
    first: int
    stop: int
    size: int


Lie = Callable[["_Handler", Asked], bool]
"""Answers a request in its own way; returns whether it did."""


class FolderS3:
    """A server that runs as long as a ``with`` statement; starting it takes a millisecond.

    Args:
        folder: The bucket's content.

    Attributes:
        lie: Answers requests instead of the server, where it chooses to.
        requests: The method and the path of each request.
    """

    bucket = "robots"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lie: Lie | None = None
        self.requests: list[tuple[str, str]] = []
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        server = self._server = _Server(("127.0.0.1", 0), _Handler)
        server.owner = self
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def storage_options(self) -> dict[str, str]:
        """What a client must know."""
        return {
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret-of-the-fuzzer",
            "aws_region": "us-east-1",
            "aws_endpoint": self.endpoint,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as variables, for commands."""
        options = {name.upper(): text for name, text in self.storage_options.items()}
        return {**options, "AWS_ENDPOINT_URL": self.endpoint}

    @property
    def written(self) -> list[tuple[str, str]]:
        """The requests that would have changed the bucket."""
        return [one for one in self.requests if one[0] not in ("GET", "HEAD")]

    def uri(self, name: str) -> str:
        """Return the URI of a folder in the bucket."""
        return f"s3://{self.bucket}/{name}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    owner: FolderS3

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients hang up on what they do not believe."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        owner = self.server.owner
        parts = urlsplit(self.path)
        owner.requests.append((self.command, self.path))
        key = unquote(parts.path).lstrip("/").removeprefix(owner.bucket).lstrip("/")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        path = owner.folder / key
        size = path.stat().st_size if key and path.is_file() else 0
        asked = Asked(key, query, *self._range(size), size)
        with suppress(ConnectionError):
            if owner.lie is not None and owner.lie(self, asked):
                return
            if not key or "list-type" in query:
                self._list(asked)
            elif not path.is_file():
                self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            else:
                self._send(path, asked)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        self.server.owner.requests.append((self.command, self.path))
        self.close_connection = True
        self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")

    do_POST = do_DELETE = do_PUT  # noqa: N815

    def _range(self, size: int) -> tuple[int, int]:
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        if found is None:
            return 0, size
        return int(found[1]), min(size, int(found[2]) + 1 if found[2] else size)

    def _list(self, asked: Asked) -> None:
        prefix = asked.query.get("prefix", "")
        after = asked.query.get("continuation-token") or asked.query.get("start-after", "")
        most = int(asked.query.get("max-keys", _PAGE))
        names = [name for name in self._names(prefix) if name > after]
        folders: dict[str, None] = {}
        if "delimiter" in asked.query:
            for name in names:
                head, slash, _ = name.removeprefix(prefix).partition("/")
                if slash:
                    folders[f"{prefix}{head}/"] = None
            names = [name for name in names if "/" not in name.removeprefix(prefix)]
        page = names[:most]
        token = page[-1] if len(names) > most else None
        files = [(name, (self.server.owner.folder / name).stat().st_size) for name in page]
        self.answer_listing(files, folders, token)

    def _names(self, prefix: str) -> list[str]:
        root = self.server.owner.folder
        top = root / prefix.rpartition("/")[0]
        return sorted(
            name
            for parent, _, found in os.walk(top)
            for name in (Path(parent, one).relative_to(root).as_posix() for one in found)
            if name.startswith(prefix)
        )

    def answer_listing(
        self, files: list[tuple[str, int]], folders: Mapping[str, None], token: str | None
    ) -> None:
        """Send a page of a listing.

        Args:
            files: Keys and sizes.
            folders: Common prefixes.
            token: How the next page is asked for; None if there is none.
        """
        objects = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{self.etag(name)}&quot;</ETag></Contents>"
            for name, size in files
        )
        prefixes = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders
        )
        more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        self.answer(
            200,
            f"<ListBucketResult><IsTruncated>{'true' if token else 'false'}</IsTruncated>{more}"
            f"{objects}{prefixes}</ListBucketResult>".encode(),
        )

    def etag(self, key: str) -> str:
        """Return what an object's state is called."""
        with suppress(OSError, ValueError):
            state = os.stat(self.server.owner.folder / key)
            return f"{state.st_mtime_ns:x}-{state.st_size:x}"
        return "0-0"

    def _send(self, path: Path, asked: Asked) -> None:
        part = "Range" in self.headers
        headers = self.headers_of(asked)
        if part:
            headers["Content-Range"] = f"bytes {asked.first}-{asked.stop - 1}/{asked.size}"
        self.head(206 if part else 200, headers)
        if self.command != "HEAD":
            with open(path, "rb") as file:
                file.seek(asked.first)
                left = asked.stop - asked.first
                while left > 0:
                    data = file.read(min(left, 1 << 20))
                    self.wfile.write(data)
                    left -= len(data)

    def headers_of(self, asked: Asked) -> dict[str, str]:
        """Return the headers of an object's range."""
        return {
            "Content-Length": str(asked.stop - asked.first),
            "ETag": f'"{self.etag(asked.key)}"',
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Accept-Ranges": "bytes",
        }

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a short answer."""
        self.head(
            status,
            {
                "Content-Type": "application/xml",
                "Content-Length": str(len(body)),
                **(headers or {}),
            },
        )
        if self.command != "HEAD":
            self.wfile.write(body)

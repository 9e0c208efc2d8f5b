"""Ranges over HTTP from servers that are busy, cut off, lie, or send us in circles."""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from demoreel.errors import AccessError, ObjectChangedError, StoreError
from demoreel.storage.remote import http, transfer
from demoreel.storage.remote.transfer import Answer, Link, read_range

DATA = bytes(range(256)) * 40
URI = "s3://bucket/object"


class Object:
    """An object on the server of a test, as a transfer sees it."""

    def __init__(self, url, *, size=10_240, etag='"one"'):
        self.uri, self.known_size, self.etag = URI, size, etag
        self.url = url
        self.renewed = 0

    def link(self, *, renew):
        self.renewed += renew
        return Link(f"{self.url}/object?X-Amz-Signature=SECRET{self.renewed}")

    def moved(self, link, location):
        return Link(self.url + location)

    def read_directly(self, begin, length):
        raise NotImplementedError


class Server:
    """Answers with what a test puts into ``answers``; when that is used up, as it should."""

    def __init__(self):
        self.answers = []
        self.seen = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.seen.append((time.monotonic(), self.path, dict(self.headers)))
                answer = outer.answers.pop(0) if outer.answers else outer.right
                status, headers, body = answer(self) if callable(answer) else answer
                self.send_response(status)
                for name, value in {"Content-Length": len(body), **headers}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                with contextlib.suppress(OSError):  # the other side has heard enough
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    @staticmethod
    def right(request):
        first, last = request.headers["Range"].removeprefix("bytes=").split("-")
        part = DATA[int(first) : int(last) + 1]
        span = f"bytes {first}-{int(first) + len(part) - 1}/{len(DATA)}"
        return 206, {"Content-Range": span, "ETag": '"one"'}, part

    def __enter__(self):
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture(params=["plain", "urllib3"])
def server(request, monkeypatch):
    """A server; without a plain client, the other one is used."""
    if request.param == "urllib3":
        monkeypatch.setattr(http, "_PLAIN", ())
    monkeypatch.setattr(transfer, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(transfer, "_LONGEST_PAUSE_S", 0.002)
    with Server() as server:
        yield server


def test_a_range(server):
    assert read_range(Object(server.url), 300, 1000) == Answer(DATA[300:1300], len(DATA), '"one"')
    assert read_range(Object(server.url), len(DATA) - 5, 1000).data == DATA[-5:]
    assert read_range(Object(server.url, size=None, etag=None), 0, 10**6).data == DATA
    _, _, headers = server.seen[0]
    assert (headers["Range"], headers["If-Match"]) == ("bytes=300-1299", '"one"')


def ranged(span, body, **headers):
    return 206, {"Content-Range": span, "ETag": '"one"', **headers}, body


WRONG = {
    "busy": (503, {}, b"later"),
    "failing": (500, {}, b""),
    "too many": (429, {"Retry-After": "0"}, b""),
    "odd wish": (429, {"Retry-After": "never"}, b""),
    "short, and says so": ranged("bytes 0-98/10240", DATA[:99]),
    "short, and does not say so": ranged("bytes 0-99/10240", DATA[:99]),
    "long": ranged("bytes 0-99/10240", DATA[:101]),
    "cut off": ranged(
        "bytes 0-99/10240", DATA[:50], **{"Content-Length": 100, "Connection": "close"}
    ),
    "elsewhere": ranged("bytes 1-100/10240", DATA[1:101]),
    "no place": (206, {"ETag": '"one"'}, DATA[:100]),
    "odd place": ranged("bytes */10240", DATA[:100]),
    "odd size": ranged("bytes 0-99/*", DATA[:100]),
    "far too large": ranged(f"bytes 0-99/{'9' * 5000}", DATA[:100]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_may_go_right_the_next_time(server, wrong):
    server.answers = [WRONG[wrong]] * 3
    assert read_range(Object(server.url), 0, 100).data == DATA[:100]
    assert len(server.seen) == 4


@pytest.mark.parametrize("wrong", WRONG)
def test_what_never_goes_right_is_an_error_with_a_place(server, wrong):
    server.answers = [WRONG[wrong]] * 50
    with pytest.raises(StoreError, match="10 tries") as caught:
        read_range(Object(server.url), 0, 100)
    assert caught.value.where == {"object": URI, "range": "bytes 0 to 100"}
    assert len(server.seen) == 10


def test_a_server_that_knows_no_ranges(server):
    everything = (200, {"ETag": '"one"'}, DATA)
    server.answers = [everything, everything, (200, {"ETag": '"one"'}, DATA[:-1])]
    assert read_range(Object(server.url), 300, 1000).data == DATA[300:1300]
    assert read_range(Object(server.url, size=None), 10_000, 1000).data == DATA[10_000:]
    with pytest.raises(ObjectChangedError, match="10239"):
        read_range(Object(server.url), 0, 5)


def test_the_time_that_a_server_asks_for_is_given(server):
    server.answers = [(429, {"Retry-After": "1"}, b"")]
    read_range(Object(server.url), 0, 100)
    (first, *_), (second, *_) = server.seen
    assert second - first >= 1


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(0.5, 0.5), (3600.0, 60.0), (float("nan"), 0.0), (float("inf"), 60.0), (None, 0.0)],
)
def test_pauses_are_bounded(asked, expected):
    assert expected <= transfer._pause(0, asked) <= max(expected, 0.1)
    assert transfer._pause(500, None) <= 10


def test_a_link_that_has_run_out_is_renewed_once(server):
    for status in (400, 401, 403):
        server.answers = [(status, {}, b"<Code>AccessDenied</Code>")]
        source = Object(server.url)
        assert read_range(source, 0, 100).data == DATA[:100]
        assert source.renewed == 1
    server.answers = [(503, {}, b"")] * 9 + [(403, {}, b"")]
    assert read_range(Object(server.url), 0, 100).data == DATA[:100]


@pytest.mark.parametrize(("status", "kind"), [(403, AccessError), (400, StoreError)])
def test_refused_for_good(server, status, kind):
    server.answers = [(status, {}, b"<AWSAccessKeyId>AKID</AWSAccessKeyId>")] * 2
    with pytest.raises(kind, match=str(status)) as caught:
        read_range(Object(server.url), 0, 100)
    assert caught.value.where["object"] == URI
    assert "AKID" not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        (412, {}, b""),
        (404, {}, b""),
        (416, {}, b""),
        ranged("bytes 0-99/10241", DATA[:100]),
        (206, {"Content-Range": "bytes 0-99/10240", "ETag": '"two"'}, DATA[:100]),
    ],
)
def test_an_object_that_is_another_one_now(server, answer):
    server.answers = [answer]
    with pytest.raises(ObjectChangedError):
        read_range(Object(server.url), 0, 100)
    assert len(server.seen) == 1


def test_etags_are_compared_without_their_quotes(server):
    """Azure lists them without."""
    assert read_range(Object(server.url, etag="one"), 0, 100).data == DATA[:100]
    assert server.seen[0][2]["If-Match"] == '"one"'


def test_objects_that_are_elsewhere(server):
    server.answers = [(302, {"Location": "/there"}, b"go"), (307, {"Location": "/on"}, b"")]
    assert read_range(Object(server.url), 0, 100).data == DATA[:100]
    assert [path for _, path, _ in server.seen[1:]] == ["/there", "/on"]


def test_circles_end(server):
    server.answers = [(302, {"Location": "/object"}, b"")] * 1000
    with pytest.raises(StoreError, match="circles"):
        read_range(Object(server.url), 0, 100)
    assert len(server.seen) == 50


def test_nobody_listens(server):
    with pytest.raises(StoreError, match="connection failed"):
        read_range(Object("http://127.0.0.1:9"), 0, 100)


def test_an_answer_that_does_not_come(server, monkeypatch):
    monkeypatch.setenv("DEMOREEL_READ_TIMEOUT", "0.1")
    woken = threading.Event()

    def wait(request):
        woken.wait(20)
        return Server.right(request)

    server.answers = [wait]
    assert read_range(Object(server.url), 0, 100).data == DATA[:100]
    woken.set()
    assert len(server.seen) == 2


def test_an_answer_that_was_not_read_to_its_end_spoils_no_other(server):
    server.answers = [(200, {"ETag": '"one"'}, DATA), WRONG["long"], (503, {}, DATA * 500)]
    for begin in range(0, 1000, 50):
        assert read_range(Object(server.url), begin, 50).data == DATA[begin : begin + 50]


def test_signatures_are_said_nowhere(server, caplog):
    caplog.set_level(logging.DEBUG)
    server.answers = [(503, {}, b"")] * 20
    with pytest.raises(StoreError) as caught:
        read_range(Object(server.url), 0, 100)
    said = "".join(traceback.format_exception(caught.value)) + caplog.text
    if not http._PLAIN:
        assert "/object" in caplog.text  # urllib3 does write at this level
    assert "SECRET" not in said
    assert b"SECRET" not in pickle.dumps(caught.value)
    assert "SECRET" not in repr(Link("http://x/?SECRET", {"Authorization": "SECRET"}))

"""Plain HTTP over connections that stay open: what servers may do to it."""

from __future__ import annotations

import os

import pytest

from demoreel.storage.remote import http
from demoreel.storage.remote.http import NotPlainError

from .lines import LineServer

BODY = b"0123456789"
RIGHT = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nETag: x\r\n\r\n" + BODY


class Server(LineServer):
    """Sends what a test puts into ``answers``, one for each request; None closes instead."""

    def __init__(self):
        super().__init__()
        self.answers = []
        self.asked = []

    def serve(self, line):
        while request := line.recv(65536):
            self.asked.append(request)
            answer = self.answers.pop(0) if self.answers else RIGHT
            if answer is None:
                return
            line.sendall(answer)
            if b"Connection: close" in answer or not answer.endswith(BODY):
                return


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def get(url, headers=None, most_bytes=10):
    return http.get(url, headers or {}, most_bytes=most_bytes, connect_s=5, read_s=5)


def test_connections_stay_open(server):
    for _ in range(5):
        reply = get(server.url + "?x=1", {"Range": "bytes=0-9"})
        assert (reply.status, reply.headers["etag"], reply.read(99)) == (206, "x", BODY)
    assert server.connections == 1
    first, *others = server.asked[0].decode().split("\r\n")
    assert first == "GET /object?x=1 HTTP/1.1"
    assert f"Host: {server.url.split('/')[2]}" in others


def test_a_connection_that_the_server_has_closed(server):
    get(server.url)
    server.answers = [None]
    assert get(server.url).read(10) == BODY
    assert server.connections == 2


def test_a_server_that_always_closes(server):
    server.answers = [None] * 5
    with pytest.raises(ConnectionResetError):
        get(server.url)


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT[:-1],
        RIGHT[:30],
        RIGHT + b"more" + BODY,
        b"HTTP/1.1 206 x\r\nContent-Length: 999999999999999\r\n\r\n" + BODY,
        b"HTTP/1.1 206 x\r\nContent-Length: 11\r\n\r\n+" + BODY,
        "HTTP/1.1 206 x\r\nContent-Length: ²\r\n\r\n".encode("latin-1") + BODY,
    ],
    ids=["cut off", "no head", "more than said", "far too much", "too much", "odd digits"],
)
def test_answers_that_are_wrong(server, answer):
    server.answers = [answer]
    with pytest.raises((OSError, ValueError)):
        get(server.url)
    assert get(server.url).read(10) == BODY  # by another connection


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 10\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + BODY,
        b"HTTP/2 200\r\n\r\n" + BODY,
        b"SSH-2.0-OpenSSH\r\n\r\n" + BODY,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 30_000 + BODY,
    ],
    ids=["no length", "chunks", "all of a large one", "other", "no HTTP", "endless head"],
)
def test_answers_that_are_not_plain(server, answer):
    server.answers = [answer]
    with pytest.raises((NotPlainError, OSError)):
        get(server.url)


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/x", "/x", "http:///x", "http://127.0.0.1/a b", "http://127.0.0.1/\xff"]
)
def test_addresses_that_are_not_plain(url):
    with pytest.raises(NotPlainError):
        get(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/", f"http://{'x' * 300}/", "http://[::1/"])
def test_addresses_that_are_none(url):
    with pytest.raises((ValueError, OSError)):
        get(url)


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nX: y", "a\0"])
def test_nothing_gets_into_the_head(server, value):
    with pytest.raises(NotPlainError):
        get(server.url, {"If-Match": value})
    assert server.asked == []


def test_a_child_uses_connections_of_its_own(server):
    get(server.url)
    child = os.fork()
    if child == 0:
        os._exit(0 if get(server.url).read(10) == BODY else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert get(server.url).read(10) == BODY
    assert server.connections == 2

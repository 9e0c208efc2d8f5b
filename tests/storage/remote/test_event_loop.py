"""Many requests over open connections: answered by one thread, or handed back."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

import pytest

from demoreel.storage.remote import http
from demoreel.storage.remote.http import EventLoop, Reply
from demoreel.storage.threads import CONNECTIONS

from .lines import LineServer

BODY = b"0123456789"
RIGHT = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\n\r\n" + BODY


class Server(LineServer):
    """Answers a request once a test lets it, with what the test has put into ``answers``.

    An answer that does not end as it should is the last on its connection.
    """

    def __init__(self):
        super().__init__()
        self.answers = SimpleQueue()
        self.asked = []
        self.may = threading.Event()
        self.may.set()

    def serve(self, line):
        while request := line.recv(65536):
            self.asked.append(request)
            self.may.wait(20)
            answer = RIGHT if self.answers.empty() else self.answers.get()
            pieces = answer if isinstance(answer, list) else [answer]
            for piece in pieces:
                line.sendall(piece)
            if not pieces[-1].endswith(BODY[-5:]):
                return

    def open(self, count):
        """Let so many connections be open, and not in use."""
        lines = [http.Connection(http.question(self.url, {})[0], 5) for _ in range(count)]
        for line in lines:
            http.idle.put(line)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.may.set()
    server.close()


@pytest.fixture
def requests(monkeypatch):
    monkeypatch.setattr(http, "_LOOK_S", 0.05)
    return EventLoop()


def ask(requests, server, heard, *, read_s=20.0, most_bytes=10):
    address, request = http.question(server.url, {"Range": "bytes=0-9"})
    return requests.ask(address, request, most_bytes=most_bytes, read_s=read_s, done=heard.put)


def ask_all(requests, server, count):
    """Ask so often of a server that does not answer yet; return where outcomes will come."""
    server.may.clear()
    heard = SimpleQueue()
    assert all(ask(requests, server, heard) for _ in range(count))
    return heard


def hear(heard, count=1):
    return [heard.get(timeout=20) for _ in range(count)]


def test_without_an_open_connection_nothing_begins(server, requests):
    heard = SimpleQueue()
    assert not ask(requests, server, heard)
    assert server.connections == 0
    assert heard.empty()


def test_connections_are_used_again(server, requests):
    server.open(1)
    heard = SimpleQueue()
    for _ in range(5):
        assert ask(requests, server, heard)
        [reply] = hear(heard)
        assert (reply.status, reply.read(99)) == (206, BODY)
    assert server.connections == 1
    assert all(request.startswith(b"GET /object HTTP/1.1\r\nHost: ") for request in server.asked)


def test_an_answer_in_pieces(server, requests):
    server.open(1)
    server.answers.put([RIGHT[:20], RIGHT[20:50], RIGHT[50:55], RIGHT[55:]])
    heard = SimpleQueue()
    assert ask(requests, server, heard)
    [reply] = hear(heard)
    assert reply.read(99) == BODY


def test_a_large_answer(server, requests):
    server.open(1)
    body = os.urandom(5 << 20) + BODY
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    server.answers.put(head + body)
    heard = SimpleQueue()
    assert ask(requests, server, heard, most_bytes=len(body))
    [reply] = hear(heard)
    assert reply.read(len(body)) == body


def test_those_that_are_too_many_wait(server, requests):
    count = CONNECTIONS
    server.open(2 * count)
    heard = ask_all(requests, server, 3 * count)
    while len(server.asked) < count:  # all of them arrive, and no more
        threading.Event().wait(0.01)
    server.may.set()
    replies = hear(heard, 3 * count)
    assert all(isinstance(reply, Reply) for reply in replies)
    assert all(reply.read(99) == BODY for reply in replies)
    assert len(server.asked) == 3 * count


def test_at_most_so_many_are_under_way(server, requests):
    server.open(2 * CONNECTIONS)
    heard = ask_all(requests, server, 2 * CONNECTIONS)
    assert len(requests._under_way) == CONNECTIONS
    server.may.set()
    hear(heard, 2 * CONNECTIONS)


def test_a_connection_that_was_closed_long_ago(server, requests):
    server.open(1)
    server.answers.put(b"")
    heard = SimpleQueue()
    assert ask(requests, server, heard)
    assert hear(heard) == [None]
    assert not ask(requests, server, heard)  # it is not used any more


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT[:-1],
        RIGHT[:30],
        RIGHT + b"more" + BODY,
        b"HTTP/1.1 206 x\r\nContent-Length: 11\r\n\r\n+" + BODY,
    ],
    ids=["cut off", "no head", "more than said", "too much"],
)
def test_answers_that_are_wrong(server, requests, answer):
    server.open(2)
    server.answers.put(answer)
    heard = SimpleQueue()
    assert ask(requests, server, heard)
    [outcome] = hear(heard)
    assert isinstance(outcome, Exception)
    assert ask(requests, server, heard)
    assert hear(heard)[0].read(99) == BODY


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\n\r\n" + BODY, b"SSH-2.0-OpenSSH\r\n\r\n" + BODY],
    ids=["no length", "no HTTP"],
)
def test_answers_for_another_client_are_handed_back(server, requests, answer):
    server.open(1)
    server.answers.put(answer)
    heard = SimpleQueue()
    assert ask(requests, server, heard)
    assert hear(heard) == [None]


def test_a_server_that_is_busy_is_left_in_peace(server, requests):
    server.open(CONNECTIONS)
    count = CONNECTIONS + 3
    heard = ask_all(requests, server, count)
    address = http.question(server.url, {})[0]
    requests.let_rest(address, 3600)
    requests.let_rest(address, 0.001)  # a shorter one does not end the other
    server.may.set()
    outcomes = hear(heard, count)
    assert outcomes.count(None) == 3  # those that waited are not sent
    assert not ask(requests, server, heard)
    other = Server()
    other.open(1)
    assert ask(requests, other, heard)
    assert hear(heard)[0].read(99) == BODY
    other.close()
    requests._resting[address] = 0.0  # an hour later
    assert ask(requests, server, heard)
    assert hear(heard)[0].read(99) == BODY


def test_a_callback_that_fails_does_not_stop_others(server, requests):
    slow = Server()
    slow.open(1)
    heard = ask_all(requests, slow, 1)
    server.open(1)
    address, request = http.question(server.url, {"Range": "bytes=0-9"})
    told = threading.Event()

    def fail(outcome):
        told.set()
        raise RuntimeError("no more threads")

    assert requests.ask(address, request, most_bytes=10, read_s=20, done=fail)
    assert told.wait(20)
    slow.may.set()
    assert hear(heard)[0].read(99) == BODY
    slow.close()


def test_a_thread_that_meets_the_unexpected_goes_on(server, requests, monkeypatch):
    server.open(2)
    heard = ask_all(requests, server, 1)
    monkeypatch.setattr(
        EventLoop, "_give_up_on_the_silent", lambda self: (_ for _ in ()).throw(MemoryError())
    )
    assert isinstance(hear(heard)[0], MemoryError)
    monkeypatch.undo()
    server.may.set()
    assert ask(requests, server, heard)
    assert hear(heard)[0].read(99) == BODY


def test_a_server_that_says_nothing(server, requests):
    server.open(1)
    server.may.clear()
    heard = SimpleQueue()
    assert ask(requests, server, heard, read_s=0.2)
    assert isinstance(hear(heard)[0], TimeoutError)


def test_those_that_wait_are_handed_back_when_connections_fail(server, requests):
    server.open(CONNECTIONS)
    count = CONNECTIONS + 40
    heard = ask_all(requests, server, count)
    for _ in range(CONNECTIONS):
        server.answers.put(RIGHT[:-3])
    server.may.set()
    outcomes = hear(heard, count)
    assert sum(isinstance(outcome, ConnectionError) for outcome in outcomes) == CONNECTIONS
    assert outcomes.count(None) == 40


def test_a_server_that_closes_after_each_answer(server, requests):
    server.open(CONNECTIONS)
    closing = RIGHT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    for _ in range(CONNECTIONS):
        server.answers.put(closing)
    count = CONNECTIONS + 5
    heard = ask_all(requests, server, count)
    server.may.set()
    outcomes = hear(heard, count)
    assert sum(isinstance(outcome, Reply) for outcome in outcomes) == CONNECTIONS
    assert outcomes.count(None) == 5


def test_a_child_that_is_forked_while_answers_are_awaited(server, requests):
    server.open(CONNECTIONS + 1)
    heard = ask_all(requests, server, CONNECTIONS)
    child = os.fork()
    if child == 0:
        threading.Timer(20, os._exit, [1]).start()
        own = SimpleQueue()
        begun_without = ask(requests, server, own)  # it has none of its parent's connections
        server.may.set()
        mine = Server()
        mine.open(1)
        right = ask(requests, mine, own) and own.get(timeout=20).read(99) == BODY
        os._exit(0 if right and not begun_without else 2)
    assert os.waitpid(child, 0)[1] == 0
    server.may.set()
    assert all(reply.read(99) == BODY for reply in hear(heard, CONNECTIONS))

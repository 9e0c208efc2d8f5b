"""A proxy before real servers: what passes is unchanged, and each fault arrives as intended."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.parse import urlsplit

import obstore
import psutil
import pytest
from obstore.exceptions import GenericError
from obstore.store import S3Store

from demoreel.errors import ArgumentError
from support.fault_proxy import Cut, FaultProxy, Request, Reset, ShortBody, Stall, Status
from support.proxy.framing import Body

pytestmark = pytest.mark.soak

DATA = os.urandom(300_000)
FOREVER = 3600.0  # longer than any test; nothing waits for it
AT_ONCE = {
    "max_retries": 8,
    "backoff": {
        "init_backoff": timedelta(milliseconds=1),
        "max_backoff": timedelta(milliseconds=5),
        "base": 2,
    },
}


@pytest.fixture(scope="module")
def running(s3):
    s3.put("proxy/a b.bin", DATA)
    s3.put("proxy/other", DATA[:1000])
    with FaultProxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(running):
    running.clear()
    running.reset()
    return running


def store_behind(proxy, s3, **options):
    """Return the bucket as seen through the proxy."""
    return S3Store(
        s3.bucket,
        config={**s3.storage_options, "aws_endpoint": proxy.endpoint},
        client_options={"allow_http": True},
        **options,
    )


@pytest.fixture
def store(proxy, s3):
    return store_behind(proxy, s3, retry_config=AT_ONCE)


@pytest.fixture
def plain(proxy, store):
    """A function that asks for a range, and tries nothing again."""
    url = urlsplit(obstore.sign(store, "GET", "proxy/a b.bin", timedelta(minutes=5)))
    connection = http.client.HTTPConnection(url.netloc, timeout=60)

    def ask(first=0, last=99_999):
        connection.request(
            "GET", f"{url.path}?{url.query}", headers={"Range": f"bytes={first}-{last}"}
        )
        return connection.getresponse()

    yield ask
    connection.close()


# What passes


def test_requests_are_counted_and_listed(proxy, store):
    got = obstore.get_range(store, "proxy/a b.bin", start=1000, length=50_000)
    assert bytes(got) == DATA[1000:51_000]
    assert obstore.head(store, "proxy/other")["size"] == 1000
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "proxy/none")
    assert proxy.requests == 3
    ranged, head, missing = proxy.log
    assert ranged == Request("GET", "/robots/proxy/a b.bin", "bytes=1000-50999", 206, 50_000)
    assert head == Request("HEAD", "/robots/proxy/other", "", 200, 0)
    assert (missing.path, missing.status) == ("/robots/proxy/none", 404)
    assert proxy.bytes == 50_000 + missing.bytes
    proxy.reset()
    assert (proxy.requests, proxy.bytes, proxy.log) == (0, 0, [])


def test_what_is_written_in_parts(proxy, store, s3):
    data = os.urandom(11 << 20)
    obstore.put(store, "proxy/parts", data, chunk_size=5 << 20)
    assert [each.method for each in proxy.log].count("PUT") == 3
    assert s3.get("proxy/parts") == data
    assert bytes(obstore.get(store, "proxy/parts").bytes()) == data
    obstore.delete(store, "proxy/parts")
    assert s3.list("proxy") == ["proxy/a b.bin", "proxy/other"]


def test_many_threads_read_and_give_orders(proxy, store):
    def read(number):
        start = 1000 * number
        assert (
            bytes(obstore.get_range(store, "proxy/a b.bin", start=start, length=1000))
            == (DATA[start : start + 1000])
        )
        proxy.latency_s = 0.001 * (number % 2)
        return proxy.requests

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(read, range(200)))
    assert max(seen) == proxy.requests == len(proxy.log) == 200
    assert proxy.bytes == 200_000


def test_a_request_that_waits_holds_up_no_other(proxy, plain, store):
    proxy.latency_s = FOREVER
    with ThreadPoolExecutor(3) as pool:
        slow = [socket.create_connection(_address(proxy)) for _ in range(3)]
        for connection in slow:
            connection.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert _until(lambda: proxy.requests == 3)
        assert proxy.latency_s == FOREVER
        proxy.latency_s = 0.01
        start = list(
            pool.map(
                lambda at: bytes(obstore.get_range(store, "proxy/other", start=at, length=1)),
                range(3),
            )
        )
    assert b"".join(start) == DATA[:3]
    assert [each.path for each in proxy.log] == ["/robots/proxy/other"] * 3
    for connection in slow:
        connection.close()
    assert _until(lambda: len(proxy.log) == 6)
    assert proxy.log[3:] == [Request("GET", "/slow", "", 0, 0)] * 3


def _address(proxy):
    return "127.0.0.1", urlsplit(proxy.endpoint).port


def _until(true):
    """Ask again until something is so."""
    end = time.monotonic() + 60
    while not (so := true()) and time.monotonic() < end:
        time.sleep(0.005)
    return so


# Faults


def test_a_status(proxy, plain):
    proxy.fail_next(1, Status(429, retry_after=7))
    proxy.fail_next(1)
    answer = plain()
    assert (answer.status, answer.headers["Retry-After"]) == (429, "7")
    answer.read()
    answer = plain()
    assert (answer.status, answer.headers["Retry-After"]) == (503, None)
    answer.read()
    assert plain().read() == DATA[:100_000]
    assert [each.status for each in proxy.log] == [429, 503, 206]


@pytest.mark.parametrize("after", [0, 1, 70_000, 500_000])
def test_a_cut(proxy, plain, after):
    proxy.fail_next(1, Cut(after=after))
    answer = plain()
    assert answer.headers["Content-Length"] == "100000"
    with pytest.raises(http.client.IncompleteRead) as caught:
        answer.read()
    passed = min(after, 99_999)
    assert caught.value.partial == DATA[:passed]
    assert proxy.log[0][3:] == (206, passed)


def test_a_cut_where_there_is_no_body(proxy, s3):
    """The server has done what it was asked to; the client cannot know."""
    store = store_behind(proxy, s3, retry_config={"max_retries": 0})
    proxy.fail_next(1, Cut())
    with pytest.raises(GenericError, match="error sending request"):
        obstore.put(store, "proxy/written", b"1", use_multipart=False)
    assert s3.get("proxy/written") == b"1"
    s3.delete("proxy/written")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (ShortBody(by=10), "bytes 5-99989/300000"),
        (ShortBody(by=10, content_range="asked"), "bytes 5-99999/300000"),
    ],
)
def test_a_short_body(proxy, plain, fault, told):
    proxy.fail_next(1, fault)
    answer = plain(5)
    assert (answer.status, answer.headers["Content-Range"]) == (206, told)
    assert answer.headers["Content-Length"] == "99985"
    assert answer.read() == DATA[5:99_990]
    assert plain().read() == DATA[:100_000]  # the same connection continues


def test_a_short_body_still_has_a_byte(proxy, plain):
    proxy.fail_next(2, ShortBody(by=10_000))
    assert plain(0, 9).read() == DATA[:1]
    assert plain(0, 0).read() == DATA[:1]


@pytest.mark.parametrize("after", [None, 0, 70_000, 100_000, 500_000])
def test_a_stall_that_ends(proxy, plain, after):
    proxy.fail_next(1, Stall(0.05, after=after))
    assert plain().read() == DATA[:100_000]
    assert plain().read() == DATA[:100_000]
    assert [each.bytes for each in proxy.log] == [100_000] * 2


def test_a_stall_that_does_not(proxy, store, s3):
    proxy.fail_next(1, Stall(FOREVER, after=1000))
    answer = obstore.get(store, "proxy/a b.bin")
    chunks = answer.stream(min_chunk_size=1000)
    assert next(chunks) == DATA[:1000]
    del chunks, answer
    proxy.fail_next(1, Stall(FOREVER))
    options = {"allow_http": True, "read_timeout": "200ms"}
    impatient = S3Store(
        s3.bucket,
        config={**s3.storage_options, "aws_endpoint": proxy.endpoint},
        client_options=options,
        retry_config=AT_ONCE,
    )
    assert bytes(obstore.get(impatient, "proxy/other").bytes()) == DATA[:1000]


def test_a_reset(proxy, plain):
    proxy.fail_next(1, Reset())
    with pytest.raises(ConnectionResetError):
        plain()
    assert proxy.log == [Request("GET", "/robots/proxy/a b.bin", "bytes=0-99999", 0, 0)]


def test_faults_where_they_are_wanted(proxy, store, plain):
    proxy.fail_next(1, Status(500), where="a b")
    assert obstore.head(store, "proxy/other")["size"] == 1000
    assert plain().status == 500
    proxy.fail(1.0, Status(500), where="nowhere")
    assert obstore.head(store, "proxy/other")["size"] == 1000
    proxy.fail_next(3, Status(500))
    proxy.clear()
    assert obstore.head(store, "proxy/other")["size"] == 1000
    assert [each.status for each in proxy.log] == [200, 500, 200, 200]


def test_the_same_seed_gives_the_same_faults(proxy, s3):
    def statuses(seed):
        store = store_behind(proxy, s3, retry_config={"max_retries": 0})
        proxy.reset()
        proxy.fail(0.3, [Status(500), Status(503), Status(429)], seed=seed)
        for _ in range(60):
            with contextlib.suppress(GenericError):
                obstore.get_range(store, "proxy/other", start=0, length=10)
        return [each.status for each in proxy.log]

    first = statuses(1)
    assert set(first) == {206, 429, 500, 503}
    assert 6 < len(first) - first.count(206) < 30
    assert statuses(1) == first
    assert statuses(2) != first


def test_a_client_that_tries_again_reads_what_is_right(proxy, store):
    faults = [Status(429, retry_after=1), Status(500), Status(503), Cut(5000), Reset(), Stall(0.01)]
    proxy.fail(0.2, faults)

    def read(number):
        starts = [100 * number, 100_000, 290_000]
        got = obstore.get_ranges(
            store, "proxy/a b.bin", starts=starts, lengths=[10_000] * 3, coalesce=0
        )
        return [bytes(each) for each in got] == [DATA[at : at + 10_000] for at in starts]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(40)))
    assert proxy.requests > 120
    assert {each.status for each in proxy.log} >= {0, 206, 429, 500, 503}


def test_a_client_does_not_notice_every_lie(proxy, store):
    """Why a reader through obstore must look at the length of what came."""
    proxy.fail_next(1, ShortBody(by=10))
    with pytest.raises(GenericError, match=r"Requested 0\.\.1000, got 0\.\.990"):
        obstore.get_range(store, "proxy/other", start=0, length=1000)
    proxy.fail_next(1, ShortBody(by=10, content_range="asked"))
    assert len(obstore.get_range(store, "proxy/other", start=0, length=1000)) == 990


# Any HTTP server


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(204 if self.path == "/nothing" else 200)
        if self.path == "/chunks":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5;a=b\r\nhello\r\n6\r\n world\r\n0\r\nX: y\r\n\r\n")
        elif self.path == "/until-close":
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"hello world")
        elif self.path == "/nothing":
            self.end_headers()
        else:
            self._say(str(sorted((key.lower(), value) for key, value in self.headers.items())))

    def do_POST(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self._say(f"{len(body)} {body[:5].decode()}")

    def _say(self, text):
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def other():
    """A proxy before a server that speaks more of HTTP than S3 does."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with FaultProxy(f"http://127.0.0.1:{server.server_port}") as proxy:
        yield proxy
    server.shutdown()
    server.server_close()


def test_every_way_in_which_a_message_can_end(other):
    connection = http.client.HTTPConnection(*_address(other), timeout=60)

    def ask(method, path, body=None, **options):
        connection.request(method, path, body, **options)
        answer = connection.getresponse()
        return answer.read().decode()

    assert ask("GET", "/chunks") == "hello world"
    assert ask("GET", "/nothing") == ""
    first = connection.sock
    assert ask("POST", "/", b"x" * 3_000_000) == "3000000 xxxxx"
    chunks = iter([b"hello", b"y" * 2_000_000])
    assert ask("POST", "/", chunks, encode_chunked=True) == "2000005 hello"
    assert ask("POST", "/", b"abc", headers={"Expect": "100-continue"}) == "3 abc"
    told = ask("GET", "/?a=b", headers={"Host": "of-the-client", "X-Case": "KePt"})
    assert "('host', 'of-the-client')" in told
    assert "('x-case', 'KePt')" in told
    assert connection.sock is first  # all of that on one connection
    other.fail_next(1, Status(500))
    assert "Error" in ask("POST", "/", b"x" * 3_000_000)
    assert connection.sock is first
    assert ask("GET", "/until-close") == "hello world"
    assert connection.sock is None
    connection.close()


def test_requests_in_a_row_are_answered_in_a_row(other):
    other.latency_s = 0.01
    with socket.create_connection(_address(other)) as connection:
        connection.sendall(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
            b"GET /chunks HTTP/1.1\r\nHost: x\r\n\r\n"
            b"GET /until-close HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        said = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    other.latency_s = 0
    assert (
        said.index(b"3 abc") < said.index(b"0\r\nX: y\r\n\r\n") < said.index(b"\r\n\r\nhello world")
    )


@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_chunks_however_they_arrive(step):
    message = b"a;x=y\r\n0123456789\r\n1\r\n\n\r\n0\r\nTrailer: 1\r\n\r\n"
    rest, body, taken = message + b"GET", Body(None), 0
    for at in range(0, len(rest), step):
        taken += body.take(rest[at : at + step])
    assert body.done
    assert taken == len(message)


# The process


def test_a_server_that_is_not_there():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with FaultProxy(f"http://127.0.0.1:{port}") as proxy:
        connection = http.client.HTTPConnection(*_address(proxy), timeout=60)
        connection.request("GET", "/")
        assert connection.getresponse().status == 502
        connection.close()


def test_arguments_that_make_no_sense(proxy):
    with pytest.raises(ArgumentError, match="http://host:port"):
        FaultProxy("s3://robots")
    with pytest.raises(ArgumentError, match="does not run"):
        FaultProxy("http://127.0.0.1:1").reset()
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        proxy.fail(1.5)
    with pytest.raises(ArgumentError, match="a time to wait"):
        proxy.latency_s = -1
    assert proxy.latency_s == 0


def test_the_process_ends_with_its_owner(other):
    program = (
        "import sys\n"
        "from support.fault_proxy import FaultProxy\n"
        "with FaultProxy(sys.argv[1]) as proxy:\n"
        "    print(proxy._process.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, other.endpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process = psutil.Process(int(owner.stdout.readline()))
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    process.wait(60)


def test_from_the_command_line(other):
    alone = subprocess.Popen(
        [
            *(sys.executable, "-m", "support.fault_proxy", "--upstream", other.endpoint),
            *("--latency-ms", "1", "--fail", "1", "--how", "429"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    endpoint = alone.stdout.readline().split()[0]
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=60)
    connection.request("HEAD", "/")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    alone.send_signal(signal.SIGINT)
    said, _ = alone.communicate()
    connection.close()
    assert said == "1 requests, 0 bytes of answers\n"

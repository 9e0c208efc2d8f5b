"""Ranges from servers that encrypt, as all stores do that are really remote."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import time
from queue import SimpleQueue

import pytest

from demoreel.errors import StoreError
from demoreel.storage.remote import http, transfer
from demoreel.storage.remote.http import EventLoop
from demoreel.storage.remote.transfer import Link, read_range
from demoreel.testing import make_dataset
from support.s3_server import S3Server

from .lines import LineServer

BODY = os.urandom(300_000)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A folder with ``ca.pem``, who vouches for ``cert.pem``, whose key is ``key.pem``."""
    folder = tmp_path_factory.mktemp("certificate")

    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)

    new = ("-newkey", "rsa:2048", "-nodes")
    openssl("req", "-x509", *new, "-subj", "/CN=a test", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *new, "-subj", "/CN=127.0.0.1", "-keyout", "key.pem", "-out", "asked.pem")
    (folder / "more").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "more")
    openssl("x509", "-req", "-in", "asked.pem", *signer, "-days", "2", "-out", "cert.pem")
    return folder


@pytest.fixture
def trusted(certificate, monkeypatch):
    """This process trusts only the test's server."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "ca.pem"))
    http._trust.cache_clear()
    yield
    http._trust.cache_clear()


class Server(LineServer):
    """Serves ranges of ``BODY``, encrypted, in small pieces."""

    def __init__(self, certificate, closes=False):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        self.closes = closes
        super().__init__()
        self.url = self.url.replace("http", "https")

    def serve(self, plain):
        line = self._context.wrap_socket(plain, server_side=True)
        while request := line.recv(65536):
            asked = request.decode().partition("bytes=")[2].partition("\r\n")[0]
            first, last = map(int, asked.split("-"))
            head = (
                "HTTP/1.1 206 Partial Content\r\n"
                f"Content-Range: bytes {first}-{last}/{len(BODY)}\r\n"
                f"Content-Length: {last - first + 1}\r\nETag: one\r\n\r\n"
            )
            answer = head.encode() + BODY[first : last + 1]
            for at in range(0, len(answer), 5000):
                line.sendall(answer[at : at + 5000])
            if self.closes:
                return


@pytest.fixture
def server(certificate):
    server = Server(certificate)
    yield server
    server.close()


class Object:
    """The server's object, as a transfer sees it."""

    uri, known_size, etag = "s3://bucket/object", len(BODY), '"one"'

    def __init__(self, url):
        self._link = Link(url)

    def link(self, *, renew):
        return self._link

    def link_at_hand(self):
        return self._link


def test_a_connection_serves_many_requests(server, trusted):
    for begin in (0, 7, 100_000):
        assert read_range(Object(server.url), begin, 150_000).data == BODY[begin : begin + 150_000]
    assert server.connections == 1


def test_many_at_once(server, trusted):
    lines = [http.Connection(http.question(server.url, {})[0], 5) for _ in range(4)]
    for line in lines:
        http.idle.put(line)
    requests, heard = EventLoop(), SimpleQueue()
    wanted = [(number * 9_000, number * 500 + 1) for number in range(30)]
    for begin, length in wanted:
        headers = {"Range": f"bytes={begin}-{begin + length - 1}"}
        address, request = http.question(server.url, headers)

        def done(outcome, part=(begin, length)):
            heard.put((part, outcome))

        while not requests.ask(address, request, most_bytes=length, read_s=20, done=done):
            time.sleep(0.01)  # all connections are in use
    for _ in wanted:
        (begin, length), outcome = heard.get(timeout=20)
        assert outcome.read(length + 1) == BODY[begin : begin + length]
    assert server.connections == 4


def test_begun_ranges_arrive(server, trusted):
    thing, heard = Object(server.url), SimpleQueue()
    assert not transfer.begin_range(thing, 0, 10, heard.put)
    read_range(thing, 0, 1)
    for begin, length in [(5, 200_000), (250_000, 50_000)]:
        assert transfer.begin_range(thing, begin, length, heard.put)
        received = heard.get(timeout=20)
        assert received.trouble is None
        assert received.answer.data == BODY[begin : begin + length]


def test_a_server_that_closes_without_a_word(certificate, trusted):
    server = Server(certificate, closes=True)
    thing, heard = Object(server.url), SimpleQueue()
    for begin in (0, 9, 50_000):
        assert read_range(thing, begin, 1000).data == BODY[begin : begin + 1000]
    if transfer.begin_range(thing, 0, 10, heard.put):
        assert heard.get(timeout=20) is None
    server.close()


def test_a_server_without_a_trusted_certificate_is_refused_at_once(server, monkeypatch):
    monkeypatch.setattr(transfer.time, "sleep", lambda seconds: pytest.fail("it was tried again"))
    http._trust.cache_clear()
    with pytest.raises(StoreError, match="certificate") as caught:
        read_range(Object(server.url), 0, 10)
    assert "SSL_CERT_FILE" in str(caught.value.hint)
    assert caught.value.where["object"] == "s3://bucket/object"


READ = """
import sys
import numpy as np
import demoreel

remote, near = demoreel.open(sys.argv[1]), demoreel.open(sys.argv[2])
for seed in range(3):
    rows = np.random.default_rng(seed).integers(0, len(near), 16)
    there, here = remote.batch(rows), near.batch(rows)
    assert there.keys() == here.keys()
    for key, values in here.items():
        assert np.all(np.asarray(there[key]) == np.asarray(values)), key
print("equal")
"""


@pytest.mark.soak
def test_a_dataset_in_a_store_that_encrypts(certificate, tmp_path):
    folder = make_dataset(tmp_path / "ds", episodes=[12, 20], gop=2)
    files = (certificate / "cert.pem", certificate / "key.pem")
    with S3Server(tmp_path / "s3", certificate=files) as server:
        uri = server.upload(folder, "ds")
        environment = {
            **os.environ,
            **server.environment,
            "AWS_ENDPOINT_URL": server.secure_endpoint,
            "DEMOREEL_CACHE": str(tmp_path / "cache"),
            "SSL_CERT_FILE": str(certificate / "ca.pem"),
        }
        command = [sys.executable, "-c", READ, uri, str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.stdout == "equal\n", done.stderr
        del environment["SSL_CERT_FILE"]
        refused = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert refused.returncode
        assert "SSL_CERT_FILE names a file with it" in refused.stderr

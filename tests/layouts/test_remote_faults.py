"""Stores that fail, stall, cut, lie and change: right images, or an error that says where."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import demoreel
from demoreel.errors import (
    AccessError,
    DemoreelError,
    ObjectChangedError,
    StoreError,
    TableError,
)
from support.fault_proxy import Cut, Reset, ShortBody, Stall, Status

from ..conftest import LAYOUTS, assert_same_batch

PARQUET = ("v2.1", "v3.0")
INDICES = [0, 55, 11, 30, 20, 33, 47]
KINDS = {
    "429": Status(429, retry_after=0),
    "500": Status(500),
    "503": Status(503),
    "cut": Cut(after=100),
    "cut at once": Cut(),
    "short": ShortBody(by=3),
    "short, and lies": ShortBody(by=3, content_range="asked"),
    "stall": Stall(20.0),
    "stall in the middle": Stall(20.0, after=50),
    "reset": Reset(),
}

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setenv("DEMOREEL_READ_TIMEOUT", "0.3")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", PARQUET)
def test_one_fault_of_each_kind(local_datasets, uploaded, proxy, layout, kind):
    there = demoreel.open(uploaded(layout))
    wanted = demoreel.open(local_datasets(layout)).batch(INDICES)
    proxy.fail_next(1, KINDS[kind], where=".mp4")
    proxy.fail_next(1, KINDS[kind], where=".parquet")
    assert_same_batch(there.batch(INDICES), wanted)
    assert proxy.requests > 0


@pytest.mark.parametrize("layout", PARQUET)
def test_many_faults_at_random_on_every_item(local_datasets, uploaded, proxy, layout):
    wanted = demoreel.open(local_datasets(layout))[:]
    uri = uploaded(layout)
    kinds = [kind for name, kind in KINDS.items() if "stall" not in name]
    proxy.fail(0.2, kinds, seed=3, where="/robots/")
    there = demoreel.open(uri)
    for first in range(0, len(there), 7):
        part = there[first : first + 7]
        assert_same_batch(part, {key: column[first : first + 7] for key, column in wanted.items()})


@pytest.mark.soak
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(4))
def test_faults_of_all_kinds_on_every_item(local_datasets, uploaded, proxy, layout, seed):
    """Lance itself believes a server that lies, so it gets no such one."""
    wanted = demoreel.open(local_datasets(layout))[:]
    uri = uploaded(layout)
    lies = () if layout.startswith("lance") else ("stall",)
    kinds = [
        kind
        for name, kind in KINDS.items()
        if not name.startswith(lies) and not (lies == () and name.startswith(("short", "stall")))
    ]
    proxy.fail(0.05 + 0.05 * seed, kinds, seed=seed)
    there = demoreel.open(uri)
    for number in range(len(there)):
        item = there[number]
        for key, column in wanted.items():
            assert (item[key] == column[number]) is True or (item[key] == column[number]).all()


@pytest.mark.parametrize("kind", ["503", "short, and lies", "reset", "cut"])
def test_what_never_ends_is_an_error(uploaded, proxy, kind):
    there = demoreel.open(uploaded("v3.0"))
    proxy.fail(1.0, KINDS[kind], where=".mp4")
    proxy.reset()
    with pytest.raises(StoreError, match="10 tries") as caught:
        there[0]
    assert ".mp4" in caught.value.where["object"]
    assert caught.value.where["range"].startswith("bytes ")
    assert proxy.requests <= 60
    proxy.clear()
    there[0]  # and the dataset goes on


def test_listing_is_tried_again_and_ends(uploaded, s3, proxy, monkeypatch):
    uri = uploaded("v3.0")
    proxy.fail_next(2, Status(503))
    assert len(demoreel.open(uri)) == 56


@pytest.mark.parametrize("what", ["replaced", "replaced by one of the same size", "deleted"])
@pytest.mark.parametrize("layout", PARQUET)
@pytest.mark.parametrize("kind", [".mp4", "data/"])
def test_objects_that_change_after_opening(uploaded, s3, proxy, layout, what, kind):
    uri = uploaded(layout)
    there = demoreel.open(uri)
    prefix = uri.removeprefix(f"s3://{s3.bucket}/")
    for key in s3.list(prefix):
        if kind in key:
            before = s3.get(key)
            if what == "deleted":
                s3.delete(key)
            else:
                s3.put(key, before[:-1] + b"?" + (b"" if "same" in what else b"more"))
    with pytest.raises(ObjectChangedError) as caught:
        there[0]
    assert caught.value.where["object"].startswith(uri)


def test_credentials_that_are_wrong(uploaded, s3, proxy, monkeypatch):
    uri = uploaded("v3.0")
    there = demoreel.open(uri)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-this-one")
    with pytest.raises(AccessError, match="credentials"):
        demoreel.open(uri)
    with pytest.raises(AccessError):
        there[0]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.environment["AWS_SECRET_ACCESS_KEY"])
    assert len(demoreel.open(uri)) == 56  # a second try with the right ones is no use otherwise


def test_refused_while_reading(uploaded, proxy):
    there = demoreel.open(uploaded("v3.0"))
    proxy.fail(1.0, Status(403), where=".mp4")
    with pytest.raises(AccessError) as caught:
        there[0]
    assert ".mp4" in caught.value.where["object"]


def test_servers_and_buckets_that_are_not_there(uploaded, s3, proxy, monkeypatch):
    with pytest.raises(DemoreelError, match="s3://no-such-bucket"):
        demoreel.open("s3://no-such-bucket/x")
    proxy.fail(1.0, Status(403))
    with pytest.raises(AccessError):  # listing is denied
        demoreel.open(s3.uri("x"))


@pytest.mark.soak
def test_nobody_listens(s3, proxy, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match="s3://robots/x"):
        demoreel.open(s3.uri("x"))


@pytest.mark.parametrize("layout", ["lance-video", "lance-frames"])
def test_lance_through_a_fault(local_datasets, uploaded, proxy, layout):
    there = demoreel.open(uploaded(layout))
    wanted = demoreel.open(local_datasets(layout)).batch(INDICES)
    proxy.fail(0.1, [Status(503), Reset(), Status(500)], seed=1)
    assert_same_batch(there.batch(INDICES), wanted)
    proxy.clear()


@pytest.mark.parametrize("layout", ["v3.0", "lance-video"])
def test_lies_in_the_middle_of_queries(uploaded, proxy, layout):
    there = demoreel.open(uploaded(layout))
    proxy.fail(1.0, Status(404), where=".parquet" if layout == "v3.0" else ".lance")
    with pytest.raises((TableError, StoreError)) as caught:
        there.sql("select count(*) from frames where index > 3")
    assert "Traceback" not in str(caught.value)


# Ctrl-C

PROGRAM = """
import sys, demoreel
there = demoreel.open(sys.argv[1]) if sys.argv[2] != "opening" else None
if sys.argv[2] == "pictures":
    there[0], there[-1]  # so that the videos are indexed
print("ready", flush=True)
sys.stdin.readline()
print("reading", flush=True)
there = there or demoreel.open(sys.argv[1])
there.batch(range(20, len(there), 10))
"""


@pytest.mark.parametrize(
    ("layout", "what", "where"),
    [
        ("v3.0", "opening", ""),
        ("v3.0", "videos", ".mp4"),
        ("v3.0", "pictures", ".mp4"),
        ("v3.0", "rows", ".parquet"),
        ("lance-video", "rows", ".lance"),
    ],
)
@pytest.mark.soak
def test_ctrl_c_ends_at_once(uploaded, long_film, s3, proxy, layout, what, where, monkeypatch):
    monkeypatch.delenv("DEMOREEL_READ_TIMEOUT")
    uri = s3.upload(long_film, "film") if what == "pictures" else uploaded(layout)
    command = [sys.executable, "-c", PROGRAM, uri, what]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout.readline() == "ready\n"
        proxy.reset()
        proxy.fail(1.0, Stall(600), where=where)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "reading\n"
        until = time.monotonic() + 30
        while proxy.requests == 0 and time.monotonic() < until:
            time.sleep(0.01)
        program.send_signal(signal.SIGINT)
        try:
            _, said = program.communicate(timeout=15)
        finally:
            program.kill()
    assert "KeyboardInterrupt" in said
    assert program.returncode in (1, -signal.SIGINT, 130), said
    assert "Fatal" not in said


@pytest.mark.soak
def test_a_reader_that_is_killed_harms_nobody(local_datasets, uploaded, proxy, tmp_path):
    uri = uploaded("v3.0")
    proxy.latency_s = 0.02
    program = (
        "import sys, demoreel\n"
        f"ds = demoreel.open({uri!r}, cache_dir={str(tmp_path / 'ranges')!r})\n"
        "print('reading', flush=True)\n"
        "for n in range(56): ds[n]\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"reading\n"
        os.kill(child.pid, signal.SIGKILL)
    there = demoreel.open(uri, cache_dir=tmp_path / "ranges")
    assert_same_batch(there[:], demoreel.open(local_datasets("v3.0"))[:])

"""Ranges that were fetched once: bounded, shared, and never used when damaged."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from demoreel.errors import ArgumentError
from demoreel.storage import cache as module
from demoreel.storage.cache import ByteCache, RangeCache, size_in_bytes

WHO = ("s3://bucket/object", 10**6, '"etag"')


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """A function that forgets what is in memory."""

    def forget_all():
        monkeypatch.setattr(module, "_memory", ByteCache(1 << 20))

    forget_all()
    return forget_all


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("said", "meant"),
    [(0, 0), (5, 5), ("50GB", 50 * 10**9), ("1.5 MiB", 3 << 19), ("2k", 2000), ("7", 7)],
)
def test_sizes(said, meant):
    assert size_in_bytes(said) == meant


@pytest.mark.parametrize("said", [-1, "", "many", "5 EB", True, None, 1.5, "-3GB"])
def test_what_is_no_size(said):
    with pytest.raises(ArgumentError, match="is not a size"):
        size_in_bytes(said)


def test_in_memory():
    cache = RangeCache()
    assert cache.get(WHO, 5, 3) is None
    cache.put(WHO, 5, b"abc")
    assert cache.get(WHO, 5, 3) == b"abc"
    for other in ((WHO, 5, 2), (WHO, 4, 3), ((*WHO[:2], '"new"'), 5, 3)):
        assert cache.get(*other) is None
    assert RangeCache().get(WHO, 5, 3) == b"abc"  # of this process


def test_memory_is_bounded(monkeypatch):
    cache = RangeCache()
    for number in range(100):
        cache.put(WHO, number, bytes(100_000))
    assert module._memory.held_bytes <= 1 << 20
    cache.put(WHO, 0, bytes(module._LARGEST_KEPT + 1))
    assert cache.get(WHO, 0, module._LARGEST_KEPT + 1) is None


def test_on_disk(tmp_path, forget):
    RangeCache(tmp_path, 10**6).put(WHO, 5, b"abc")
    forget()
    assert RangeCache(tmp_path, 10**6).get(WHO, 5, 3) == b"abc"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "00",))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"?",
        lambda data: b"",
        lambda data: b"?" + data[1:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    ],
    ids=["cut off", "longer", "empty", "other bytes", "other sum"],
)
def test_damaged_files_are_not_used(tmp_path, forget, damage):
    cache = RangeCache(tmp_path, 10**6)
    cache.put(WHO, 0, b"these are the bytes")
    [path] = files_in(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    forget()
    assert cache.get(WHO, 0, 19) is None
    assert not path.exists()
    cache.put(WHO, 0, b"these are the bytes")
    forget()
    assert cache.get(WHO, 0, 19) == b"these are the bytes"


def test_those_read_longest_ago_go_first(tmp_path, forget):
    cache = RangeCache(tmp_path, 100_000)
    for number in range(8):
        cache.put(WHO, number, bytes(10_000))
    for number, path in enumerate(sorted(files_in(tmp_path), key=lambda p: p.stat().st_mtime_ns)):
        os.utime(path, (number, number))
    forget()
    assert cache.get(WHO, 0, 10_000) is not None  # which makes it the newest
    for number in range(8, 14):
        cache.put(WHO, number, bytes(10_000))
    forget()
    kept = [number for number in range(14) if cache.get(WHO, number, 10_000) is not None]
    assert 0 in kept
    assert {13, 12, 11}.issubset(kept)
    assert not {1, 2}.intersection(kept)
    assert sum(path.stat().st_size for path in files_in(tmp_path)) <= 110_000


@pytest.mark.parametrize("most", [90_000, 600_000])
def test_the_folder_is_bounded(tmp_path, monkeypatch, most):
    monkeypatch.setattr(module, "_SHARD_BYTES", 100_000)
    cache = RangeCache(tmp_path, most)
    for number in range(200):
        cache.put((number,), 0, bytes(20_000))
    assert sum(path.stat().st_size for path in files_in(tmp_path)) <= 1.1 * most


def test_a_smaller_cache_takes_the_place_of_a_larger_one(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SHARD_BYTES", 10_000)
    large = RangeCache(tmp_path, 200_000)
    for number in range(100):
        large.put((number,), 0, bytes(1000))
    (tmp_path / "something else").mkdir()
    small = RangeCache(tmp_path, 10_000)
    for number in range(30):
        small.put((number,), 1, bytes(1000))
    assert sum(path.stat().st_size for path in files_in(tmp_path)) <= 11_000
    assert (tmp_path / "something else").exists()


def test_a_folder_that_is_removed_meanwhile(tmp_path, forget):
    cache = RangeCache(tmp_path / "x", 10**6)
    cache.put(WHO, 0, b"abc")
    subprocess.run(["rm", "-r", str(tmp_path / "x")], check=True)
    for number in range(1, 4):
        cache.put(WHO, number, b"abc")
    forget()
    assert cache.get(WHO, 3, 3) == b"abc"


def test_a_full_disk_does_no_harm(mounted, forget, caplog):
    disk = mounted("64k")
    cache = RangeCache(disk, 10**9)
    for number in range(10):
        cache.put(WHO, number, bytes(30_000))
    assert "not kept on disk any more" in caplog.text
    assert caplog.text.count("not kept") == 1
    forget()
    assert cache.get(WHO, 0, 30_000) == bytes(30_000)
    assert cache.get(WHO, 9, 30_000) is None
    assert not [path for path in files_in(disk) if "." in path.name]


def test_a_folder_that_may_only_be_read(mounted, forget, caplog):
    disk = mounted("1m")
    RangeCache(disk, 10**6).put(WHO, 0, b"abc")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    forget()
    cache = RangeCache(disk, 10**6)
    assert cache.get(WHO, 0, 3) == b"abc"
    cache.put(WHO, 5, b"abc")
    cache.put(WHO, 5, b"abc")
    assert caplog.text.count("not kept") == 1


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "x").write_text("")
    RangeCache(tmp_path / "x", 10**6).put(WHO, 0, b"abc")


def test_a_child_that_is_forked_while_the_cache_is_in_use(tmp_path):
    cache = RangeCache(tmp_path, 10**6)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            cache.put(WHO, 1, bytes(5000))

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal_if_it_hangs = threading.Timer(20, os._exit, [1])
                signal_if_it_hangs.start()
                cache.put(WHO, 2, bytes(5000))
                found = cache.get(WHO, 2, 5000)
                os._exit(0 if found == bytes(5000) else 2)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()

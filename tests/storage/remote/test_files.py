"""Objects read by position: what is asked for, together and once."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from demoreel.errors import ObjectChangedError, StoreError
from demoreel.storage import cache as caches
from demoreel.storage.cache import ByteCache, RangeCache
from demoreel.storage.remote import files
from demoreel.storage.remote.files import RemoteFile, RemoteSlice, _merged
from demoreel.storage.store import FileInfo

DATA = bytes(range(256)) * 4000


class Store:
    """One object, and what was asked of it."""

    pins = True

    def __init__(self, data=DATA):
        self.data = data
        self.etag = '"one"'
        self.asked = []
        self.gate = threading.Event()
        self.gate.set()

    def link(self, name, *, renew):
        return None

    def link_at_hand(self, name):
        return None

    def stat(self, name):
        return FileInfo(name, len(self.data), self.etag)

    def read_directly(self, name, begin, length, etag):
        self.asked.append((begin, length))
        self.gate.wait(20)
        if etag not in (None, self.etag):
            raise ObjectChangedError("An object has changed.")
        return self.data[begin : begin + length]


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(caches, "_memory", ByteCache(1 << 20))
    return Store()


def results(futures):
    return [future.result() for future in futures]


def file_in(store, **options):
    known = {"size": len(store.data), "etag": store.etag, "cache": RangeCache(), **options}
    return RemoteFile(store, "x", uri="s3://b/x", **known)


def test_reading(store):
    file = file_in(store)
    assert file.read(5, 10) == DATA[5:15]
    assert file.read(len(DATA) - 3, 10) == DATA[-3:]
    assert (file.read(-1, 5), file.read(5, 0), file.read(len(DATA), 5)) == (b"", b"", b"")
    store.asked.clear()
    assert file.read(5, 10) == DATA[5:15]
    assert store.asked == []


def test_small_objects_are_fetched_whole_once(store):
    store.data = DATA[:1000]
    file = file_in(store)
    assert file.read(0, 1000) == DATA[:1000]
    assert file.read(10, 50) == DATA[10:60]
    assert results(file.read_ranges([(1, 2), (900, 50)])) == [DATA[1:3], DATA[900:950]]
    assert store.asked == [(0, 1000)]


def test_an_object_of_unknown_size(store):
    file = file_in(store, size=None, etag=None)
    assert not file.is_known
    assert file.read(5, 10) == DATA[5:15]
    assert file.size == len(DATA)
    assert file.identity == ("s3://b/x", len(DATA), '"one"')
    store.etag = '"two"'
    with pytest.raises(ObjectChangedError):
        file.read(100, 10)


def test_names_that_are_for_ever(store):
    file = file_in(store, size=None, etag=None, for_ever=True)
    assert results(file.read_ranges([(0, 9), (300_000, 9)])) == [DATA[:9], DATA[300_000:300_009]]
    assert len(store.asked) == 2  # no request for its size
    store.asked.clear()
    again = file_in(store, size=None, etag=None, for_ever=True)
    assert results(again.read_ranges([(0, 9)])) == [DATA[:9]]
    assert store.asked == []


def test_without_a_cache(store):
    file = file_in(store, cache=None)
    assert file.read(0, 5) == file.read(0, 5) == DATA[:5]
    assert len(store.asked) == 2


@pytest.mark.parametrize(
    ("ranges", "groups"),
    [
        ([], []),
        ([(0, 10), (10, 10)], [[(0, 10), (10, 10)]]),
        ([(9 << 20, 10), (0, 10)], [[(0, 10)], [(9 << 20, 10)]]),
        ([(0, 100), (20, 10), (600, 5)], [[(0, 100), (20, 10), (600, 5)]]),
        ([(0, 100), (16_000, 5)], [[(0, 100)], [(16_000, 5)]]),
        ([(0, 90_000), (101_000, 5)], [[(0, 90_000), (101_000, 5)]]),
        (
            [(0, 90_000), (101_000, 9000), (120_000, 9000)],
            [[(0, 90_000), (101_000, 9000)], [(120_000, 9000)]],
        ),
        ([(0, 8 << 20), (8 << 20, 5)], [[(0, 8 << 20)], [(8 << 20, 5)]]),
    ],
)
def test_what_is_near_is_one_request(ranges, groups):
    assert _merged(ranges) == groups


def test_ranges_in_parallel(store):
    file = file_in(store)
    ranges = [(700_000, 10), (0, 10), (50, 10), (700_000, 10)]
    assert results(file.read_ranges(ranges)) == [DATA[a : a + n] for a, n in ranges]
    assert sorted(store.asked) == [(0, 60), (700_000, 10)]


def test_what_is_under_way_is_not_asked_for_again(store):
    file = file_in(store)
    store.gate.clear()
    first = file.read_ranges([(0, 10), (500_000, 10)])
    second = file.read_ranges([(500_000, 10)])
    assert second[0] is first[1]
    store.gate.set()
    assert second[0].result(20) == DATA[500_000:500_010]
    assert first[0].result(20) == DATA[:10]
    assert len(store.asked) == 2


def test_an_error_is_told_to_all_who_wait_and_not_kept(store):
    file = file_in(store)
    store.etag = '"two"'
    futures = file.read_ranges([(0, 10), (20, 10), (600_000, 5)])
    for future in futures:
        with pytest.raises(ObjectChangedError):
            future.result(20)
    store.etag = '"one"'
    assert results(file.read_ranges([(0, 10)])) == [DATA[:10]]


def test_ranges_beyond_the_end(store):
    with pytest.raises(StoreError, match="cut off"):
        results(file_in(store).read_ranges([(len(DATA) - 5, 10)]))


def test_two_first_reads_that_find_two_states(store):
    """Whatever comes second is not mixed with what came first."""
    file = file_in(store, size=None, etag=None)
    looked = store.stat
    both = threading.Barrier(2, timeout=20)
    states = iter(['"one"', '"two"'])

    def stat(name):
        found = looked(name)._replace(etag=next(states))
        both.wait()
        return found

    store.stat = stat
    store.read_directly = lambda name, begin, length, etag: DATA[begin : begin + length]

    def outcome(begin):
        try:
            return file.read(begin, 5)
        except ObjectChangedError:
            return None

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(outcome, (0, 100)))
    assert found.count(None) == 1


def test_a_part_of_an_object(store):
    part = RemoteSlice(file_in(store), 1000, 50)
    assert part.size == 50
    assert part.read(0, 100) == DATA[1000:1050]
    assert part.read(45, 100) == DATA[1045:1050]
    assert (part.read(-1, 5), part.read(50, 5), part.read(60, 5)) == (b"", b"", b"")
    assert results(part.read_ranges([(3, 4)])) == [DATA[1003:1007]]
    assert part.identity != RemoteSlice(file_in(store), 1000, 51).identity


def test_a_child_that_is_forked_while_ranges_are_under_way(store):
    file = file_in(store)
    store.gate.clear()
    waiting = file.read_ranges([(0, 10)])
    for _ in range(10):
        child = os.fork()
        if child == 0:
            threading.Timer(20, os._exit, [1]).start()
            store.gate = threading.Event()
            store.gate.set()
            os._exit(0 if results(file.read_ranges([(0, 10)])) == [DATA[:10]] else 2)
        assert os.waitpid(child, 0)[1] == 0
    store.gate.set()
    assert waiting[0].result(20) == DATA[:10]


def test_what_was_interrupted_can_be_read_again(store, monkeypatch):
    """Ctrl-C while requests are being sent: the others must not be waited for."""
    file = file_in(store)
    begun = []

    def interrupted(group):
        begun.append(group)
        if len(begun) == 2:
            raise KeyboardInterrupt

    ranges = [(0, 10), (100_000, 10), (200_000, 10)]
    with monkeypatch.context() as patch:
        patch.setattr(file, "_begin_group", interrupted)
        with pytest.raises(KeyboardInterrupt):
            file.read_ranges(ranges)
    file._fail(begun[0], KeyboardInterrupt())  # in truth, its answer comes
    assert not file._ahead
    assert results(file.read_ranges(ranges)) == [DATA[a : a + n] for a, n in ranges]


def test_whatever_goes_wrong_reaches_those_who_wait(store, monkeypatch):
    file = file_in(store)
    monkeypatch.setattr(RangeCache, "put", lambda *args: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        file.read_ranges([(500_000, 10)])[0].result(20)
    assert not file._ahead


def test_an_answer_that_comes_twice_is_taken_once(store):
    file = file_in(store)
    [future] = file.read_ranges([(0, 10)])
    assert future.result(20) == DATA[:10]
    group = files._Group({(0, 10): future})
    file._settle(group, DATA[:10])
    file._fail(group, OSError())
    assert future.result() == DATA[:10]

"""The conformance suite of stores: what every ``demoreel.storage.store.Store`` must pass.

Derive a class from ``StoreTests``, give it a fixture ``store`` that returns an empty store, and let
pytest collect it::

    class TestLocal(StoreTests):
        @pytest.fixture
        def store(self, tmp_path):
            return open_store(tmp_path / "store")
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demoreel.errors import StoreError, TargetExistsError, UnsafePathError
from demoreel.storage.store import Store, StoredFile

DATA = bytes(range(256)) * 1200
"""Larger than the ranges that a reader fetches with those beside them."""

Put = Callable[..., None]


def _read_in_another_process(store: Store, name: str, pipe: Any) -> None:
    pipe.send([future.result() for future in store.read_ranges(name, [(3, 5), (300_000, 7)])])


class StoreTests:
    """Tests that any store passes. Give the class a fixture ``store``: an empty one."""

    @pytest.fixture
    def store(self) -> Store:
        """Return an empty store."""
        raise NotImplementedError("a class of tests for a store says which store it is")

    @pytest.fixture
    def put(self, store: Store, tmp_path: Path) -> Put:
        """Return a function that stores bytes under a name."""

        def put(name: str, data: bytes, **options: bool) -> None:
            path = tmp_path / "to put"
            path.write_bytes(data)
            store.put(name, path, **options)

        return put

    def test_an_empty_store(self, store: Store) -> None:
        """Nothing is listed, nothing is described, and deleting nothing does no harm."""
        assert store.list()[0] in ([], ())
        assert list(store.folders()) == []
        with pytest.raises(FileNotFoundError):
            store.stat("meta/info.json")
        store.delete(["meta/info.json"])

    def test_what_is_put_is_listed(self, store: Store, put: Put) -> None:
        """Names and sizes of all files, of those in a folder, and the folders themselves."""
        sizes = {"meta/info.json": 3, "data/a b/é.parquet": 5, "data/x": 0, "README.md": 2}
        for name, size in sizes.items():
            put(name, DATA[:size])
        files, is_all = store.list()
        assert is_all
        assert {file.name: file.size for file in files} == sizes
        inside, _ = store.list("data/")
        assert sorted(file.name for file in inside) == ["data/a b/é.parquet", "data/x"]
        assert store.list("nothing/")[0] in ([], ())
        assert sorted(store.folders()) == ["data", "meta"]

    def test_files_are_described(self, store: Store, put: Put) -> None:
        """A file's size is told, and its state changes with its bytes where it is told."""
        put("meta/info.json", DATA[:100])
        first = store.stat("meta/info.json")
        assert (first.name, first.size) == ("meta/info.json", 100)
        put("meta/info.json", DATA[50:150])
        second = store.stat("meta/info.json")
        assert second.size == 100
        assert first.etag is None or first.etag != second.etag
        with pytest.raises(FileNotFoundError):
            store.stat("meta")
        with pytest.raises(FileNotFoundError):
            store.stat("meta/other.json")

    def test_ranges(self, store: Store, put: Put) -> None:
        """Ranges in any order, near and far, twice, and empty, are the bytes that were put."""
        put("data/x", DATA)
        ranges = [(300_000, 7), (0, 1), (5, 100), (0, 1), (len(DATA) - 1, 1), (0, len(DATA))]
        futures = store.read_ranges("data/x", ranges)
        assert [future.result(60) for future in futures] == [DATA[a : a + n] for a, n in ranges]
        assert list(store.read_ranges("data/x", [])) == []

    def test_a_file(self, store: Store, put: Put) -> None:
        """A file has a size and an identity, and its reads end where it does."""
        put("data/x", DATA)
        file: StoredFile = store.file("data/x")
        assert file.size == len(DATA)
        assert file.read(10, 20) == DATA[10:30]
        assert file.read(len(DATA) - 4, 100) == DATA[-4:]
        assert file.read(len(DATA), 5) == b""
        assert file.identity == store.file("data/x", store.stat("data/x")).identity
        known = store.file("data/x", store.stat("data/x"))
        assert (known.size, known.read(0, 3)) == (len(DATA), DATA[:3])

    def test_a_file_without_bytes(self, store: Store, put: Put) -> None:
        """An empty file is a file."""
        put("data/empty", b"")
        assert store.stat("data/empty").size == 0
        file = store.file("data/empty", store.stat("data/empty"))
        assert (file.size, file.read(0, 5)) == (0, b"")

    def test_files_that_are_not_there(self, store: Store, put: Put) -> None:
        """Reading one is an error of its kind, when it is read or before."""
        put("data/x", DATA)
        with pytest.raises((StoreError, OSError)):
            store.read_ranges("data/y", [(0, 5)])[0].result(60)

    def test_replacing(self, store: Store, put: Put) -> None:
        """A put replaces a file, unless the file must be new."""
        put("data/x", DATA[:1000])
        with pytest.raises(TargetExistsError):
            put("data/x", DATA[:10], new=True)
        assert store.stat("data/x").size == 1000
        put("data/x", DATA[:10])
        assert store.file("data/x").read(0, 100) == DATA[:10]
        put("data/y", DATA[:20], new=True)
        assert store.stat("data/y").size == 20

    def test_a_file_that_was_replaced_is_not_mixed(self, store: Store, put: Put) -> None:
        """An open file gives its old bytes or an error, never the new bytes."""
        put("data/x", DATA)
        file = store.file("data/x", store.stat("data/x"))
        before = file.read(0, 10)
        put("data/x", DATA[1:] + b"?")
        try:
            after = file.read(200_000, 10)
        except StoreError:
            return
        assert (before, after) == (DATA[:10], DATA[200_000:200_010])

    def test_deleting(self, store: Store, put: Put) -> None:
        """Deleted files are gone, and the others stay."""
        for name in ("data/a", "data/b", "meta/c"):
            put(name, DATA[:9])
        store.delete(["data/a", "data/nothing", "meta/c"])
        assert [file.name for file in store.list()[0]] == ["data/b"]
        with pytest.raises(FileNotFoundError):
            store.stat("data/a")

    @pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a//b", "", "a\nb"])
    def test_names_that_lead_elsewhere(self, store: Store, put: Put, name: str) -> None:
        """No name leads out of the store, whatever it is asked for."""
        for call in (store.stat, store.file, lambda name: store.delete([name])):
            with pytest.raises(UnsafePathError):
                call(name)
        with pytest.raises(UnsafePathError):
            put(name, b"x")

    @pytest.mark.parametrize("how", ["fork", "spawn"])
    def test_other_processes(self, store: Store, put: Put, how: str) -> None:
        """A store that was used goes to forked and spawned processes."""
        put("data/x", DATA)
        assert store.read_ranges("data/x", [(0, 2)])[0].result(60) == DATA[:2]
        context: Any = multiprocessing.get_context(how)
        ours, theirs = context.Pipe()
        process = context.Process(target=_read_in_another_process, args=(store, "data/x", theirs))
        process.start()
        assert ours.poll(60)
        assert ours.recv() == [DATA[3:8], DATA[300_000:300_007]]
        process.join(60)
        assert process.exitcode == 0

    def test_it_says_where_it_is(self, store: Store, put: Put) -> None:
        """It has a name without secrets, and errors say it; pickling keeps it and no secret."""
        assert store.uri
        again = pickle.loads(pickle.dumps(store))
        assert again.uri == store.uri
        put("data/x", DATA)
        with pytest.raises(FileNotFoundError, match="data/nothing") as caught:
            store.stat("data/nothing")
        shown = f"{store.uri} {pickle.dumps(store)!r} {caught.value}"
        secrets = (os.environ.get(name) for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN"))
        assert not any(secret in shown for secret in secrets if secret)

"""Lance tables written in parts: rows, blobs of any size, links."""

from __future__ import annotations

import hashlib
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from demoreel.errors import TableError
from demoreel.layouts.lance import write as lance_write
from demoreel.layouts.lance.schemas import with_blobs
from demoreel.storage.local import LocalSlice, open_file

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")

SIZES = [
    10,
    70_000,
    3,
    5 << 20,
    200,
    (4 << 20) + 1,
]  # together in a file, and in files of their own


class InMemory:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + min(length, 1000_000)]


def contents() -> list[bytes]:
    random = np.random.default_rng(0)
    return [random.bytes(size) for size in SIZES]


def files(folder: Path, kind: str) -> list[object]:
    found: list[object] = []
    for number, data in enumerate(contents()):
        path = folder / f"{number}.bin"
        path.write_bytes(b"xyz" + data if kind == "slice" else data)
        whole = open_file(path)
        choices = {"file": whole, "slice": LocalSlice(whole, 3, len(data)), "bytes": InMemory(data)}
        found.append(choices[kind])
    return found


@pytest.mark.parametrize("ranges", [False, True])
@pytest.mark.parametrize("kind", ["file", "slice", "bytes"])
def test_blobs_of_any_size_from_anywhere(tmp_path, kind, ranges):
    table = tmp_path / "t.lance"
    fragments = []
    for part in (files(tmp_path, kind)[:4], files(tmp_path, kind)[4:]):
        blobs = lance_write.BlobPart(table, "data")
        for source in part:
            blobs.add(source)
        rows = pa.table({"name": [str(n) for n in range(len(part))], "more": [b"m"] * len(part)})
        fragments += blobs.finish(rows)
    schema = with_blobs(rows.schema, "data", ranges=ranges)
    lance_write.commit_table(table, schema, fragments)
    written = lance.dataset(table)
    assert written.version == 1
    assert written.to_table(columns=["more"])["more"].to_pylist() == [b"m"] * 6  # none is lost
    read = [blob.read() for blob in written.take_blobs("data", indices=range(6))]
    digests = [[hashlib.sha256(data).hexdigest() for data in group] for group in (read, contents())]
    assert digests[0] == digests[1]


def test_links_point_at_files(tmp_path):
    path = tmp_path / "a file ü.bin"
    path.write_bytes(b"0123456789")
    rows = pa.table({"name": ["a"]})
    table = tmp_path / "t.lance"
    written = lance_write.write_links(table, "data", rows, [path.as_uri()])
    schema = with_blobs(rows.schema, "data", ranges=False)
    lance_write.commit_table(table, schema, written)
    assert lance.dataset(table).take_blobs("data", indices=[0])[0].read() == b"0123456789"


def test_parts_are_invisible_before_the_commit_and_cleared_without_it(tmp_path):
    table = tmp_path / "t.lance"
    schema = pa.schema([("n", pa.int64())])
    kept = lance_write.write_rows(table, schema, [pa.record_batch({"n": [1, 2]})])
    lance_write.write_rows(table, schema, [pa.record_batch({"n": [9]})])
    with pytest.raises(ValueError, match="not found"):
        lance.dataset(table)
    lance_write.BlobPart(table, "data").add(InMemory(b"left behind"))
    lance_write.clear_unnamed(table, kept)
    assert len(list((table / "data").iterdir())) == 1
    lance_write.commit_table(table, schema, kept)
    assert lance.dataset(table).to_table()["n"].to_pylist() == [1, 2]


def test_an_error_of_the_rows_comes_through(tmp_path):
    def rows():
        yield pa.record_batch({"n": [1]})
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        lance_write.write_rows(tmp_path / "t.lance", pa.schema([("n", pa.int64())]), rows())


def test_what_lance_refuses(tmp_path):
    with pytest.raises(TableError, match="does not write"):
        lance_write.add_index(tmp_path / "nothing.lance", "n", "BTREE")


def test_a_table_of_nothing(tmp_path):
    schema = with_blobs(pa.schema([("n", pa.int64())]), "data", ranges=False)
    lance_write.commit_table(tmp_path / "t.lance", schema, [])
    assert lance.dataset(tmp_path / "t.lance").count_rows() == 0

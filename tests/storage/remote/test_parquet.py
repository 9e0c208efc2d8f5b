"""Parquet remote files: footers, and only the columns and row groups that are wanted."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pyarrow.dataset as arrow
import pyarrow.parquet as pq
import pytest

from demoreel.storage.remote.files import RemoteFile
from demoreel.storage.remote.tables import FetchedParquet, arrow_files, read_footer


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "episode_index": np.repeat(np.arange(10), 100),
            "a.b": rng.random(1000),
            "vector": [row.tolist() for row in rng.random((1000, 3))],
            "deep": [{"x": n, "y": [{"z": str(n)}]} for n in range(1000)],
            "wide": [rng.bytes(2000) for _ in range(1000)],
        }
    )


def stored(folder_store, table, **options):
    path = folder_store.folder / "x.parquet"
    pq.write_table(table, path, **{"row_group_size": 100, **options})
    name, size, etag = folder_store.stat("x.parquet")
    return RemoteFile(folder_store, name, uri="u", size=size, etag=etag, cache=None)


def opened(file):
    return FetchedParquet(file, "u", read_footer(file, "u")[0])


def fetched(parquet, groups, columns):
    return parquet.begin(groups, columns)().read(columns, groups=groups)


def test_columns_of_some_row_groups(folder_store, table):
    remote = opened(stored(folder_store, table))
    assert remote.schema_arrow.names == table.column_names
    for columns in (["a.b"], ["deep", "vector"], ["vector", "episode_index"]):
        found = fetched(remote, [2, 5], columns)
        wanted = pa.concat_tables([table.slice(200, 100), table.slice(500, 100)])
        for name in columns:
            assert found.column(name).to_pylist() == wanted.column(name).to_pylist()
    assert fetched(remote, [], ["a.b"]).num_rows == 0


def test_only_the_bytes_that_are_wanted(folder_store, table):
    remote = opened(stored(folder_store, table))
    read = folder_store.read_directly
    asked = []
    folder_store.read_directly = lambda name, begin, length, etag: (
        asked.append(length) or read(name, begin, length, etag)
    )
    fetched(remote, [3], ["a.b"])
    assert sum(asked) < 10_000


@pytest.mark.parametrize("statistics", [True, False])
def test_the_numbers_that_row_groups_may_hold(folder_store, table, statistics):
    remote = opened(stored(folder_store, table, write_statistics=statistics))
    first, last = remote.bounds("episode_index")
    assert first.tolist() == (list(range(10)) if statistics else [-np.inf] * 10)
    assert last.tolist() == (list(range(10)) if statistics else [np.inf] * 10)


def test_a_footer_that_is_long(folder_store):
    wide = pa.table({f"column {n}": [n] for n in range(1500)})
    remote = opened(stored(folder_store, wide))
    assert fetched(remote, [0], ["column 700"]).column(0).to_pylist() == [700]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: b"PAR1",
        lambda data: data[:-8] + struct.pack("<I", 1 << 31) + b"PAR1",
        lambda data: data[:-200] + bytes(192) + data[-8:],
    ],
    ids=["cut off", "empty", "nothing in it", "long footer", "footer of zeros"],
)
def test_what_is_no_parquet(folder_store, table, damage):
    stored(folder_store, table)
    path = folder_store.folder / "x.parquet"
    path.write_bytes(damage(path.read_bytes()))
    name, size, etag = folder_store.stat("x.parquet")
    file = RemoteFile(folder_store, name, uri="u", size=size, etag=etag, cache=None)
    with pytest.raises((pa.ArrowException, OSError)):
        opened(file)


def test_a_query_over_files_remote_away(folder_store, table):
    file = stored(folder_store, table)
    files = arrow_files(lambda name: file)
    fragment = arrow.ParquetFileFormat().make_fragment("x.parquet", files)
    found = fragment.to_table(columns=["a.b"], filter=arrow.field("episode_index") == 4)
    assert found.column(0).to_pylist() == table.column("a.b").to_pylist()[400:500]
    with pytest.raises(OSError, match="only read"):
        files.delete_file("x.parquet")

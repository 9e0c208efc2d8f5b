"""Many of v2's tables at once: as one by one, and only where nothing is unusual."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demoreel.errors import TableError
from demoreel.layouts.detect import open_reader
from demoreel.layouts.v2.reader import numbers_at_once
from demoreel.testing import make_dataset

LENGTHS = [5, 30, 1, 12]
FEATURES = {
    "grid": {"dtype": "float64", "shape": [2, 3]},
    "count": {"dtype": "int64", "shape": [2]},
    "done": {"dtype": "bool", "shape": [1]},
}


@pytest.fixture
def made(tmp_path):
    return make_dataset(
        tmp_path / "made", episodes=LENGTHS, cameras=0, features=FEATURES, layout="v2.1"
    )


def at_once(reader, first: int, stop: int):
    numeric = [f for f in reader.info.features.values() if f.is_numeric]
    files = [reader.root / reader.data_file(position) for position in range(first, stop)]
    return numbers_at_once(files, numeric, reader.episodes, first, stop)


def one_by_one(reader, first: int, stop: int):
    return reader._rows.read_once(first, stop)


def assert_same(found, wanted) -> None:
    assert found is not None
    assert list(found) == list(wanted)
    for key, values in wanted.items():
        assert found[key].dtype == values.dtype, key
        assert found[key].shape == values.shape, key
        assert found[key].tobytes() == values.tobytes(), key


def rewrite(reader, position: int, change) -> None:
    path = reader.root / reader.data_file(position)
    pq.write_table(change(pq.read_table(path)), path)


@pytest.mark.parametrize(("first", "stop"), [(0, 4), (1, 3), (2, 3)])
def test_as_one_by_one(made, first, stop):
    reader = open_reader(made)
    wanted = one_by_one(reader, first, stop)
    assert_same(at_once(reader, first, stop), wanted)
    assert_same(reader.rows_once(first, stop), wanted)


def shuffled(table: pa.Table) -> pa.Table:
    return table.take(np.random.default_rng(0).permutation(len(table)))


def of_another_type(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("frame_index")
    return table.set_column(at, "frame_index", table.column(at).cast(pa.int32()))


def with_orphans(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("episode_index")
    alien = table.set_column(at, "episode_index", pa.array([99] * len(table), pa.int64()))
    return pa.concat_tables([alien, table])


def without_frames(table: pa.Table) -> pa.Table:
    return table.drop_columns(["frame_index"]).append_column(
        "frame_index", pa.array([0] * len(table), pa.int64())
    )


@pytest.mark.parametrize("change", [shuffled, of_another_type, with_orphans, without_frames])
def test_what_is_unusual_is_read_one_by_one(made, change):
    wanted = open_reader(made).rows_once(0, len(LENGTHS))
    rewrite(open_reader(made), 1, change)
    reader = open_reader(made)
    assert at_once(reader, 0, len(LENGTHS)) is None
    found = reader.rows_once(0, len(LENGTHS))
    if change is without_frames:
        assert not found.pop("frame_index")[5:35].any()
        wanted.pop("frame_index")
    assert_same(found, wanted)


@pytest.mark.parametrize("harm", ["missing", "cut off", "a column less", "a row less"])
def test_what_is_wrong_is_said(made, harm):
    reader = open_reader(made)
    path = reader.root / reader.data_file(1)
    if harm == "missing":
        path.unlink()
    elif harm == "cut off":
        path.write_bytes(path.read_bytes()[:-100])
    elif harm == "a column less":
        rewrite(reader, 1, lambda table: table.drop_columns(["count"]))
    else:
        rewrite(reader, 1, lambda table: table.slice(1))
    assert at_once(reader, 0, len(LENGTHS)) is None
    with pytest.raises(TableError):
        reader.rows_once(0, len(LENGTHS))

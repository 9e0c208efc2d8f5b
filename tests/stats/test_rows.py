"""Statistics of all numbers, whatever the tables look like."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import TableError
from demoreel.stats import columns, rows
from demoreel.stats.rows import DatasetRows, all_numbers, number_blocks
from demoreel.testing import make_dataset
from support.plain_stats import stats_of_rows

FEATURES = {
    "grid": {"dtype": "float64", "shape": [2, 3]},
    "count": {"dtype": "int64", "shape": [2]},
    "done": {"dtype": "bool", "shape": [1]},
    "note": {"dtype": "string", "shape": [1]},
}


@pytest.fixture
def made(tmp_path):
    return lambda **options: make_dataset(
        tmp_path / "made",
        episodes=[5, 90, 1, 33],
        cameras=0,
        features=FEATURES,
        data_files_size_in_mb=options.pop("data_files_size_in_mb", 0.01),
        **options,
    )


def assert_right(path) -> None:
    """Equal to what the values at once give, for the whole and for each episode."""
    dataset = demoreel.open(path)
    reader = dataset.reader
    found = all_numbers(reader)
    numeric = {key: f for key, f in dataset.features.items() if f.is_numeric}

    def from_scratch(chosen):
        return stats_of_rows(numeric, reader.rows(chosen, list(numeric)))

    def assert_equal(mine, wanted):
        assert mine.keys() == wanted.keys()
        for key, kinds in wanted.items():
            for kind, value in kinds.items():
                np.testing.assert_allclose(
                    np.asarray(mine[key][kind], np.float64), value, rtol=1e-9, atol=1e-9
                )

    assert_equal(found.whole, from_scratch(np.arange(len(dataset))))
    for position in range(len(dataset.episodes)):
        start = reader.episodes.start
        mine: dict = {}
        for name, values in found.columns.items():
            key, kind = name.removeprefix("stats/").rsplit("/", 1)
            mine.setdefault(key, {})[kind] = values[position].as_py()
        assert_equal(mine, from_scratch(np.arange(start[position], start[position + 1])))
    assert all_numbers(reader, each_episode=False).columns == {}


@pytest.mark.parametrize("layout", ["v2.0", "v2.1", "v3.0"])
def test_equal_to_all_values_at_once(made, layout):
    assert_right(made(layout=layout))


@pytest.mark.parametrize("most", [1, 7, 64])
def test_in_blocks_of_any_size(made, monkeypatch, most):
    monkeypatch.setattr(rows, "ROWS", most)
    monkeypatch.setattr(columns, "_HELD", most * 200)
    assert_right(made())


@pytest.mark.parametrize("what", ["shuffled", "orphans", "wide integers"])
def test_tables_that_are_not_as_we_write_them(made, what):
    path = made(data_files_size_in_mb=100)
    table_path = next(path.glob("data/*/*.parquet"))
    table = pq.read_table(table_path)
    if what == "shuffled":
        table = table.take(np.random.default_rng(0).permutation(len(table)))
    elif what == "orphans":
        table = pa.concat_tables([table, table.slice(0, 5).set_column(
            table.schema.get_field_index("episode_index"), "episode_index", pa.array([77] * 5)
        )])  # fmt: skip
    else:
        at = table.schema.get_field_index("count")
        wide = pa.array(np.arange(2 * len(table)) << 40)
        column = pa.FixedSizeListArray.from_arrays(wide, 2).cast(table.field(at).type)
        table = table.set_column(at, table.field(at), column)
    pq.write_table(table, table_path)
    assert_right(path)


def test_missing_rows_are_an_error(made):
    path = made(data_files_size_in_mb=100)
    table_path = next(path.glob("data/*/*.parquet"))
    pq.write_table(pq.read_table(table_path).slice(0, 100), table_path)
    with pytest.raises(TableError):
        all_numbers(demoreel.open(path).reader)


def test_blocks_hold_whole_episodes_in_order(made, monkeypatch):
    monkeypatch.setattr(rows, "ROWS", 10)
    blocks = list(number_blocks(DatasetRows(demoreel.open(made()).reader), ["index"]))
    assert [block.first for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
    assert blocks[-1].stop == 4
    assert np.concatenate([b.columns["index"] for b in blocks]).tolist() == list(range(129))

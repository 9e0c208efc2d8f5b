"""Statistics of long columns: the same to the last bit, whoever did what."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demoreel.edit import written
from demoreel.edit.statistics import long_columns
from demoreel.edit.statistics.long_columns import long_stats
from demoreel.edit.written import ParquetTables
from demoreel.model import Feature
from demoreel.run.local import LocalEngine
from demoreel.stats.running import Numbers
from demoreel.storage.arrow import from_numpy

LENGTHS = [700, 40, 1300, 1, 350]
WIDE = 45  # more than are looked at together


def feature(key: str, dtype: str, *shape: int) -> Feature:
    raw = {"dtype": dtype, "shape": list(shape), "names": None}
    return Feature.from_json(key, raw, where="here")


FEATURES = [feature("wide", "float32", WIDE), feature("count", "int64", 1)]


@pytest.fixture
def columns() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = sum(LENGTHS)
    return {
        "wide": rng.normal(size=(rows, WIDE)).astype(np.float32),
        "count": rng.integers(0, 1 << 40, rows),
    }


@pytest.fixture
def rows(tmp_path, columns) -> ParquetTables:
    paths = [tmp_path / f"{number}.parquet" for number in range(len(LENGTHS))]
    ends = np.cumsum(LENGTHS)
    for path, end, length in zip(paths, ends, LENGTHS, strict=True):
        own = slice(end - length, end)
        wide = from_numpy(columns["wide"][own].reshape(-1))
        table = {
            "wide": pa.FixedSizeListArray.from_arrays(wide, WIDE),
            "count": from_numpy(columns["count"][own]),
        }
        pq.write_table(pa.table(table), path, row_group_size=200)
    return ParquetTables(paths)


def test_equal_to_all_values_at_once(rows, columns):
    found = long_stats(rows, FEATURES, engine=None)
    for key, values in columns.items():
        running = Numbers()
        running.add(values)
        wanted = running.finish()
        for kind, value in found[key].items():
            exactly = kind not in ("mean", "std")
            tolerance = 0 if exactly else 1e-9
            np.testing.assert_allclose(value, wanted[kind], rtol=tolerance, atol=tolerance)


def test_two_processes_give_the_same_bits(rows, monkeypatch):
    monkeypatch.setattr(written, "_ROWS", 256)
    alone = long_stats(rows, FEATURES, engine=LocalEngine(1))
    together = long_stats(rows, FEATURES, engine=LocalEngine(2))
    assert alone.keys() == together.keys()
    for key, kinds in alone.items():
        for kind, value in kinds.items():
            assert together[key][kind].tobytes() == value.tobytes(), (key, kind)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 9])
def test_parts_are_the_whole(rows, parts):
    divided = rows.divided(parts)
    assert 1 <= len(divided) <= parts
    assert sum(part.frames for part in divided) == rows.frames == sum(LENGTHS)
    counts = [p["count"] for part in divided for p in part.portions(FEATURES[1:])]
    whole = [p["count"] for p in rows.portions(FEATURES[1:])]
    np.testing.assert_array_equal(np.concatenate(counts), np.concatenate(whole))


def test_few_dimensions_are_looked_at_together():
    features = [*FEATURES, feature("grid", "float64", 3, 70)]
    groups = list(long_columns._groups(features))
    widths = [sum(some.stop - some.first for some in group) for group in groups]
    assert max(widths) <= long_columns._DIMENSIONS
    assert sum(widths) == WIDE + 1 + 70

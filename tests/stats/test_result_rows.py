"""Tables of a result, read back in parts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demoreel.model import Feature
from demoreel.stats.rows import ParquetTables
from demoreel.storage.arrow import from_numpy

LENGTHS = [700, 40, 1300, 1, 350]
WIDE = 45


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


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 9])
def test_parts_are_the_whole(rows, parts):
    divided = rows.divided(parts)
    assert 1 <= len(divided) <= parts
    assert sum(part.frames for part in divided) == rows.frames == sum(LENGTHS)
    counts = [p["count"] for part in divided for p in part.portions(FEATURES[1:])]
    whole = [p["count"] for p in rows.portions(FEATURES[1:])]
    np.testing.assert_array_equal(np.concatenate(counts), np.concatenate(whole))

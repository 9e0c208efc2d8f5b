"""Numbers of a result that are not as planned are found by every verification."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demoreel.edit import verify
from demoreel.errors import ConversionError
from demoreel.model import Feature
from demoreel.run.local import LocalEngine
from demoreel.stats.rows import ParquetTables

LENGTHS = np.array([30, 1, 50, 70, 12, 40])
START = np.concatenate([[0], np.cumsum(LENGTHS)])
KEYS = ("episode_index", "frame_index", "index", "task_index")
RAW = {"dtype": "int64", "shape": [1], "names": None}
FEATURES = {key: Feature.from_json(key, RAW, where="here") for key in KEYS}
PLAN = SimpleNamespace(start=START, info=SimpleNamespace(features=FEATURES))


def numbers() -> dict[str, np.ndarray]:
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    index = np.arange(START[-1])
    task = episode % 2
    columns = (episode, index - START[episode], index, task)
    return dict(zip(KEYS, columns, strict=True))


def written(folder, columns, files=4) -> ParquetTables:
    paths = []
    for number, rows in enumerate(np.array_split(np.arange(START[-1]), files)):
        paths.append(folder / f"{number}.parquet")
        pq.write_table(pa.table({key: values[rows] for key, values in columns.items()}), paths[-1])
    return ParquetTables(paths)


@pytest.fixture(params=[None, 2], ids=["here", "shared out"])
def engine(request, monkeypatch):
    monkeypatch.setattr(verify, "_MANY", 0)
    return None if request.param is None else LocalEngine(request.param)


def test_right_numbers(tmp_path, engine):
    verify._check_numbers(PLAN, written(tmp_path, numbers()), {0, 1}, engine)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("row", [0, 101, 202])
def test_one_wrong_number(tmp_path, key, row):
    columns = numbers()
    columns[key][row] += 7
    with pytest.raises(ConversionError, match=key if key != "task_index" else "task"):
        verify._check_numbers(PLAN, written(tmp_path, columns), {0, 1}, None)


def test_a_wrong_number_that_another_process_finds(tmp_path, engine):
    columns = numbers()
    columns["frame_index"][::40] += 1
    with pytest.raises(ConversionError, match="'frame_index' of the result is not as planned"):
        verify._check_numbers(PLAN, written(tmp_path, columns), {0, 1}, engine)


def test_rows_that_are_missing(tmp_path, engine):
    columns = {key: values[:-1] for key, values in numbers().items()}
    paths = [tmp_path / "one.parquet"]
    pq.write_table(pa.table(columns), paths[0])
    with pytest.raises(ConversionError, match="202 rows; 203 were planned"):
        verify._check_numbers(PLAN, ParquetTables(paths), {0, 1}, engine)

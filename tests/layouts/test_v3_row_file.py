"""Files of one row: whichever way they are made, they are the ones that Arrow writes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demoreel.layouts.v3.writer import RowFiles, episode_rows

NOTE = {b"note": b"1"}


def row(seed=0, *, tasks=("pick",), joints=3, **more):
    random = np.random.default_rng(seed)
    return {
        "episode_index": int(random.integers(1 << 40)),
        "tasks": list(tasks),
        "seconds": float(random.normal()),
        "stats/state/mean": random.normal(size=joints),
        "stats/state/count": random.integers(1 << 40, size=1),
        "stats/camera/mean": random.normal(size=(3, 1, 1)),
        **more,
    }


def read(data):
    with pq.ParquetFile(pa.BufferReader(data)) as parquet:
        return parquet.read()


def fresh(values, schema):
    return RowFiles(NOTE).encoded(values, schema)


@pytest.mark.parametrize("known", [False, True])
def test_they_are_byte_for_byte_those_of_arrow(known):
    schema = pq.read_schema(pa.BufferReader(fresh(row(), None))) if known else None
    files = RowFiles(NOTE)
    for seed in range(5):
        for tasks in (["pick"], ["pick", "place"], ["über"]):
            values = row(seed, tasks=tasks)
            made = files.encoded(values, schema)
            assert made == fresh(values, schema)
            assert read(made).equals(episode_rows([values], schema))
            assert pq.read_schema(pa.BufferReader(made)).metadata[b"note"] == b"1"


def test_numbers_of_other_shapes_and_kinds_are_told_apart():
    schema = pq.read_schema(pa.BufferReader(fresh(row(), None)))
    files = RowFiles(NOTE)
    rows = [
        row(1),
        row(2, joints=5),
        row(3) | {"stats/state/mean": None},
        row(4) | {"stats/state/mean": np.arange(3)},  # whole numbers in a column of others
        row(5) | {"stats/state/count": np.array([2.0])},
        row(6) | {"stats/state/count": np.array([2.5])},  # which that column cannot hold
        row(7) | {"stats/state/mean": np.array([np.nan, -0.0, np.inf])},
        row(8) | {"more": np.zeros(3)},  # which no file has
        row(9),
    ]
    for values in [*rows, *rows]:
        made = read(files.encoded(values, schema))
        expected = episode_rows([values], schema)
        for name in schema.names:
            assert str(made[name].to_pylist()) == str(expected[name].to_pylist()), name


def test_other_columns_are_other_files():
    files = RowFiles(NOTE)
    first = fresh(row(), None)
    assert files.encoded(row(), None) == first
    wider = pq.read_schema(pa.BufferReader(fresh(row(more=1.5), None)))
    assert read(files.encoded(row(more=2.5), wider))["more"].to_pylist() == [2.5]

"""Tables and metadata as pandas and other tools store them: read as lerobot reads them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import DemoreelError, MetadataError, TableError, VideoError
from demoreel.testing import make_dataset
from support.defects.tools import (
    DATA,
    EPISODES,
    TASKS,
    edit_info,
    edit_lines,
    edit_table,
    lfs_pointer,
)

LENGTHS = (12, 9, 15)
FEATURES = {
    "reward": {"dtype": "float32", "shape": [1]},
    "done": {"dtype": "bool", "shape": [1]},
    "steps": {"dtype": "int64", "shape": [1]},
    "cells": {"dtype": "int32", "shape": [3]},
    "note": {"dtype": "string", "shape": [1]},
}
INDICES = ("index", "episode_index", "frame_index", "task_index")


@pytest.fixture(params=["v2.1", "v3.0"])
def made(request, tmp_path):
    return make_dataset(
        tmp_path / "ds", episodes=LENGTHS, cameras=0, features=FEATURES, tasks=("pick", "place"),
        layout=request.param,
    )  # fmt: skip


def stored_as(root, key, changed):
    def change(table):
        at = table.schema.get_field_index(key)
        return table.set_column(at, key, changed(table.column(key).combine_chunks()))

    for path in root.glob("data/*/*.parquet"):
        edit_table(path, change)


def everything(root):
    dataset = demoreel.open(root)
    return [dataset[frame] for frame in range(len(dataset))]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            assert type(one[key]) is type(value)
            assert getattr(one[key], "dtype", None) == getattr(value, "dtype", None)
            assert np.array_equal(one[key], value), key


def to_double(array):
    if pa.types.is_nested(array.type):
        return array.cast(pa.list_(pa.float64(), array.type.list_size))
    return (
        array.cast(pa.int64()).cast(pa.float64())
        if array.type == pa.bool_()
        else array.cast(pa.float64())
    )


NUMERIC = [*INDICES, "timestamp", "reward", "done", "steps", "cells", "action"]


@pytest.mark.parametrize("key", NUMERIC)
def test_numbers_that_pandas_made_floats(key, made):
    expected = everything(made)
    stored_as(made, key, to_double)
    assert_same(everything(made), expected)
    assert set(demoreel.check(made).counts) - {"constant-dimension"} == {"column-stored-type"}


def test_all_indices_as_floats(made):
    expected = everything(made)
    for key in INDICES:
        stored_as(made, key, to_double)
    assert_same(everything(made), expected)


@pytest.mark.parametrize("key", ["steps", "index", "episode_index", "frame_index"])
def test_floats_that_are_no_whole_numbers_are_refused(key, made):
    stored_as(made, key, lambda array: pa.array(np.asarray(array) + 0.5))
    with pytest.raises(TableError):
        everything(made)
    assert "feature-dtype" in demoreel.check(made).counts


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("key", ["reward", "done", "steps", "timestamp", "note", *INDICES])
def test_lists_of_one(key, is_fixed, made):
    expected = everything(made)
    size = [1] if is_fixed else []
    stored_as(made, key, lambda a: pa.array([[v] for v in a.to_pylist()], pa.list_(a.type, *size)))
    assert_same(everything(made), expected)
    [finding] = demoreel.check(made).of("feature-list")
    assert finding.severity == "error"
    assert finding.where.feature == key


# tasks.parquet


def by_pandas(root, change):
    table = pd.read_parquet(root / TASKS)
    change(table).to_parquet(root / TASKS)


TASK_TABLES = {
    "another name": lambda table: table.rename_axis("instruction"),
    "no name": lambda table: table.rename_axis(None),
    "columns": lambda table: table.reset_index(names="task"),
    "by its number": lambda table: table.reset_index(names="task").set_index("task_index"),
    "doubles": lambda table: table.astype({"task_index": "float64"}),
    "more columns": lambda table: table.assign(language="en"),
}
FOUND = {
    "columns": {"tasks-not-index"},
    "by its number": {"tasks-not-index"},
    "doubles": {"column-stored-type"},
}


@pytest.mark.parametrize("name", TASK_TABLES)
def test_tables_of_tasks(name, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=LENGTHS, cameras=0, tasks=("pick", "place"))
    by_pandas(root, TASK_TABLES[name])
    assert dict(demoreel.open(root).tasks) == {0: "pick", 1: "place"}
    found = set(demoreel.check(root).counts) - {"constant-dimension"}
    assert found == FOUND.get(name, set())


def test_task_indices_that_are_no_whole_numbers(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[3], cameras=0)
    by_pandas(root, lambda table: table.assign(task_index=[0.5]))
    with pytest.raises(MetadataError, match="task_index"):
        demoreel.open(root)


def test_what_pandas_says_may_be_anything(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[3], cameras=0)
    table = pq.read_table(root / TASKS)
    for said in (b"", b"[]", b'{"index_columns": 3}', b'{"index_columns": [{"kind": "range"}]}'):
        pq.write_table(table.replace_schema_metadata({b"pandas": said}), root / TASKS)
        assert dict(demoreel.open(root).tasks) == {0: "do it"}
        assert "tasks-not-index" in demoreel.check(root).counts


# meta/episodes and info.json


@pytest.mark.parametrize("name", ["episode_index", "length", "data/chunk_index"])
def test_episodes_by_doubles(name, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=LENGTHS, cameras=0)
    expected = everything(root)

    def change(table):
        at = table.schema.get_field_index(name)
        return table.set_column(at, name, table.column(name).cast(pa.float64()))

    edit_table(root / EPISODES, change)
    assert_same(everything(root), expected)
    assert "column-stored-type" in demoreel.check(root).counts


@pytest.mark.parametrize("names", [["data/chunk_index"], ["data/chunk_index", "data/file_index"]])
@pytest.mark.parametrize("size", [0.001, 100])
def test_episodes_that_do_not_say_where_their_rows_are(names, size, tmp_path):
    root = make_dataset(
        tmp_path / "ds", episodes=LENGTHS, cameras=0, data_files_size_in_mb=size, chunks_size=2
    )
    expected = everything(root)
    edit_table(root / EPISODES, lambda table: table.drop_columns(names))
    assert_same(everything(root), expected)
    found = set(demoreel.check(root).counts) - {"constant-dimension"}
    assert found == {"episodes-place-missing"}
    with pytest.raises(DemoreelError, match="chunk_index"):
        demoreel.resume(root)


def test_rows_that_are_in_no_table_or_in_two(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=LENGTHS, cameras=0, data_files_size_in_mb=0.001)
    edit_table(root / EPISODES, lambda table: table.drop_columns(["data/file_index"]))
    second = root / "data/chunk-000/file-001.parquet"
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(MetadataError, match="episode 1 has rows in none"):
        demoreel.open(root)
    second.write_bytes(kept)
    second.with_name("file-007.parquet").write_bytes(kept)
    with pytest.raises(MetadataError, match="episode 1 has rows in several tables"):
        demoreel.open(root)


def test_lines_by_doubles(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=LENGTHS, cameras=0, layout="v2.1")
    expected = everything(root)

    def floats(lines):
        for line in lines:
            line |= {
                name: float(line[name]) for name in ("episode_index", "length") if name in line
            }
            line |= {"task_index": float(line["task_index"])} if "task_index" in line else {}

    edit_lines(root / "meta/episodes.jsonl", floats)
    edit_lines(root / "meta/tasks.jsonl", floats)
    assert_same(everything(root), expected)
    assert {g.code.severity for g in demoreel.check(root).groups()} == {"hint"}


@pytest.mark.parametrize(
    "name", ["total_episodes", "total_frames", "total_tasks", "total_chunks", "total_videos"]
)
def test_totals_that_are_missing(name, made):
    expected = everything(made)
    edit_info(made, lambda info: info.pop(name, None))
    assert_same(everything(made), expected)
    found = set(demoreel.check(made).counts) - {"constant-dimension"}
    if name in ("total_chunks", "total_videos"):
        assert found == ({"total-videos"} if demoreel.open(made).layout == "v2.1" else set())
    else:
        assert found == {"total-missing"}


def test_a_total_that_is_missing_is_there_after_converting(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=LENGTHS, cameras=1, layout="v2.1")
    edit_info(root, lambda info: [info.pop(f"total_{n}") for n in ("episodes", "frames", "tasks")])
    demoreel.convert(root, tmp_path / "out", to="lance-video")
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert [info[f"total_{n}"] for n in ("episodes", "frames", "tasks")] == [3, 36, 1]


# Not fetched, not there


@pytest.mark.parametrize(
    ("layout", "pattern", "kind"),
    [
        ("v3.0", "meta/info.json", MetadataError),
        ("v3.0", "meta/tasks.parquet", MetadataError),
        ("v3.0", "meta/episodes/*/*.parquet", MetadataError),
        ("v3.0", "meta/stats.json", MetadataError),
        ("v3.0", "data/*/*.parquet", TableError),
        ("v3.0", "videos/*/*/*.mp4", VideoError),
        ("v2.1", "meta/episodes.jsonl", MetadataError),
        ("v2.1", "meta/tasks.jsonl", MetadataError),
        ("v2.1", "meta/episodes_stats.jsonl", MetadataError),
        ("v2.1", "data/*/*.parquet", TableError),
        ("v2.1", "videos/*/*/*.mp4", VideoError),
    ],
)
def test_git_lfs_pointers_are_called_that(layout, pattern, kind, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[4, 3], cameras=1, layout=layout)
    for path in root.glob(pattern):
        lfs_pointer(path)

    def read():
        dataset = demoreel.open(root)
        return dataset.stats, dataset[0]

    with pytest.raises(kind, match="Git LFS pointer") as caught:
        read()
    assert "git lfs pull" in caught.value.hint
    assert "file" in caught.value.where
    assert set(demoreel.check(root).counts) - {"constant-dimension"} == {"file-not-fetched"}


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
@pytest.mark.parametrize("pattern", ["data/*/*.parquet", "videos/*/*/*.mp4"])
def test_files_that_are_not_there_are_to_be_fetched(layout, pattern, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=[4, 3], cameras=1, layout=layout)
    for path in root.glob(pattern):
        path.unlink()
    with pytest.raises(DemoreelError, match="not downloaded, moved or deleted") as caught:
        demoreel.open(root)[0]
    assert "demoreel pull" in caught.value.hint


def test_lerobots_class_says_the_same(tmp_path):
    import demoreel.torch as torch

    root = make_dataset(tmp_path / "ds", episodes=[4, 3], cameras=1)
    lfs_pointer(root / DATA)
    with pytest.raises(TableError, match="Git LFS pointer"):
        torch.LeRobotDataset("me/arm", root=root)[0]

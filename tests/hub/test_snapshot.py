"""Which files episodes need: from metadata alone, without a server."""

from __future__ import annotations

import shutil

import pytest

from demoreel.errors import DatasetNotFoundError
from demoreel.hub.snapshot import files_to_fetch, opening_files, table_files
from demoreel.layouts.base import episode_files
from demoreel.layouts.detect import open_reader
from demoreel.storage.hub_calls import HubFile
from demoreel.testing import make_dataset

FRONT, WRIST = "observation.images.front", "observation.images.wrist"


def listed(*names: str) -> dict[str, HubFile]:
    return {name: HubFile(name, 1, sha256="0") for name in names}


@pytest.mark.parametrize("layout", ["v3.0", "v2.1"])
def test_files_of_episodes(tmp_path, layout):
    root = make_dataset(
        tmp_path / "task",
        episodes=[5, 4, 6],
        cameras={FRONT: (48, 64), WRIST: (48, 64)},
        layout=layout,
        data_files_size_in_mb=0.0001,
        video_files_size_in_mb=0.0001,
    )
    whole = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    for folder in ("data", "videos"):
        shutil.rmtree(root / folder)
    reader = open_reader(root)
    every = episode_files(reader, range(3), cameras=(FRONT, WRIST))
    assert set(every) == {name for name in whole if not name.startswith("meta/")}
    some = episode_files(reader, [2], cameras=(WRIST, "action", "nothing"))
    assert len(some) == 2
    assert all("2" in name for name in some)
    assert episode_files(reader, [], cameras=(FRONT,)) == []


def test_episodes_that_share_a_file_need_it_once(tmp_path):
    reader = open_reader(
        make_dataset(tmp_path / "task", episodes=[5, 4, 6], cameras={FRONT: (48, 64)})
    )
    assert episode_files(reader, [0, 2], cameras=[FRONT]) == [
        "data/chunk-000/file-000.parquet",
        f"videos/{FRONT}/chunk-000/file-000.mp4",
    ]


def test_what_belongs_to_a_dataset():
    files = listed(
        "meta/info.json",
        "README.md",
        ".gitattributes",
        ".demoreel/journal.json",
        "data/.tmp/x",
        ".versions/00000003/meta/info.json",
    )
    kept = files_to_fetch(files, "me/task")
    assert list(kept) == ["meta/info.json", "README.md", ".versions/00000003/meta/info.json"]
    with pytest.raises(DatasetNotFoundError, match="no LeRobot dataset"):
        files_to_fetch(listed("README.md", "info.json"), "me/task")


def test_metadata_come_with_info_last():
    names = ["meta/info.json", "data/x", "meta/tasks.parquet", "meta/episodes/a.parquet"]
    assert opening_files(names) == [
        "meta/episodes/a.parquet",
        "meta/tasks.parquet",
        "meta/info.json",
    ]


@pytest.mark.parametrize(
    ("names", "tables"),
    [
        (["meta/info.json", "data/chunk-000/file-000.parquet"], 0),
        (["task.lance/data/a.lance", "task_videos.lance/_versions/1.manifest", "meta/x"], 2),
        (["frames.lance/a", "videos.lance/b", "data/chunk-000/file-000.parquet"], 2),
        (["task.lance/a", "data/chunk-000/file-000.parquet"], 0),
        (["task.lance/a", ".versions/00000001/meta/info.json"], 2),
        (["deep/task.lance/a"], 0),
    ],
)
def test_lance_tables_as_a_whole(names, tables):
    assert len(table_files(names)) == tables

"""v2.0, v2.1 and v3.0 into one another: packed and unpacked, and what old datasets are like."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.convert.report import Progress
from demoreel.errors import (
    ArgumentError,
    ConversionError,
    FrameMismatchError,
    TargetExistsError,
    VideoError,
)
from demoreel.media.video import open_video
from demoreel.testing import make_dataset

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
CAMERA = "observation.images.cam0"
KINDS: dict[str, dict[str, Any]] = {
    "different splits": {
        "cameras": {FRONT: (48, 64), WRIST: (96, 128)},
        "gop": 3,
        "video_files_size_in_mb": 0.008,
        "data_files_size_in_mb": 0.004,
    },
    "b frames": {"gop": 8, "b_frames": 2, "open_gop": True},
    "images": {"cameras": 0, "image_cameras": {FRONT: (48, 64)}},
    "depth": {"cameras": 1, "depth_cameras": {"depth.front": (48, 64)}},
    "no cameras": {"cameras": 0},
}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A v2.1 dataset to be spoiled in ways that are seen in the wild."""
    return make_dataset(
        tmp_path / "old",
        layout="v2.1",
        episodes=[4, 6, 3, 5],
        cameras={FRONT: (48, 64)},
        tasks=("pick it", "放下"),
        task_changes=True,
    )


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_info(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def info_of(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "meta" / "info.json").read_text())
    return found


# There and back


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(tmp_path, kind, assert_same_items):
    first = make_dataset(
        tmp_path / "first",
        episodes=[5, 9, 2, 6],
        tasks=("a", "b"),
        task_changes=True,
        **KINDS[kind],
    )
    last = first
    for name, to in (("one", "v2.1"), ("two", "v3.0"), ("three", "v2.1")):
        report = demoreel.convert(last, tmp_path / name, to=to)
        assert report.verified is not None
        assert report.verified.rows == report.frames == 22
        assert report.verified.video_bytes == report.video_bytes
        assert demoreel.open(tmp_path / name).layout == to
        assert_same_items(first, tmp_path / name)
        last = tmp_path / name
    for camera in demoreel.open(last).info.video_keys:
        videos = sorted(last.rglob(f"{camera}/*.mp4"))
        assert [open_video(path).index.frames for path in videos] == [5, 9, 2, 6]


@pytest.mark.parametrize(
    "source", ["lance-video videos", "lance-native mixed", "lance-frames videos"]
)
def test_lance_becomes_v21(make, tmp_path, source, assert_same_items):
    demoreel.convert(make(source), tmp_path / "out", to="v2.1")
    assert_same_items(make(source), tmp_path / "out")


@pytest.mark.parametrize("name", ["g1_v21", "g1_v30"])
def test_info_is_what_lerobot_writes(fixtures, tmp_path, name):
    demoreel.convert(fixtures / "g1_v21", tmp_path / "v30", to="v3.0")
    demoreel.convert(fixtures / "g1_v30", tmp_path / "v21", to="v2.1")
    written = info_of(tmp_path / name.removeprefix("g1_"))
    wanted = info_of(fixtures / name)
    wanted.pop("video_files_size_in_mb", None)  # there, an option chose another one
    written.pop("video_files_size_in_mb", None)
    assert written == wanted


def test_episodes_are_what_lerobots_converter_writes(fixtures, tmp_path):
    demoreel.convert(fixtures / "g1_v21", tmp_path / "out", to="v3.0")
    name = "meta/episodes/chunk-000/file-000.parquet"
    mine, theirs = (pq.read_table(root / name) for root in (tmp_path / "out", fixtures / "g1_v30"))
    placed = ("videos/", "data/", "meta/")  # they had smaller files
    for column in theirs.column_names:
        if not column.startswith((*placed, "stats/")):
            assert mine.column(column).to_pylist() == theirs.column(column).to_pylist()
        elif column.startswith("stats/") and not column.endswith("count"):
            left, right = (np.array(t.column(column).to_pylist(), float) for t in (mine, theirs))
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6, err_msg=column)
    assert set(mine.column_names) >= set(theirs.column_names)


# What old datasets are like


def test_v20_gets_statistics_of_every_episode(tmp_path, assert_same_items):
    root = make_dataset(tmp_path / "old", layout="v2.0", episodes=[4, 6], cameras={FRONT: (48, 64)})
    report = demoreel.convert(root, tmp_path / "out", to="v2.1")
    assert any("computed" in note for note in report.notes)
    ds = demoreel.open(root)
    lines = lines_of(tmp_path / "out/meta/episodes_stats.jsonl")
    for number, line in enumerate(lines):
        states = ds.episode(number).column("observation.state").astype(np.float64)
        np.testing.assert_allclose(line["stats"]["observation.state"]["mean"], states.mean(0))
        np.testing.assert_allclose(line["stats"]["observation.state"]["std"], states.std(0))
        assert line["stats"]["observation.state"]["count"] == [len(states)]
        images = np.stack(list(ds.episode(number).frames(FRONT))) / 255
        found = line["stats"][FRONT]
        np.testing.assert_allclose(np.ravel(found["mean"]), images.mean((0, 1, 2)))
        np.testing.assert_allclose(np.ravel(found["max"]), images.max((0, 1, 2)))
        assert np.shape(found["mean"]) == (3, 1, 1)
        assert found["count"] == [len(states)]
    assert_same_items(root, tmp_path / "out")
    demoreel.convert(tmp_path / "out", tmp_path / "new", to="v3.0")
    assert_same_items(root, tmp_path / "new")


@pytest.mark.parametrize("to", ["v2.1", "v3.0"])
@pytest.mark.parametrize("wanted", [True, False])
def test_missing_statistics_of_images(old, tmp_path, to, wanted):
    path = old / "meta/episodes_stats.jsonl"
    lines = lines_of(path)
    for line in lines:
        del line["stats"][FRONT]
    write_lines(path, lines)
    report = demoreel.convert(old, tmp_path / "out", to=to, picture_stats=wanted)
    assert [note for note in report.notes if FRONT in note]
    stats = demoreel.open(tmp_path / "out").stats
    assert stats is not None
    assert (FRONT in stats) == wanted
    if wanted:
        images = np.stack([item[FRONT] for item in demoreel.open(old)]) / 255
        np.testing.assert_allclose(np.ravel(stats[FRONT]["mean"]), images.mean((0, 2, 3)))


def test_no_statistics_at_all(old, tmp_path):
    (old / "meta/episodes_stats.jsonl").unlink()
    demoreel.convert(old, tmp_path / "out", to="v3.0")
    stats = demoreel.open(tmp_path / "out").stats
    assert stats is not None
    assert {FRONT, "action", "observation.state"} <= stats.keys()


@pytest.mark.parametrize("to", ["v2.1", "v3.0"])
def test_cameras_as_older_programs_describe_them(old, tmp_path, to, assert_same_items):
    def age(info: dict[str, Any]) -> None:
        camera = info["features"][FRONT]
        camera["names"] = None
        camera["video_info"] = {"video.fps": 30, "video.codec": "h264"}
        camera.pop("info", None)
        info["features"]["action"]["names"] = None

    change_info(old, age)
    demoreel.convert(old, tmp_path / "out", to=to)
    camera = info_of(tmp_path / "out")["features"][FRONT]
    assert camera["names"] == ["height", "width", "channels"]
    assert camera["info"]["video.codec"] == "h264"
    assert "video_info" not in camera
    assert info_of(tmp_path / "out")["features"]["action"]["names"] is None
    assert_same_items(old, tmp_path / "out")


def test_the_frame_rate_and_totals(old, tmp_path):
    demoreel.convert(old, tmp_path / "new", to="v3.0")
    info = info_of(tmp_path / "new")
    assert "total_chunks" not in info
    assert "total_videos" not in info
    rates = {key: feature.get("fps") for key, feature in info["features"].items()}
    assert rates.pop(FRONT) is None
    assert set(rates.values()) == {30}
    demoreel.convert(tmp_path / "new", tmp_path / "back", to="v2.1")
    info = info_of(tmp_path / "back")
    assert (info["total_chunks"], info["total_videos"]) == (1, 4)
    assert not any("fps" in feature for feature in info["features"].values())


def test_episodes_out_of_order_and_with_gaps(old, tmp_path, assert_same_items):
    path = old / "meta/episodes.jsonl"
    lines = lines_of(path)
    write_lines(path, [lines[3], lines[0], lines[2]])  # episode 1 is gone
    report = demoreel.convert(old, tmp_path / "out", to="v3.0")
    assert any("renumbered" in note for note in report.notes)
    result, source = demoreel.open(tmp_path / "out"), demoreel.open(old)
    assert result.episodes.episode_index.tolist() == [0, 1, 2]
    assert result.episodes.length.tolist() == [4, 3, 5]
    assert result.info.total_frames == 12
    for index, item in enumerate(source):
        np.testing.assert_array_equal(item[FRONT], result[index][FRONT])
        np.testing.assert_array_equal(item["action"], result[index]["action"])
        assert item["task"] == result[index]["task"]
    demoreel.convert(tmp_path / "out", tmp_path / "back", to="v2.1")
    assert_same_items(tmp_path / "out", tmp_path / "back")


def test_tasks_with_odd_numbers(old, tmp_path):
    """Texts that occur twice, numbers with holes, and a task that no row names."""
    texts = [
        {"task_index": 7, "task": "nobody does this"},
        {"task_index": 1, "task": "放下"},
        {"task_index": 0, "task": "pick it"},
        {"task_index": 9, "task": "pick it"},
    ]
    write_lines(old / "meta/tasks.jsonl", texts)
    demoreel.convert(old, tmp_path / "out", to="v3.0")
    result, source = demoreel.open(tmp_path / "out"), demoreel.open(old)
    assert [item["task"] for item in source] == [item["task"] for item in result]
    assert sorted(result.tasks) == list(range(len(result.tasks)))
    assert result.info.total_tasks == len(result.tasks)


def test_missing_files(old, tmp_path):
    next((old / "videos").rglob("episode_000001.mp4")).unlink()
    next((old / "data").rglob("episode_000002.parquet")).unlink()
    with pytest.raises(VideoError, match=r"2 of 4 episodes are missing: 1,2") as caught:
        demoreel.convert(old, tmp_path / "out", to="v3.0")
    assert "skip_missing" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    report = demoreel.convert(old, tmp_path / "out", to="v3.0", skip_missing=True)
    assert (report.episodes, report.frames) == (2, 9)
    assert any("left out: 1,2" in note for note in report.notes)
    assert demoreel.open(tmp_path / "out").episodes.length.tolist() == [4, 5]


def test_an_episode_that_begins_inside_a_group_of_images(tmp_path):
    root = make_dataset(tmp_path / "in", episodes=[9, 8], gop=4, cameras=1)
    demoreel.cut(root).trim(0, 2, 9).render(tmp_path / "cut")
    with pytest.raises(FrameMismatchError, match="alone") as caught:
        demoreel.convert(tmp_path / "cut", tmp_path / "out", to="v2.1")
    assert "exact=True" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "in"]
    report = demoreel.convert(tmp_path / "cut", tmp_path / "out", to="v2.1", exact=True)
    assert any("re-encoded" in note for note in report.notes)
    videos = sorted((tmp_path / "out").rglob("*.mp4"))
    assert [open_video(path).index.frames for path in videos] == [7, 8]
    left, right = demoreel.open(tmp_path / "cut"), demoreel.open(tmp_path / "out")
    for row in range(15):
        far = np.abs(left[row][CAMERA].astype(int) - right[row][CAMERA]).mean()
        assert far < 8 if row < 2 else far == 0


# Verification, and what else every conversion promises


@pytest.mark.parametrize("verify", ["sample", "none"])
def test_less_verification(old, tmp_path, verify, assert_same_items):
    report = demoreel.convert(old, tmp_path / "out", to="v3.0", verify=verify)
    assert (report.verified is None) == (verify == "none")
    assert_same_items(old, tmp_path / "out")


def spoil(dataset: Path, what: str) -> None:
    """Change one byte of a video, one number of a table, or a task's text."""
    if what == "video":
        path = next(dataset.rglob("*.mp4"))
        content = bytearray(path.read_bytes())
        content[-100] ^= 1
        path.write_bytes(bytes(content))
        return
    path = next(dataset.rglob("data/*/*.parquet" if what == "rows" else "meta/tasks.parquet"))
    table = pq.read_table(path)
    name = "timestamp" if what == "rows" else table.column_names[-1]
    values = table.column(name).to_pylist()
    values[-1] = 0.5 if what == "rows" else "another text"
    field = table.schema.get_field_index(name)
    column = pa.array(values, table.schema.field(name).type)
    pq.write_table(table.set_column(field, table.schema.field(name), column), path)


@pytest.mark.parametrize("what", ["video", "rows", "task"])
def test_damage_is_found_before_anyone_sees_it(old, tmp_path, what):
    def damage(now: Progress) -> None:
        if now.stage == "verify" and not damaged:
            damaged.append(what)
            spoil(next(tmp_path.glob(".out.cut-*")) / "dataset", what)

    damaged: list[str] = []
    with pytest.raises(ConversionError):
        demoreel.convert(old, tmp_path / "out", to="v3.0", progress=damage)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_source_that_changes_meanwhile(old, tmp_path):
    def touch(now: Progress) -> None:
        if now.stage == "verify":
            (old / "meta" / "new.json").write_text("{}")

    with pytest.raises(ConversionError, match="has changed"):
        demoreel.convert(old, tmp_path / "out", to="v3.0", progress=touch)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_overwriting(old, tmp_path, assert_same_items):
    shutil.copytree(old, tmp_path / "out")
    with pytest.raises(TargetExistsError, match="overwrite"):
        demoreel.convert(old, tmp_path / "out", to="v3.0")
    demoreel.convert(old, tmp_path / "out", to="v3.0", overwrite=True)
    assert demoreel.open(tmp_path / "out").layout == "v3.0"
    assert_same_items(old, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "out"]


def test_dry_run(old, tmp_path):
    report = demoreel.convert(old, tmp_path / "out", to="v3.0", dry_run=True)
    assert (report.dry_run, report.frames, report.videos) == (True, 18, 1)
    assert json.loads(json.dumps(report.to_json()))["notes"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_progress_reaches_its_end(old, tmp_path):
    seen: list[Progress] = []
    demoreel.convert(old, tmp_path / "out", to="v3.0", progress=seen.append)
    assert list(dict.fromkeys(now.stage for now in seen)) == ["write", "finish", "verify", "commit"]
    assert max(now.share for now in seen if now.stage == "write") == 1


def test_nowhere_to_go(old):
    with pytest.raises(ArgumentError, match="Where is the result"):
        demoreel.convert(old, to="v3.0")

"""Where two datasets differ: nothing on equal ones, and every kind of difference that is put in."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.edit.diff.run import apart
from demoreel.errors import ArgumentError, DatasetNotFoundError, VideoError
from demoreel.media.mp4 import read_description
from demoreel.media.mp4_write import PacketRun, write_packets
from demoreel.testing import make_dataset

from .conftest import CAMERA, KINDS

DEPTH = "observation.depth.front"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Three episodes, a camera, a depth camera, language, text, two tasks."""
    return make_dataset(
        tmp_path_factory.mktemp("diff") / "plain",
        episodes=[8, 12, 5],
        gop=4,
        b_frames=2,
        depth_cameras={DEPTH: (48, 64)},
        features={"note": {"dtype": "string", "shape": [1]}},
        tasks=("pick", "place"),
        language=True,
    )


@pytest.fixture
def changed(plain, tmp_path):
    """A copy to change."""
    return shutil.copytree(plain, tmp_path / "changed")


def rewrite(dataset, change, pattern="data/*/*.parquet"):
    """Write the table of a dataset again, changed."""
    (path,) = dataset.glob(pattern)
    pq.write_table(change(pq.read_table(path)), path)


def with_value(key, row, value):
    def change(table):
        values = table.column(key).to_pylist()
        values[row] = value(values[row])
        column = pa.array(values, table.schema.field(key).type)
        return table.set_column(table.column_names.index(key), table.schema.field(key), column)

    return change


def rewrite_json(path, change):
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


# ── Equal datasets ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("to", ["lance-video", "lance-native", "lance-frames"])
def test_another_layout_is_no_difference(plain, tmp_path, to):
    options = {"image_codec": "png"} if to == "lance-frames" else {}
    demoreel.convert(plain, tmp_path / "other", to=to, **options)
    found = demoreel.diff(plain, tmp_path / "other", pixels="all")
    assert found.is_equal, found
    assert (found.episodes, found.frames) == (3, 25)
    assert found.decoded == (50 if to == "lance-frames" else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_neither_are_other_files(sources, tmp_path, kind):
    """Packets at other places in other files, from every codec and kind of GOP."""
    demoreel.cut(sources[kind]).render(tmp_path / "again", video_files_size_in_mb=0.001)
    found = demoreel.diff(sources[kind], tmp_path / "again", pixels="all")
    assert found.is_equal, found
    assert found.decoded == 0


def test_neither_is_v21(plain, tmp_path):
    demoreel.cut(plain).render(tmp_path / "old", layout="v2.1")
    assert demoreel.diff(plain, tmp_path / "old").is_equal
    assert demoreel.diff(tmp_path / "old", plain).is_equal


def test_fixtures_of_other_tools_are_equal(fixtures):
    found = demoreel.diff(fixtures / "g1_v30", fixtures / "g1_lance_video")
    assert not found.columns
    assert not found.pictures
    assert not found.statistics
    assert not found.said
    found = demoreel.diff(fixtures / "g1_v30", fixtures / "g1_v21")
    assert not found.columns
    assert not found.pictures


# ── Metadata ──────────────────────────────────────────────────────────────────────────────────────


def test_info_and_features(plain, changed):
    def change(info):
        info["fps"] = 25
        info["robot_type"] = "other"
        info["features"]["action"]["names"] = ["a", "b", "c", "d", "e", "f"]
        del info["features"]["note"]

    rewrite_json(changed / "meta" / "info.json", change)
    found = demoreel.diff(plain, changed, pixels="none")
    said = {one.what: (one.part, one.a, one.b) for one in found.said}
    assert said["fps"] == ("info", 30, 25)
    assert said["robot_type"][2] == "other"
    assert said["note"] == ("features", "string [1]", None)
    assert said["action names"][2] == ["a", "b", "c", "d", "e", "f"]
    assert len(said) == 4
    assert not found.columns


def test_tasks_by_their_texts(plain, tmp_path):
    demoreel.cut(plain).retask({"place": "put"}).render(tmp_path / "put")
    found = demoreel.diff(plain, tmp_path / "put")
    assert [(one.what, one.a, one.b) for one in found.said] == [
        ("only in a", "place", None),
        ("only in b", None, "put"),
        ("tasks", ["place"], ["put"]),
    ]
    (column,) = found.columns
    assert (column.key, column.frames, column.episodes) == ("task", 12, 1)
    assert (column.first.episode_a, column.first.frame) == (1, 0)


def test_numbers_of_tasks(plain, changed):
    def swapped(table):
        other = pc.subtract(1, table.column("task_index"))
        return table.set_column(table.column_names.index("task_index"), "task_index", other)

    rewrite(changed, swapped)
    rewrite(changed, swapped, "meta/tasks.parquet")
    found = demoreel.diff(plain, changed)
    assert [one.what for one in found.said] == ["numbers"]
    assert not found.columns
    assert demoreel.diff(plain, changed, match="content").is_equal


# ── Rows ──────────────────────────────────────────────────────────────────────────────────────────


def test_one_number(plain, changed):
    rewrite(changed, with_value("action", 10, lambda old: [*old[:5], old[5] + 0.25]))
    found = demoreel.diff(plain, changed)
    (column,) = found.columns
    assert (column.key, column.frames, column.episodes) == ("action", 1, 1)
    assert (column.first.episode_a, column.first.episode_b, column.first.frame) == (1, 1, 2)
    assert column.largest == 0.25
    assert not found.said
    assert not found.pictures
    assert not demoreel.diff(plain, changed, tolerance=0.2).is_equal
    assert demoreel.diff(plain, changed, tolerance=0.25).is_equal


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("note", lambda old: f"{old}!"),
        ("index", lambda old: old + 1),
        ("frame_index", lambda old: old + 7),
        ("timestamp", lambda old: old + 0.5),
        ("observation.state", lambda old: [float("nan"), *old[1:]]),
    ],
)
def test_one_value_of_any_column(plain, changed, key, value):
    rewrite(changed, with_value(key, 24, value))
    (column,) = demoreel.diff(plain, changed, pixels="none").columns
    assert (column.key, column.frames) == (key, 1)
    assert (column.first.episode_a, column.first.frame) == (2, 4)
    assert (column.largest == float("inf")) == (key == "observation.state")


def test_numbers_that_are_near():
    large = np.array([[2**62], [2**62 + 1], [5]])
    differs, largest = apart(large, large + np.array([[0], [1], [0]]), 0)
    assert differs.tolist() == [False, True, False]
    assert largest == 1
    nan = np.array([np.nan, np.inf, -0.0], np.float32)
    assert not apart(nan, np.array([np.nan, np.inf, 0.0]), 0)[0].any()


# ── Episodes ──────────────────────────────────────────────────────────────────────────────────────


def test_lengths(plain, tmp_path):
    demoreel.cut(plain).trim(1, 0, 9).render(tmp_path / "shorter")
    found = demoreel.diff(plain, tmp_path / "shorter")
    assert [(one.what, one.a, one.b) for one in found.said] == [("length", 12, 9)]
    assert found.frames == 22
    assert not found.columns  # what both have is the same
    assert not found.pictures
    assert "count" in {one.kind for one in found.statistics}


def test_missing_and_moved_episodes(plain, tmp_path):
    demoreel.cut(plain).keep([2, 0]).render(tmp_path / "other")
    found = demoreel.diff(plain, tmp_path / "other", match="content")
    assert found.only_in_a == (1,)
    assert found.only_in_b == ()
    assert found.moved == ((0, 1), (2, 0))
    assert not found.columns
    assert not found.pictures
    assert not found.is_equal
    by_place = demoreel.diff(plain, tmp_path / "other")
    assert by_place.only_in_a == (2,)
    assert {one.key for one in by_place.columns} >= {"action", "observation.state"}
    assert by_place.pictures


def test_chosen_episodes(plain, tmp_path):
    demoreel.cut(plain).keep([1, 2]).render(tmp_path / "some")
    found = demoreel.diff(demoreel.open(plain, episodes=[1, 2]), tmp_path / "some")
    assert [one.what for one in found.said] == ["numbers", "episode_index"]
    assert found.said[1].count == 2
    assert not found.statistics
    assert not found.columns
    assert not found.pictures


# ── Statistics ────────────────────────────────────────────────────────────────────────────────────


def test_statistics(plain, changed):
    def change(stats):
        stats["action"]["mean"][2] += 0.5
        stats["action"]["std"][2] *= 1 + 1e-9  # rounding
        del stats["action"]["q01"]
        del stats["observation.state"]

    rewrite_json(changed / "meta" / "stats.json", change)
    found = demoreel.diff(plain, changed)
    assert {(one.key, one.kind, one.only_in) for one in found.statistics} == {
        ("action", "mean", None),
        ("action", "q01", "a"),
        ("observation.state", "*", "a"),
    }
    assert next(one.largest for one in found.statistics if one.kind == "mean") == 0.5
    (changed / "meta" / "stats.json").unlink()
    with pytest.warns(UserWarning, match="no statistics"):
        assert {one.only_in for one in demoreel.diff(plain, changed).statistics} == {"a"}


# ── Images ──────────────────────────────────────────────────────────────────────────────────────


def put_together(dataset, both, gops, *, fps):
    """Replace a dataset's video by GOPs of 4 frames: the episode that each is of."""
    clips = [demoreel.open(both).reader.clip(number, CAMERA) for number in (0, 1)]
    runs = [
        PacketRun(clips[episode].video, np.arange(4 * gop, 4 * gop + 4) + clips[episode].first)
        for gop, episode in enumerate(gops)
    ]
    video = clips[0].video
    (target,) = dataset.glob("videos/*/*/*.mp4")
    target.unlink()
    write_packets(target, runs, description=read_description(video.file, name=video.name), fps=fps)


def test_only_what_leans_on_other_packets_is_decoded(tmp_path):
    """The second of three GOPs is another episode's."""
    make_dataset(tmp_path / "both", episodes=[12, 12], gop=4, cameras={CAMERA: (64, 64)})
    demoreel.cut(tmp_path / "both").keep(0).render(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    put_together(tmp_path / "b", tmp_path / "both", (0, 1, 0), fps=30)
    (camera,) = demoreel.diff(tmp_path / "a", tmp_path / "b", pixels="all").pictures
    assert (camera.decoded, camera.frames, camera.first.frame) == (4, 4, 4)


def test_videos_at_twice_the_rate_are_compared_to_their_end(tmp_path):
    """The last of three GOPs, episode frames 4 and 5, is another episode's."""
    make_dataset(tmp_path / "both", episodes=[12, 12], gop=4, cameras={CAMERA: (64, 64)})
    for name, gops in (("a", (0, 0, 0)), ("b", (0, 0, 1))):
        make_dataset(tmp_path / name, episodes=[6], cameras={CAMERA: (64, 64)})
        put_together(tmp_path / name, tmp_path / "both", gops, fps=60)
    assert demoreel.open(tmp_path / "a").reader.clip(0, CAMERA).step == 2
    assert demoreel.diff(tmp_path / "a", tmp_path / "a", pixels="all").is_equal
    (camera,) = demoreel.diff(tmp_path / "a", tmp_path / "b", pixels="all").pictures
    assert (camera.decoded, camera.frames, camera.first.frame) == (2, 2, 4)


def test_other_pixels(plain, tmp_path):
    demoreel.convert(plain, tmp_path / "lossy", to="lance-frames", jpeg_quality=60)
    found = demoreel.diff(plain, tmp_path / "lossy", pixels="all")
    (camera,) = found.pictures  # depth stays lossless
    assert camera.decoded == 25
    assert camera.frames == 25
    assert camera.episodes == 3
    assert 0 < camera.mean < 10
    assert 20 < camera.psnr < 60
    few = demoreel.diff(plain, tmp_path / "lossy")
    assert few.pictures[0].decoded == 8 + 8 + 5
    assert few.pictures[0].largest <= camera.largest
    assert demoreel.diff(plain, tmp_path / "lossy", pixel_tolerance=camera.largest).is_equal
    assert demoreel.diff(plain, tmp_path / "lossy", pixels="none").is_equal


def test_pictures_in_tables(tmp_path):
    for name, seed in (("a", 0), ("b", 0)):
        make_dataset(tmp_path / name, episodes=[4, 3], cameras={}, image_cameras={CAMERA: (48, 64)},
                     seed=seed)  # fmt: skip
    assert demoreel.diff(tmp_path / "a", tmp_path / "b").decoded == 0

    def repeated(table):
        pictures = table.column(CAMERA).to_pylist()
        pictures[5] = pictures[4]
        return table.set_column(
            table.column_names.index(CAMERA),
            table.schema.field(CAMERA),
            pa.array(pictures, table.schema.field(CAMERA).type),
        )

    rewrite(tmp_path / "b", repeated)
    found = demoreel.diff(tmp_path / "a", tmp_path / "b")
    (camera,) = found.pictures
    assert (camera.frames, camera.decoded) == (1, 1)
    assert (camera.first.episode_a, camera.first.frame) == (1, 1)


def test_other_depth(tmp_path):
    make_dataset(tmp_path / "a", episodes=[6, 6], cameras=0, depth_cameras={DEPTH: (48, 64)})
    demoreel.cut(tmp_path / "a").keep([1, 0]).render(tmp_path / "b")
    (camera,) = demoreel.diff(tmp_path / "a", tmp_path / "b").pictures
    assert camera.camera == DEPTH
    assert camera.psnr is None
    assert camera.largest > 1


def test_other_sizes(tmp_path):
    make_dataset(tmp_path / "a", episodes=[3], cameras={CAMERA: (64, 64)})
    make_dataset(tmp_path / "b", episodes=[3], cameras={CAMERA: (64, 96)})
    found = demoreel.diff(tmp_path / "a", tmp_path / "b")
    assert [one.what for one in found.said] == [f"{CAMERA} shape"]
    (camera,) = found.pictures
    assert (camera.frames, camera.largest, camera.psnr) == (3, None, None)


# ── The answer ────────────────────────────────────────────────────────────────────────────────────


def test_the_answer_is_plain_json(plain, changed):
    rewrite(changed, with_value("action", 3, lambda old: [float("nan"), *old[1:]]))
    shares = []
    found = demoreel.diff(plain, changed, report=shares.append)
    raw = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert raw["is_equal"] is False
    assert raw["columns"][0]["largest"] == "inf"
    assert raw["columns"][0]["first"] == {"episode_a": 0, "episode_b": 0, "frame": 3}
    assert shares[-1] == 1
    assert shares == sorted(shares)


@pytest.mark.parametrize(
    "arguments", [{"match": "name"}, {"pixels": "some"}, {"tolerance": -1}, {"tolerance": np.nan}]
)
def test_what_makes_no_sense(plain, arguments):
    with pytest.raises(ArgumentError):
        demoreel.diff(plain, plain, **arguments)


def test_what_is_not_there(plain, changed, tmp_path):
    with pytest.raises(DatasetNotFoundError):
        demoreel.diff(plain, tmp_path / "nothing")
    next(changed.glob("videos/*/*/*.mp4")).unlink()
    with pytest.raises(VideoError):
        demoreel.diff(plain, changed)
    assert demoreel.diff(plain, changed, pixels="none").is_equal

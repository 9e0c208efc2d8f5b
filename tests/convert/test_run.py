"""Conversions from every layout to every other, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.convert.report import Progress
from demoreel.errors import (
    ArgumentError,
    ConversionError,
    MetadataError,
    TargetExistsError,
)
from demoreel.layouts.lance.schemas import PACKETS_COLUMN
from demoreel.storage.commit.hidden_folder import lock_folder
from demoreel.testing import make_dataset

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
TARGETS = ["lance-video", "lance-native", "v3.0"]
VIDEO_SOURCES = ["v2.0", "v2.1", "v3.0", "lance-video", "lance-native"]


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Names, sizes and times of all files below a folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


def convert(source: Path, target: Path, to: Any, **options: Any) -> Any:
    before = listing(source)
    report = demoreel.convert(source, target, to=to, **options)
    assert listing(source) == before
    assert sorted(target.parent.glob(".*")) == []
    return report


# Every layout to every other


@pytest.mark.parametrize(
    ("source", "to"),
    [("v2.0", "v3.0"), *((source, to) for source in VIDEO_SOURCES[1:] for to in TARGETS)],
)
def test_videos_stay_as_they_are(make, tmp_path, source, to, assert_same_items):
    root = make(f"{source} videos")
    report = convert(root, tmp_path / "out", to)
    assert demoreel.open(tmp_path / "out").layout == to
    assert_same_items(root, tmp_path / "out")
    assert report.verified.rows == report.frames == len(demoreel.open(root))
    assert report.verified.video_bytes == report.video_bytes > 0


@pytest.mark.parametrize("codec", ["png", "webp-lossless"])
@pytest.mark.parametrize("source", ["v2.1", "v3.0", "lance-native"])
def test_lossless_frames_of_videos(make, tmp_path, source, codec, assert_same_items):
    root = make(f"{source} videos")
    convert(root, tmp_path / "out", "lance-frames", image_codec=codec)
    assert_same_items(root, tmp_path / "out")


@pytest.mark.parametrize("to", ["lance-native", "lance-frames", "v3.0"])
@pytest.mark.parametrize("source", ["v2.1 images", "v3.0 images", "lance-frames images"])
def test_images_keep_their_bytes(make, tmp_path, source, to, assert_same_items):
    root = make(source) if "frames" not in source else None
    if root is None:
        root = tmp_path / "frames"
        convert(make("v3.0 images"), root, "lance-frames")  # "source" by default
    report = convert(root, tmp_path / "out", to)
    assert report.verified.pictures == len(demoreel.open(root))
    left, right = demoreel.open(root), demoreel.open(tmp_path / "out")
    rows = np.arange(len(left))
    assert left.reader.encoded(rows, FRONT) == right.reader.encoded(rows, FRONT)
    assert_same_items(root, tmp_path / "out")


def test_frames_of_videos_become_images_of_v30(make, tmp_path, assert_same_items):
    convert(make("v3.0 videos"), tmp_path / "frames", "lance-frames", image_codec="png")
    convert(tmp_path / "frames", tmp_path / "back", "v3.0")
    back = demoreel.open(tmp_path / "back")
    assert {back.features[key].dtype for key in back.cameras} == {"image"}
    assert_same_items(tmp_path / "frames", tmp_path / "back")


@pytest.mark.parametrize(
    ("kind", "to"),
    [
        *((kind, to) for kind in ("v3.0 mixed", "v3.0 depth") for to in TARGETS),
        ("v2.1 ", "v3.0"),
        ("v2.1 ", "lance-native"),
        ("v3.0 ", "lance-video"),
    ],
)
def test_other_cameras(make, tmp_path, kind, to, assert_same_items):
    convert(make(kind), tmp_path / "out", to)
    assert_same_items(make(kind), tmp_path / "out")


def test_depth_stays_exact_in_lance_frames(make, tmp_path, assert_same_items):
    convert(make("v3.0 depth"), tmp_path / "out", "lance-frames", image_codec="png")
    assert_same_items(make("v3.0 depth"), tmp_path / "out")
    with pytest.raises(ArgumentError, match="depth camera"):
        demoreel.convert(tmp_path / "out", tmp_path / "more", to="v3.0")


def test_jpeg_is_near(make, tmp_path):
    root = make("v3.0 videos")
    report = convert(root, tmp_path / "out", "lance-frames", jpeg_quality=90, jpeg_subsampling=0)
    assert report.image_codec == "jpeg quality 90 subsampling 0"
    assert report.verified.lowest_psnr > 25
    left, right = demoreel.open(root)[5], demoreel.open(tmp_path / "out")[5]
    assert np.abs(left[FRONT].astype(int) - right[FRONT]).mean() < 8
    np.testing.assert_array_equal(left["touch.grid"], right["touch.grid"])


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("g1_v21", "lance-video"),
        ("g1_v30", "lance-native"),
        ("g1_lance_video", "lance-native"),
        ("g1_lance_native", "lance-video"),
        ("kitchen_v30", "lance-video"),
        ("kitchen_v30", "lance-native"),
    ],
)
def test_real_datasets(fixtures, tmp_path, name, to):
    convert(fixtures / name, tmp_path / "out", to)
    left, right = demoreel.open(fixtures / name), demoreel.open(tmp_path / "out")
    some = np.linspace(0, len(left) - 1, 12).astype(int)
    one, other = left.batch(some), right.batch(some)
    for key, value in one.items():
        np.testing.assert_array_equal(value, other[key], err_msg=key)
    assert left.tasks == right.tasks


def test_what_an_older_tool_made_floats_of_gets_its_types_back(
    fixtures, tmp_path, assert_same_items
):
    convert(fixtures / "kitchen_lance_frames", tmp_path / "out", "v3.0")
    table = pq.read_table(next((tmp_path / "out" / "data").rglob("*.parquet")))
    assert table.schema.field("next.done").type == pa.bool_()
    assert_same_items(fixtures / "kitchen_lance_frames", tmp_path / "out")


# Tables and metadata


def test_tables_have_the_types_of_the_original_tools(make, fixtures, tmp_path):
    convert(make("v3.0 videos"), tmp_path / "video", "lance-video", table_name="arm")
    frames = lance.dataset(tmp_path / "video" / "arm.lance")
    kinds = {field.name: field.type for field in frames.schema}
    assert kinds["episode_index"] == kinds["frame_index"] == kinds["task_index"] == pa.int32()
    assert (kinds["index"], kinds["timestamp"]) == (pa.int64(), pa.float32())
    assert kinds["next_done"] == pa.list_(pa.bool_(), 1)
    assert kinds["next_reward"] == pa.list_(pa.float64(), 1)
    assert kinds["touch_grid"] == pa.list_(pa.float32(), 12)
    assert FRONT.replace(".", "_") not in kinds
    indices = {index.name: index.index_type for index in frames.describe_indices()}
    assert indices == {"episode_index_idx": "BTree", "task_index_idx": "Bitmap"}
    videos = lance.dataset(tmp_path / "video" / "arm_videos.lance")
    assert [index.index_type for index in videos.describe_indices()] == ["Bitmap"]
    original = lance.dataset(fixtures / "g1_lance_video" / "g1_videos.lance").schema
    ours = {field.name: field.type for field in videos.schema}
    assert {**{f.name: f.type for f in original}, PACKETS_COLUMN: pa.binary()} == ours


def test_native_tables_are_those_that_lerobot_reads(fixtures, tmp_path):
    convert(fixtures / "g1_v30", tmp_path / "out", "lance-native")
    original = fixtures / "g1_lance_native"
    for name in ("frames", "videos", "meta"):
        ours = lance.dataset(tmp_path / "out" / f"{name}.lance")
        theirs = lance.dataset(original / f"{name}.lance")
        extra = [PACKETS_COLUMN] if name == "videos" else []
        assert {f.name: f.type for f in theirs.schema} == {
            f.name: f.type for f in ours.schema if f.name not in extra
        }
        same = [n for n in theirs.schema.names if n not in ("video_bytes", "data")]
        left, right = theirs.to_table(columns=same), ours.to_table(columns=same)
        assert left.to_pylist() == right.to_pylist()
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert info == json.loads((original / "meta" / "info.json").read_text())


@pytest.mark.parametrize("to", ["lance-video", "v3.0"])
def test_metadata_are_carried_over(fixtures, tmp_path, to):
    convert(fixtures / "kitchen_v30", tmp_path / "out", to)
    source = fixtures / "kitchen_v30" / "meta"
    for path in source.rglob("*"):
        if path.is_file() and path.name != "info.json":
            assert (tmp_path / "out" / "meta" / path.relative_to(source)).read_bytes() == (
                path.read_bytes()
            )


def test_v21_gets_the_metadata_of_v30(tmp_path):
    root = make_dataset(tmp_path / "old", layout="v2.1", episodes=[3, 5], cameras=1)
    lines = [json.loads(line) for line in (root / "meta/episodes.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        line |= {"success": bool(number), "operator": {"name": "Ada", "n": number}}
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (root / "meta" / "modality.json").write_text("{}")
    convert(root, tmp_path / "out", "v3.0")
    table = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet")
    rows = table.to_pylist()
    assert [row["success"] for row in rows] == [False, True]
    assert rows[1]["operator"] == {"name": "Ada", "n": 1}
    assert rows[1]["dataset_from_index"] == 3
    assert rows[1]["videos/observation.images.cam0/file_index"] == 0
    assert rows[1]["videos/observation.images.cam0/from_timestamp"] == 3 / 30
    assert len(rows[0]["stats/action/mean"]) == 6
    assert (tmp_path / "out/meta/modality.json").read_text() == "{}"
    stats, before = demoreel.open(tmp_path / "out").stats, demoreel.open(root).stats
    assert stats is not None
    assert before is not None
    np.testing.assert_allclose(stats["action"]["mean"], before["action"]["mean"])


def test_size_is_that_of_the_source(fixtures, tmp_path):
    report = convert(fixtures / "g1_v30", tmp_path / "out", "lance-video")
    source = sum(p.stat().st_size for p in (fixtures / "g1_v30").rglob("*") if p.is_file())
    assert abs(report.bytes_written / source - 1) < 0.005


def test_episodes_that_are_not_numbered_from_zero(make, tmp_path, assert_same_items):
    root = tmp_path / "gaps"
    shutil.copytree(make("v2.1 videos"), root)
    path = root / "meta" / "episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:1] + lines[2:]) + "\n")  # episode 1 is gone
    convert(root, tmp_path / "out", "lance-video")
    assert demoreel.open(tmp_path / "out").episodes.episode_index.tolist() == [0, 2, 3]
    assert_same_items(root, tmp_path / "out")


# Links


@pytest.mark.parametrize("to", ["lance-video", "lance-native"])
def test_linked_videos_stay_where_they_are(make, tmp_path, to, assert_same_items):
    root = tmp_path / "with a space"
    shutil.copytree(make("v3.0 videos"), root)
    report = convert(root, tmp_path / "out", to, link=True)
    assert report.linked
    assert report.bytes_written < report.video_bytes + 200_000
    assert not list((tmp_path / "out").rglob("*.blob"))
    assert_same_items(root, tmp_path / "out")
    convert(tmp_path / "out", tmp_path / "again", to, link=True)  # of a link, another one
    assert_same_items(root, tmp_path / "again")
    convert(tmp_path / "out", tmp_path / "whole", to)
    shutil.rmtree(root)
    assert_same_items(make("v3.0 videos"), tmp_path / "whole")


def test_videos_inside_lance_cannot_be_linked(make, tmp_path):
    with pytest.raises(ArgumentError, match="inside a Lance table"):
        demoreel.convert(make("lance-video videos"), tmp_path / "out", to="lance-native", link=True)
    assert list(tmp_path.iterdir()) == []


# What is refused, and changes nothing


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("v3.0 images", {"to": "lance-video"}, "lance-frames"),
        ("v3.0 videos", {"to": "v1.0"}, "lance-native"),
        ("v3.0 videos", {"to": "v2.1", "link": True}, "link"),
        ("v3.0 videos", {"to": "v2.1", "image_codec": "png"}, "lance-frames"),
        ("v2.1 videos", {"to": "v3.0", "table_name": "x"}, "named"),
        ("v3.0 videos", {"to": "lance-video", "verify": "some"}, "verify"),
        ("v3.0 videos", {"to": "lance-frames", "image_codec": "source"}, "videos"),
        ("v3.0 videos", {"to": "lance-frames", "jpeg_quality": 0}, "1 to 100"),
        ("v3.0 videos", {"to": "lance-frames", "jpeg_subsampling": 3}, "0, 1 or 2"),
        ("v3.0 videos", {"to": "lance-video", "image_codec": "png"}, "lance-frames"),
        ("v3.0 videos", {"to": "v3.0", "link": True}, "link"),
        ("v3.0 images", {"to": "lance-native", "link": True}, "no videos"),
        ("v3.0 videos", {"to": "lance-video", "table_name": "../x"}, "named"),
        ("v3.0 videos", {"to": "lance-video", "table_name": "x_videos"}, "named"),
        ("v3.0 videos", {"to": "lance-native", "table_name": "x"}, "named"),
        ("v3.0 videos", {"to": "lance-video", "jobs": 0}, "jobs"),
    ],
)
def test_what_cannot_be(make, tmp_path, kind, options, words):
    with pytest.raises(ArgumentError, match=words):
        demoreel.convert(make(kind), tmp_path / "new" / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_features_that_would_share_a_column(tmp_path):
    features = {"a.b": {"dtype": "float32", "shape": [1]}, "a_b": {"dtype": "bool", "shape": [1]}}
    root = make_dataset(tmp_path / "in", episodes=[2], cameras=1, features=features)
    for to in ("lance-video", "lance-frames", "lance-native"):
        with pytest.raises(MetadataError, match=r"'a\.b' and 'a_b'"):
            demoreel.convert(root, tmp_path / "out", to=to)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_folders_within_one_another(make, tmp_path):
    root = tmp_path / "in"
    shutil.copytree(make("v3.0 videos"), root)
    (tmp_path / "link").symlink_to(root)
    for target in (root, root / "out", tmp_path, tmp_path / "link", tmp_path / "link" / "out"):
        with pytest.raises((ArgumentError, TargetExistsError)):
            demoreel.convert(root, target, to="lance-video", overwrite=True)
    assert listing(root).keys() == listing(make("v3.0 videos")).keys()


def test_a_folder_with_something_in_it(make, tmp_path):
    root, out = make("v3.0 videos"), tmp_path / "out"
    out.mkdir()
    convert(root, out, "lance-video")  # an empty one is no obstacle
    before = listing(out)
    with pytest.raises(TargetExistsError, match="overwrite"):
        demoreel.convert(root, out, to="lance-native")
    assert listing(out) == before
    convert(root, out, "lance-native", overwrite=True)
    assert demoreel.open(out).layout == "lance-native"
    assert not list(out.glob("*_videos.lance"))


def test_only_a_dataset_is_overwritten(make, tmp_path):
    (tmp_path / "letters").write_text("precious")
    with pytest.raises(TargetExistsError, match="not a dataset"):
        demoreel.convert(make("v3.0 videos"), tmp_path, to="v3.0", overwrite=True)
    assert (tmp_path / "letters").read_text() == "precious"


def test_a_failed_overwrite_leaves_the_old_one(make, tmp_path):
    out = tmp_path / "out"
    convert(make("v3.0 videos"), out, "lance-video")
    before = listing(out)

    def fail(now: Progress) -> None:
        if now.stage == "commit":
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        demoreel.convert(make("v2.1 videos"), out, to="lance-native", overwrite=True, progress=fail)
    assert listing(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_dry_run_writes_nothing(make, tmp_path):
    report = convert(make("v3.0 videos"), tmp_path / "a" / "out", "lance-video", dry_run=True)
    assert report.dry_run
    assert report.frames == 31
    assert report.verified is None
    assert json.loads(json.dumps(report.to_json()))["to"] == "lance-video"
    assert list(tmp_path.iterdir()) == []


# What an earlier version left


def test_what_an_earlier_version_had_begun_is_removed(make, tmp_path):
    os.close(lock_folder(tmp_path / ".out.convert", tmp_path / "out"))
    (tmp_path / ".out.convert" / "dataset").mkdir()
    (tmp_path / ".out.convert" / "journal.jsonl").write_text("{}")
    convert(make("v3.0 videos"), tmp_path / "out", "lance-video")


def test_what_an_earlier_version_had_moved_away_is_put_back(make, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(make("v3.0 videos"), tmp_path / ".out.convert" / "before")
    os.close(lock_folder(tmp_path / ".out.convert", out))
    with pytest.raises(TargetExistsError):
        demoreel.convert(make("v2.1 videos"), out, to="lance-video")
    assert demoreel.open(out).layout == "v3.0"
    convert(make("v2.1 videos"), out, "lance-video", overwrite=True)


# Verification


def change_a_byte(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ 1]))


def spoil(folder: Path, what: str) -> None:
    data = next(folder.glob(".out.cut-*")) / "dataset"
    if what == "video":
        path = max(data.rglob("*.blob"), key=lambda p: p.stat().st_size)
        change_a_byte(path, path.stat().st_size // 2)
    elif what == "file":
        change_a_byte(next(data.rglob("*.mp4")), 3000)
    elif what == "rows":
        path = next(p for p in (data / "arm.lance" / "data").iterdir() if p.suffix == ".lance")
        content = path.read_bytes()
        change_a_byte(path, content.index(np.float32(-2).tobytes() * 1))
    elif what == "frames missing":
        frames = lance.dataset(data / "arm.lance")
        frames.delete("index = 3")
    elif what == "meta":
        (data / "meta" / "tasks.parquet").unlink()


@pytest.mark.parametrize("what", ["video", "rows", "frames missing", "meta", "file"])
def test_damage_is_found_before_anyone_sees_it(make, tmp_path, what):
    to: Any = "v3.0" if what == "file" else "lance-video"

    def damage(now: Progress) -> None:
        if now.stage == "verify" and not damaged:
            damaged.append(what)
            spoil(tmp_path, what)

    damaged: list[str] = []
    name = None if to == "v3.0" else "arm"
    with pytest.raises(ConversionError):
        demoreel.convert(
            make("v3.0 videos"), tmp_path / "out", to=to, table_name=name, progress=damage
        )
    assert damaged
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_changes_meanwhile(make, tmp_path):
    root = tmp_path / "in"
    shutil.copytree(make("v3.0 videos"), root)

    def touch(now: Progress) -> None:
        if now.stage == "finish":
            (root / "meta" / "new.json").write_text("{}")

    with pytest.raises(ConversionError, match="has changed"):
        demoreel.convert(root, tmp_path / "out", to="lance-video", progress=touch)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_verification_can_be_left_out(make, tmp_path, assert_same_items):
    report = convert(make("v3.0 videos"), tmp_path / "out", "lance-video", verify=False)
    assert report.verified is None
    assert_same_items(make("v3.0 videos"), tmp_path / "out")


def test_progress_reaches_its_end(make, tmp_path):
    seen: list[Progress] = []
    convert(make("v3.0 videos"), tmp_path / "out", "lance-video", progress=seen.append)
    stages = list(dict.fromkeys(now.stage for now in seen))
    assert stages == ["write", "finish", "verify", "commit"]
    assert max(now.share for now in seen if now.stage == "write") == 1
    assert max(now.share for now in seen if now.stage == "verify") == 1


# The names of others


def test_the_functions_that_others_know(make, tmp_path, monkeypatch):
    home = tmp_path / "home"
    shutil.copytree(make("v3.0 videos"), home / "me" / "arm")
    monkeypatch.setenv("HF_LEROBOT_HOME", str(home))
    assert demoreel.convert_to_lance_video("me/arm", tmp_path / "video") == tmp_path / "video"
    assert (tmp_path / "video" / "arm.lance").is_dir()
    demoreel.convert_to_lance("me/arm", tmp_path / "frames", jpeg_quality=80, progress=False)
    assert demoreel.open(tmp_path / "frames").layout == "lance-frames"
    demoreel.convert_to_lance_video(
        "x", tmp_path / "other", src_root=home / "me" / "arm", table_name="t"
    )
    assert (tmp_path / "other" / "t_videos.lance").is_dir()
    for wrong in ({"revision": "v1"}, {"push_to_hub": "me/there"}):
        with pytest.raises(ArgumentError, match="not supported"):
            demoreel.convert_to_lance("me/arm", tmp_path / "no", **wrong)
    assert WRIST in demoreel.open(tmp_path / "video").cameras

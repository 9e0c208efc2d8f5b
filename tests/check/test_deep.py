"""Decoding everything: what is damaged is found, what is odd is hinted at, nothing falls over."""

from __future__ import annotations

import io
import shutil

import numpy as np
import pytest
from PIL import Image

import demoreel
from demoreel.check.catalogue import CATALOGUE
from demoreel.check.deep import moving_frames
from demoreel.check.deep_watch import Levels, Watch, joined
from demoreel.media.video import open_video
from demoreel.read.in_order import runs_of
from demoreel.testing import make_dataset
from support.defects import DEFECTS
from support.defects.tools import DATA, edit_column
from support.moving import make_moving

from .conftest import defects_of, snapshot

VIDEO = "videos/observation.images.front/chunk-000/file-001.mp4"
ONLY = ["deep"]


def deep(root, **options):
    return demoreel.check(root, deep=True, only=ONLY, **options)


@pytest.mark.parametrize("name", defects_of("deep"))
def test_finds(name, assert_found):
    report = assert_found(name)
    family = {code.name for code in (*CATALOGUE["video"], *CATALOGUE["deep"])} & set(report.counts)
    assert len(family - {"video-codec"}) == 1, str(report)


@pytest.mark.parametrize("name", ["v3", "v3-images", "v2", "lance-native", "lance-frames"])
def test_decodes_every_image_of_every_layout(name, base):
    root = base(name)
    report = deep(root)
    assert report.counts == {}
    cameras = len(demoreel.open(root).cameras)
    assert report.looked_at[str(root)]["decoded"] == 36 * cameras


@pytest.mark.parametrize("name", ["kitchen_v30", "kitchen_images_v30", "kitchen_lance_frames"])
def test_real_images_raise_no_alarm(name, fixtures):
    before = snapshot(fixtures / name)
    assert deep(fixtures / name).counts == {}
    assert snapshot(fixtures / name) == before


VARIATIONS = {
    "b-frames": {"b_frames": 2, "gop": 8},
    "open gop": {"b_frames": 2, "gop": 8, "open_gop": True},
    "hevc": {"codec": "hevc"},
    "444": {"pix_fmt": "yuv444p"},
    "one frame": {"episodes": [1, 1]},
    "depth": {"cameras": 0, "depth_cameras": {"observation.depth": (48, 64)}},
}


@pytest.mark.parametrize("name", VARIATIONS)
def test_made_to_order(name, tmp_path):
    options = {"episodes": [30, 20], "cameras": 1, **VARIATIONS[name]}
    root = make_dataset(tmp_path / "made", **options)
    report = deep(root)
    assert report.counts == {}
    assert report.looked_at[str(root)]["decoded"] == sum(options["episodes"])


def test_says_which_episode_and_frame(copy):
    root = copy("v3-film")
    index = open_video(root / VIDEO).index
    packet = index.packet_of[25]
    with open(root / VIDEO, "r+b") as file:
        file.seek(int(index.offset[packet]))
        file.write(b"\xff" * int(index.size[packet]))
    [finding] = deep(root).of("picture-undecodable")
    assert (finding.where.episode, finding.where.frame, finding.where.file) == (1, 25, VIDEO)
    assert finding.count == 1
    assert "5 frames are lost" in finding.what  # up to the next keyframe


def test_images_before_and_behind_damage_are_still_looked_at(copy):
    root = copy("v3-film")
    index = open_video(root / VIDEO).index
    packet = index.packet_of[15]
    with open(root / VIDEO, "r+b") as file:
        file.seek(int(index.offset[packet]))
        file.write(b"\xff" * int(index.size[packet]))
    report = deep(root)
    assert report.counts["picture-undecodable"] == 1
    assert report.looked_at[str(root)]["decoded"] == 120 - 5


@pytest.mark.parametrize("seed", range(12))
def test_broken_bytes_end_as_findings(seed, copy):
    root = copy("v3-film")
    random = np.random.default_rng(seed)
    data = bytearray((root / VIDEO).read_bytes())
    if seed % 3 == 0:
        data = data[: random.integers(1, len(data))]
    for place in random.integers(0, len(data), 1 + seed):
        data[place] ^= 1 << int(random.integers(0, 8))
    (root / VIDEO).write_bytes(bytes(data))
    report = demoreel.check(root, deep=True)
    assert "check-failed" not in report.counts, str(report)


def test_a_video_that_is_gone_is_left_to_others(copy):
    root = copy("v3-film")
    (root / VIDEO).unlink()
    report = demoreel.check(root, deep=True)
    assert set(report.counts) == {"video-missing"}
    assert report.looked_at[str(root)]["decoded"] == 80


def test_without_a_list_of_episodes_nothing_is_decoded(copy):
    root = copy("v3-film")
    shutil.rmtree(root / "meta" / "episodes")
    assert "check-failed" not in demoreel.check(root, deep=True).counts


def test_a_robot_at_rest_may_be_filmed_as_it_is(tmp_path):
    def rest(episode, columns):
        for key in ("action", "observation.state"):
            columns[key][10:35] = columns[key][10]
        return columns

    root = make_moving(tmp_path / "arm", lengths=[40, 40], films=True, change=rest)
    assert deep(root).counts == {}


def test_thresholds_can_be_set(copy):
    root = copy("v3-film")
    DEFECTS["camera_covered"].damage(root)
    assert deep(root, thresholds={"black_seconds": 2.0}).counts == {}
    report = deep(root, thresholds={"black_level": 2.0, "camera_jump_levels": 255.0})
    assert set(report.counts) == {"picture-frozen"}  # what is not black does not move, either


def test_images_of_a_table_that_is_broken_are_left_to_others(copy):
    root = copy("v3-images")
    table = next((root / "data").rglob("*.parquet"))
    table.write_bytes(table.read_bytes()[:2000])
    assert "check-failed" not in demoreel.check(root, deep=True).counts


def test_runs_hold_every_frame_once(tmp_path):
    root = make_dataset(tmp_path / "made", episodes=[300, 280], gop=7, b_frames=2, open_gop=True)
    [path] = root.rglob("*.mp4")
    runs = list(runs_of(open_video(path).index, np.arange(580), least=256))
    assert len(runs) > 1
    assert [frame for run in runs for frame in range(*run)] == list(range(580))
    assert deep(root).counts == {}


def seen_in_parts(images, sizes):
    parts, first = [], 0
    for size in sizes:
        watch = Watch()
        for number in range(first, first + size):
            watch.add(number, images[number])
        parts.append(watch.seen())
        first += size
    return joined(parts, Levels())


def test_what_is_seen_does_not_depend_on_the_runs():
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (100, 60, 80)).astype(np.uint8)
    images[40:60] = images[40]
    whole, parts = seen_in_parts(images, [100]), seen_in_parts(images, [33, 1, 20, 46])
    for name in ("number", "bright", "same", "change", "spread", "flat"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name), equal_nan=True), name
    assert np.flatnonzero(whole.same).tolist() == list(range(41, 60))


def test_images_of_other_sizes_do_not_meet():
    watch = Watch()
    for number in range(6):
        watch.add(number, np.full((20 + 10 * (number > 2), 30), 90, np.uint8))
    seen = watch.seen()
    assert seen.sizes == {(20, 30): 0, (30, 30): 3}
    assert np.isnan(seen.change[[0, 3]]).all()
    assert seen.same.tolist() == [False, True, True, False, True, True]


def test_twelve_bits_count_as_eight():
    watch = Watch()
    watch.add(0, np.full((50, 50), 160 << 4, "<u2"), 4)
    watch.add(1, np.full((50, 50), 100 << 4, "<u2"), 4)
    seen = watch.seen()
    assert seen.bright.tolist() == [160, 100]
    assert seen.change[1] == 60


def test_noise_is_no_movement():
    random = np.random.default_rng(0)
    noise = random.normal(size=(1, 200)).astype(np.float32)
    assert moving_frames(noise, 15).mean() < 0.05
    ramp = np.linspace(0, 10, 200, dtype=np.float32)[None]
    assert moving_frames(ramp, 15).all()
    assert not moving_frames(np.zeros((3, 200), np.float32), 15).any()


def test_a_grey_png_and_one_with_alpha_decode(copy):
    root = copy("v3-images")

    def replace(images):
        for place, mode in ((3, "L"), (4, "RGBA")):
            buffer = io.BytesIO()
            Image.new(mode, (64, 64), 90 if mode == "L" else (90, 90, 90, 255)).save(buffer, "PNG")
            images[place] = {**images[place], "bytes": buffer.getvalue()}

    edit_column(root / DATA, "observation.images.front", replace)
    assert "picture-undecodable" not in deep(root).counts

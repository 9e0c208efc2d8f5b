"""Nothing is found where nothing is wrong."""

from __future__ import annotations

import pytest

import demoreel
from demoreel.testing import make_dataset
from support.defects import BASES

from .conftest import snapshot

FIXTURES = (
    "g1_v21",
    "g1_v30",
    "g1_lance_native",
    "g1_lance_video",
    "kitchen_v30",
    "kitchen_images_v30",
    "kitchen_lance_frames",
)
TRUE_HINTS = {"constant-dimension"}  # made-up datasets have some


def alarms(report):
    return {group.code.name for group in report.groups() if group.code.severity != "hint"}


@pytest.mark.parametrize("name", FIXTURES)
def test_datasets_that_other_tools_wrote(name, fixtures):
    before = snapshot(fixtures / name)
    report = demoreel.check(fixtures / name)
    assert alarms(report) == set(), str(report)
    assert snapshot(fixtures / name) == before


@pytest.mark.parametrize("name", BASES)
def test_clean_bases(name, base):
    report = demoreel.check(base(name))
    assert alarms(report) == set(), str(report)
    assert report.is_sound
    assert report.exit_code() == 0


VARIATIONS = {
    "one frame": {"episodes": [1, 2], "cameras": 1},
    "no camera": {"episodes": [5, 4], "cameras": 0},
    "b-frames": {"episodes": [30, 20], "cameras": 1, "b_frames": 2, "gop": 8},
    "open gop": {"episodes": [30, 20], "cameras": 1, "b_frames": 2, "gop": 8, "open_gop": True},
    "depth": {"episodes": [6, 5], "cameras": 0, "depth_cameras": {"observation.depth": (48, 64)}},
    "slow": {"episodes": [12, 9], "cameras": 1, "fps": 5},
    "uneven rate": {"episodes": [12, 9], "cameras": 1, "fps": 29.97},
    "language": {"episodes": [12, 9], "cameras": 1, "language": True},
    "task changes": {"episodes": [12, 9], "tasks": ("a", "b", "c"), "task_changes": True},
    "hevc": {"episodes": [12], "cameras": 1, "codec": "hevc"},
    "444": {"episodes": [12], "cameras": 1, "pix_fmt": "yuv444p"},
    "chunks of two": {
        "episodes": [3] * 5, "cameras": 1, "chunks_size": 2,
        "data_files_size_in_mb": 0.001, "video_files_size_in_mb": 0.001,
    },
}  # fmt: skip


@pytest.mark.parametrize("layout", ["v2.0", "v2.1", "v3.0"])
@pytest.mark.parametrize("name", VARIATIONS)
def test_made_to_order(name, layout, tmp_path):
    root = make_dataset(tmp_path / "made", layout=layout, **VARIATIONS[name])
    report = demoreel.check(root)
    assert alarms(report) == set(), str(report)


def test_a_recording_and_what_was_cut_from_it(base, tmp_path):
    cut = demoreel.cut(base("v3")).delete([1])
    cut.render(tmp_path / "cut")
    report = demoreel.check(tmp_path / "cut")
    assert alarms(report) == set(), str(report)


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_cuts_inside_groups_of_images_are_clean(tmp_path, codec):
    options = {"b_frames": 2} if codec != "av1" else {}
    source = make_dataset(tmp_path / "ds", episodes=[20, 17, 19], codec=codec, gop=6, **options)
    cut = demoreel.cut(source).trim(0, 3, 16).trim(1, 4, 11).trim(2, 7, 18)
    cut.render(tmp_path / "out")
    report = demoreel.check(tmp_path / "out")
    assert report.is_sound, [(f.code, f.what) for f in report.findings]


def test_an_edit_in_place_is_clean(tmp_path):
    source = make_dataset(tmp_path / "ds", episodes=[8, 7, 9])
    demoreel.convert(source, tmp_path / "lance", to="lance-video")
    demoreel.cut(tmp_path / "lance").delete([1]).render_in_place()
    report = demoreel.check(tmp_path / "lance")
    assert report.is_sound, [(f.code, f.what) for f in report.findings]

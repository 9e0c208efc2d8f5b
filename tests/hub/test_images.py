"""The image of a card: small, of every camera, and never a reason not to push."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from demoreel.hub.card import contact_sheet
from demoreel.testing import make_dataset


def test_a_row_for_each_camera(tmp_path):
    root = make_dataset(
        tmp_path / "ds",
        episodes=[3] * 7,
        cameras={"observation.images.a": (240, 320)},
        image_cameras={"observation.images.b": (60, 80)},
        depth_cameras={"observation.depth.c": (48, 64)},
    )
    sheet = contact_sheet(root)
    assert sheet is not None
    assert sheet.cameras == (
        "observation.images.a",
        "observation.images.b",
        "observation.depth.c",
    )
    with Image.open(io.BytesIO(sheet.jpeg)) as image:
        assert image.format == "JPEG"
        assert image.size == (5 * 160 + 4 * 4, 120 + 60 + 48 + 2 * 4)
    assert len(sheet.jpeg) < 50_000
    assert contact_sheet(root) == sheet


def test_a_camera_that_does_not_decode_is_left_out(tmp_path):
    cameras = {"observation.images.a": (48, 64), "observation.images.b": (48, 64)}
    root = make_dataset(tmp_path / "ds", episodes=2, length=3, cameras=cameras)
    for path in (root / "videos" / "observation.images.a").rglob("*.mp4"):
        path.write_bytes(b"no video")
    sheet = contact_sheet(root)
    assert sheet is not None
    assert sheet.cameras == ("observation.images.b",)
    for path in (root / "videos").rglob("*.mp4"):
        path.unlink()
    assert contact_sheet(root) is None
    assert contact_sheet(make_dataset(tmp_path / "blind", cameras=0, episodes=1)) is None


@pytest.mark.parametrize("name", ["kitchen_v30", "g1_v21", "kitchen_lance_frames"])
def test_datasets_of_other_tools(fixtures, name):
    sheet = contact_sheet(fixtures / name)
    assert sheet is not None
    assert len(sheet.jpeg) < 50_000

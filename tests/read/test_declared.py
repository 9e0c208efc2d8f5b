"""Pictures are those that the metadata speak of: of their size, and of no other video."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import demoreel
import demoreel.torch
from demoreel.errors import DemoreelError, FrameMismatchError, PictureError
from demoreel.testing import make_dataset

FILM, STILL, DEEP = "observation.images.cam0", "observation.images.still", "observation.depth"
VIDEO = f"videos/{FILM}/chunk-000/file-000.mp4"


def made(path, side=64, **options):
    return make_dataset(
        path,
        **{
            "episodes": 2,
            "length": 3,
            "cameras": {FILM: (side, side)},
            "image_cameras": {STILL: (side, side)},
            "depth_cameras": {DEEP: (side, side)},
            **options,
        },
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A dataset in each layout."""
    home = tmp_path_factory.mktemp("declared")
    found = {layout: made(home / layout, layout=layout) for layout in ("v2.1", "v3.0")}
    for layout in ("lance-video", "lance-frames", "lance-native"):
        found[layout] = home / layout
        demoreel.convert(found["v3.0"], found[layout], to=layout)
    return found


def declare(root, key, height, width):
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"][key]["shape"][:2] = [height, width]
    path.write_text(json.dumps(info))


@pytest.mark.parametrize("key", [FILM, STILL, DEEP])
@pytest.mark.parametrize("layout", ["v2.1", "v3.0", "lance-video", "lance-frames", "lance-native"])
def test_another_size_than_declared_is_an_error(sources, tmp_path, layout, key):
    root = tmp_path / "data"
    shutil.copytree(sources[layout], root)
    declare(root, key, 64, 48)
    for options in ({}, {"image_size": (32, 32)}):
        dataset = demoreel.open(root, **options)
        for index in (1, slice(3, None)):
            with pytest.raises((FrameMismatchError, PictureError), match="64x64 where 64x48 was"):
                dataset[index]
    with pytest.raises((FrameMismatchError, PictureError), match="64x64 where 64x48 was declared"):
        list(demoreel.open(root).episode(1).frames(key))
    codes = {finding.code for finding in demoreel.check(root, deep=True).findings}
    assert codes & {"video-size", "picture-size"}


@pytest.mark.parametrize("image_size", [None, (32, 32)])
def test_one_image_of_another_size_is_an_error(tmp_path, image_size):
    root = made(tmp_path / "data", data_files_size_in_mb=0.001, depth_cameras={})
    other = made(tmp_path / "other", 48, data_files_size_in_mb=0.001, depth_cameras={})
    table = "data/chunk-000/file-001.parquet"
    shutil.copyfile(other / table, root / table)
    dataset = demoreel.open(root, cameras=[STILL], image_size=image_size)
    assert dataset[2][STILL].shape[1:] == (image_size or (64, 64))
    for indices in ([3], [2, 3], range(6)):
        with pytest.raises(PictureError, match="48x48 where 64x64 was declared"):
            dataset.batch(indices)
    with pytest.raises(DemoreelError, match="48x48 where 64x64 was declared"):
        demoreel.convert(root, tmp_path / "frames", to="lance-frames")


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_a_longer_video_in_its_place_is_an_error(tmp_path, layout):
    sizes = {"image_cameras": {}, "depth_cameras": {}, "layout": layout}
    root = made(tmp_path / "data", **sizes)
    longer = made(tmp_path / "longer", length=5, **sizes)
    name = f"videos/chunk-000/{FILM}/episode_000001.mp4" if layout == "v2.1" else VIDEO
    before = demoreel.open(root).batch([3])[FILM]
    kept, early = demoreel.open(root), demoreel.open(root)
    assert np.array_equal(early[3][FILM], before[0])
    shutil.copyfile(longer / name, root / name)
    for dataset in (kept, early, demoreel.open(root)):
        for read in (lambda d=dataset: d[3], lambda d=dataset: list(d.episode(1).frames(FILM))):
            with pytest.raises(FrameMismatchError, match="frames"):
                read()
    assert "video-long" in {finding.code for finding in demoreel.check(root).findings}
    assert demoreel.check(root).worst == "error"


def test_what_an_edit_in_place_leaves_in_a_video_is_no_error(sources, tmp_path):
    root = tmp_path / "data"
    shutil.copytree(sources["lance-video"], root)
    demoreel.cut(root).keep([0]).render_in_place()
    back = tmp_path / "back"
    demoreel.convert(root, back, to="v3.0")
    for path in (root, back):
        assert len(demoreel.open(path).batch(range(3))[FILM]) == 3
        assert "video-long" not in {finding.code for finding in demoreel.check(path).findings}
    shutil.copyfile(made(tmp_path / "longer", length=5) / VIDEO, back / VIDEO)
    with pytest.raises(FrameMismatchError, match="goes on for 7 frames"):
        demoreel.open(back)[0]


def test_a_linked_video_must_be_the_one_that_was_linked(tmp_path):
    sizes = {"image_cameras": {}, "depth_cameras": {}}
    source, linked = made(tmp_path / "source", **sizes), tmp_path / "linked"
    demoreel.convert(source, linked, to="lance-video", link=True)
    early = demoreel.open(linked)
    assert len(early[:]["index"]) == 6
    for options in ({"length": 5}, {"crf": 45}):
        other = made(tmp_path / str(options), **sizes, **options)
        shutil.copyfile(other / VIDEO, source / VIDEO)
        for dataset in (early, demoreel.open(linked)):
            with pytest.raises(FrameMismatchError, match="not the one that it was made from"):
                dataset[:]


@pytest.mark.parametrize("image_size", [None, (32, 16)])
def test_images_whose_sides_were_declared_in_the_wrong_order_are_shown(tmp_path, image_size):
    root = made(tmp_path / "data", image_cameras={STILL: (64, 48)}, depth_cameras={})
    before = demoreel.open(root, image_size=image_size).batch([0, 4])[STILL]
    declare(root, STILL, 48, 64)
    dataset = demoreel.open(root, image_size=image_size)
    after = dataset.batch([0, 4])[STILL]
    assert after.shape[2:] == (image_size or (64, 48))
    assert np.array_equal(after, before)
    assert next(iter(dataset.episode(0).frames(STILL))).shape == (64, 48, 3)
    assert "picture-size" in {finding.code for finding in demoreel.check(root, deep=True).findings}


def test_colours_in_a_depth_camera_are_shown_as_colours(tmp_path):
    root = made(tmp_path / "data", depth_cameras={})
    before = demoreel.open(root)[4][STILL]
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"][STILL] |= {"shape": [64, 64, 1], "info": {"is_depth_map": True}}
    path.write_text(json.dumps(info))
    dataset = demoreel.open(root)
    after = dataset[4][STILL]
    assert dataset.features[STILL].is_depth
    assert after.dtype == np.uint8
    assert np.array_equal(after, before)
    item = demoreel.torch.LeRobotDataset("me/data", root)[4][STILL]
    assert item.shape == (3, 64, 64)
    assert float(item.max()) <= 1

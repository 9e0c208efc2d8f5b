"""Levels that are counted by decoding are those of the images that samples show."""

from __future__ import annotations

import numpy as np
import pytest

import demoreel
from demoreel.errors import ArgumentError, VideoError
from demoreel.stats.levels import count_levels, has_fractions
from demoreel.stats.running import LevelCounts
from demoreel.testing import make_dataset


def opened(path):
    return demoreel.open(path, decode_threads=1)


CAM, EYE, DEEP = "observation.images.cam0", "observation.images.eye", "observation.depth.deep"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("counting") / "made",
        episodes=[40, 7, 35],
        gop=5,
        b_frames=2,
        open_gop=True,
        image_cameras={EYE: (16, 24)},
        depth_cameras={DEEP: (16, 24)},
    )


def counted(path, parts, **options) -> dict[tuple[str, int], LevelCounts]:
    found = count_levels(opened(path).reader, parts, **options)
    return {(camera, position): levels for camera, position, levels in found}


@pytest.mark.parametrize("threads", [1, 2])
def test_counts_are_those_of_the_samples(dataset, threads):
    parts = [(CAM, 0), (EYE, 1), (EYE, 2), (CAM, 1), (CAM, 2)]
    frames = []
    found = counted(dataset, parts, threads=threads, report=frames.append)
    assert list(found) == parts
    source = opened(dataset)
    for camera, position in parts:
        begin, stop = source.episodes.start[position : position + 2].tolist()
        wanted = LevelCounts()
        for row in range(begin, stop):
            wanted.add(np.ascontiguousarray(source[row][camera].transpose(1, 2, 0)))
        assert np.array_equal(found[camera, position].histogram(), wanted.histogram())
        assert found[camera, position].count == stop - begin
    assert sum(frames) == sum(int(source.episodes.length[position]) for _, position in parts)


def test_depth_is_counted_by_its_codes(dataset):
    (found,) = counted(dataset, [(DEEP, 1)]).values()
    assert found.histogram().shape == (1, 65536)
    assert found.histogram()[0, 4096:].sum() == 0
    assert not has_fractions(opened(dataset).reader, DEEP)


def test_an_error_says_where(dataset, tmp_path):
    broken = make_dataset(tmp_path / "broken", episodes=[9, 9])
    video = next(broken.rglob("*.mp4"))
    data = bytearray(video.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 400] = bytes(400)
    video.write_bytes(data)
    with pytest.raises(VideoError) as caught:
        counted(broken, [(CAM, number) for number in range(2)])
    assert caught.value.where["camera"] == CAM
    assert caught.value.where["episode"] in (0, 1)
    with pytest.raises(ArgumentError, match="threads"):
        counted(dataset, [], threads=0)

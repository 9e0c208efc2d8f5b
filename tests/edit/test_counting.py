"""Levels that are counted by decoding are those of the pictures that samples show."""

from __future__ import annotations

import numpy as np
import pytest

from demoreel.edit.statistics.counting import Part, count_levels, has_fractions
from demoreel.errors import ArgumentError, VideoError
from demoreel.stats.running import Pictures
from demoreel.testing import make_dataset

from .conftest import opened

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


def counted(path, parts, **options) -> dict[Part, Pictures]:
    found: dict[Part, Pictures] = {}
    count_levels(opened(path).reader, parts, found.__setitem__, **options)
    return found


@pytest.mark.parametrize("threads", [1, 2])
def test_counts_are_those_of_the_samples(dataset, threads):
    parts = [
        Part(CAM, 0, 0, 40),
        Part(CAM, 2, 3, 34),
        Part(EYE, 1, 0, 7),
        Part(EYE, 2, 0, 35),
        Part(CAM, 1, 6, 7),
    ]
    frames = []
    found = counted(dataset, parts, threads=threads, report=frames.append)
    source = opened(dataset)
    for part in parts:
        begin = int(source.episodes.start[part.position])
        wanted = Pictures()
        for row in range(begin + part.start, begin + part.stop):
            wanted.add(np.ascontiguousarray(source[row][part.camera].transpose(1, 2, 0)))
        assert np.array_equal(found[part].histogram(), wanted.histogram()), part
        assert found[part].count == part.frames
    assert sum(frames) == sum(part.frames for part in parts)


def test_depth_is_counted_by_its_codes(dataset):
    (found,) = counted(dataset, [Part(DEEP, 1, 0, 7)]).values()
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
        counted(broken, [Part(CAM, number, 0, 9) for number in range(2)])
    assert caught.value.where["camera"] == CAM
    assert caught.value.where["episode"] in (0, 1)
    with pytest.raises(ArgumentError, match="threads"):
        counted(dataset, [], threads=0)

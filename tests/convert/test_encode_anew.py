"""Conversions that encode cameras again: codec, GOP, size; the same rows, frames alike."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

import demoreel
from demoreel.convert.training import measure_for_training
from demoreel.errors import DemoreelError
from demoreel.testing import make_dataset

CAMERA, STILL, DEPTH = "observation.images.cam0", "observation.images.still", "observation.depth"
LENGTHS = [9, 14, 5]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("encode") / "made",
        episodes=LENGTHS,
        cameras={CAMERA: (96, 128)},
        image_cameras={STILL: (64, 80)},
        depth_cameras={DEPTH: (24, 32)},
        gop=5,
    )


def psnr(left, right) -> float:
    error = float(((left.astype(float) - right) ** 2).mean())
    return 10 * np.log10(255**2 / max(error, 1e-9))


@pytest.mark.parametrize("layout", ["v3.0", "v2.1", "lance-video", "lance-native"])
def test_to_another_codec_gop_and_size(root, tmp_path, layout):
    report = demoreel.convert(
        root, tmp_path / "out", to=layout, codec="h264", gop=3, crf=12, image_size=(48, 64)
    )
    made, source = demoreel.open(tmp_path / "out"), demoreel.open(root, image_size=(48, 64))
    assert made.layout == layout
    for key in (CAMERA, STILL):
        feature = made.features[key]
        assert feature.is_video
        assert feature.image_shape == (48, 64, 3)
        assert feature.info["video.codec"] == "h264"
        assert (feature.info["video.height"], feature.info["video.width"]) == (48, 64)
        index = made.reader.clip(1, key).video.index
        starts = made.reader.clip(1, key).frames(np.arange(LENGTHS[1]))
        assert len(np.unique(index.starts(starts))) == 5  # 14 frames in GOPs of 3
    assert made.features[DEPTH].image_shape == source.features[DEPTH].image_shape
    mine, theirs = (d.batch(range(len(source))) for d in (made, source))
    for key in (CAMERA, STILL):
        for image, twin in zip(mine[key], theirs[key], strict=True):
            assert psnr(image, twin) > 25
    for key in ("action", "observation.state", "index", "timestamp"):
        assert np.array_equal(mine[key], theirs[key])
    plain = demoreel.open(root, cameras=[DEPTH]).batch(range(len(source)))
    assert np.array_equal(mine[DEPTH], plain[DEPTH])
    assert report.verified.lowest_psnr > 25
    assert report.verified.frames >= 8


def test_statistics_are_those_of_the_new_images(root, tmp_path):
    demoreel.convert(root, tmp_path / "out", to="v3.0", codec="h264", image_size=(48, 64))
    made = demoreel.open(tmp_path / "out")
    images = made.batch(range(len(made)))[CAMERA].transpose(1, 0, 2, 3).reshape(3, -1) / 255
    stats = made.stats[CAMERA]
    assert np.allclose(np.ravel(stats["mean"]), images.mean(1), atol=1e-4)
    assert np.allclose(np.ravel(stats["std"]), images.std(1), atol=1e-4)
    assert np.allclose(np.ravel(stats["min"]), images.min(1), atol=1e-6)


def test_one_camera_alone(root, tmp_path):
    demoreel.convert(root, tmp_path / "out", to="v3.0", image_size=(48, 64), cameras=[CAMERA])
    made, source = demoreel.open(tmp_path / "out"), demoreel.open(root)
    assert made.features[CAMERA].image_shape == (48, 64, 3)
    assert made.features[CAMERA].info["video.codec"] == "h264"  # as it had
    assert made.features[STILL] == source.features[STILL]
    assert np.array_equal(made[7][STILL], source[7][STILL])


@pytest.mark.parametrize("layout", ["v2.1", "lance-video"])
def test_clips_are_encoded_side_by_side(root, tmp_path, monkeypatch, layout):
    """Also those of several videos: v2.1 has one for each episode."""
    from demoreel.edit import videos

    encode, together, calls = videos.encode_take, threading.Barrier(2), itertools.count()

    def waiting(*args, **options):
        if next(calls) < 2:
            together.wait(60)  # fails where they are encoded one after the other
        return encode(*args, **options)

    monkeypatch.setattr(videos, "encode_take", waiting)
    options = {"to": layout, "codec": "h264", "cameras": [CAMERA], "jobs": 2}
    demoreel.convert(root, tmp_path / "out", **options)
    assert len(demoreel.open(tmp_path / "out")) == sum(LENGTHS)
    demoreel.convert(root, tmp_path / "one", **options | {"jobs": 1})
    mine, theirs = (demoreel.open(tmp_path / n).batch(range(sum(LENGTHS))) for n in ("out", "one"))
    assert np.array_equal(mine[CAMERA], theirs[CAMERA])


def test_another_engine_runs_the_tasks(root, tmp_path):
    """Tasks go to other processes, as to those of a cluster."""
    from demoreel.run.local import LocalEngine

    class Counting(LocalEngine):
        done = 0

        def run(self, tasks):
            for one in super().run(tasks):
                self.done += 1
                yield one

    engine = Counting(2)
    options = {"to": "v2.1", "codec": "h264", "image_size": (48, 64), "cameras": [CAMERA]}
    demoreel.convert(root, tmp_path / "out", **options, engine=engine)
    assert engine.done > 1
    demoreel.convert(root, tmp_path / "here", **options)
    for path in (tmp_path / "here").rglob("*.mp4"):
        other = tmp_path / "out" / path.relative_to(tmp_path / "here")
        assert other.read_bytes() == path.read_bytes()


def test_a_killed_conversion_goes_on(root, tmp_path, monkeypatch):
    from demoreel.edit import videos

    encode, done = videos.encode_take, []

    def failing(take, *args, **options):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(take)
        return encode(take, *args, **options)

    options = {"to": "v3.0", "codec": "h264", "crf": 20, "jobs": 1}
    demoreel.convert(root, tmp_path / "whole", **options)
    monkeypatch.setattr(videos, "encode_take", failing)
    with pytest.raises(KeyboardInterrupt):
        demoreel.convert(root, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(videos, "encode_take", encode)
    demoreel.convert(root, tmp_path / "out", **options)
    for path in (tmp_path / "whole").rglob("*.mp4"):
        other = tmp_path / "out" / path.relative_to(tmp_path / "whole")
        assert other.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"to": "lance-frames", "gop": 2}, "lance-frames has images"),
        ({"to": "v3.0", "image_size": (47, 64)}, "even numbers"),
        ({"to": "v3.0", "codec": "nothing"}, "nothing"),
        ({"to": "v3.0", "codec": "h264", "crf": 99}, "crf"),
        ({"to": "v3.0", "codec": "h264", "cameras": ["nowhere"]}, "no camera 'nowhere'"),
        ({"to": "v3.0", "codec": "h264", "cameras": [DEPTH]}, "kept as it is"),
        ({"to": "lance-video", "codec": "h264", "link": True}, "neither linked"),
    ],
)
def test_what_cannot_be(root, tmp_path, options, said):
    with pytest.raises(DemoreelError, match=said):
        demoreel.convert(root, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.soak
def test_ways_to_encode_are_measured_and_nothing_is_written(root):
    before = sorted(path.name for path in root.parent.iterdir())
    source, *ways = measure_for_training(
        root, codecs=("h264", "nothing"), gops=(12,), image_size=(48, 64), jobs=1
    )
    assert (source.codec, source.options()) == (None, "")
    done = [way for way in ways if way.problem is None]
    assert {(way.codec, way.gop, way.image_size) for way in done} == {
        ("h264", 12, None),
        ("h264", 12, (48, 64)),
    }
    small = next(way for way in done if way.image_size)
    assert small.options() == "--codec h264 --gop 12 --crf 30 --image-size 48x64"
    assert all(way.frames_per_s > 0 and way.windows_per_s > 0 for way in (source, *done))
    assert all(way.bytes_per_frame > 0 for way in (source, *done))
    assert all("nothing" in way.problem for way in ways if way.problem)
    assert sorted(path.name for path in root.parent.iterdir()) == before

"""Measuring speed: that both sides do the same work. How fast they do it is for benchmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import demoreel
from demoreel.errors import ArgumentError, UnknownKeyError
from demoreel.media.decode import DecodePool
from demoreel.read.cameras import Camera
from demoreel.read.speed import ROUNDS, _Floor, measure_speed, spans
from demoreel.testing import make_dataset, read_stamp

FRONT, WRIST = "observation.images.front", "observation.images.wrist"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes whose edges are inside GOPs, over several files."""
    return make_dataset(
        tmp_path_factory.mktemp("speed") / "videos",
        episodes=[7, 30, 3, 22],
        cameras={FRONT: (96, 128), WRIST: (64, 64)},
        gop=6,
        b_frames=2,
        video_files_size_in_mb=0.02,
    )


def test_reports_what_it_did(root):
    done: list[float] = []
    speed = measure_speed(root, batch_size=8, seconds=0.2, threads=2, progress=done.append)
    assert (speed.window, speed.batch_size, speed.threads) == (1, 8, 2)
    assert speed.samples % (8 * ROUNDS) == 0
    assert speed.samples_per_s > 0
    assert speed.floor_samples_per_s is not None
    assert speed.floor_samples_per_s > 0
    assert speed.share is not None
    assert speed.bytes_per_sample > 0
    assert speed.open_s > 0
    assert done[-1] == 1.0
    assert done == sorted(done)


def test_windows_need_more_bytes(root):
    single = measure_speed(root, batch_size=8, seconds=0.1)
    windows = measure_speed(root, batch_size=8, seconds=0.1, window=6)
    assert windows.window == 6
    assert windows.bytes_per_sample > single.bytes_per_sample


def test_one_camera_of_two_needs_fewer_bytes(root):
    both = measure_speed(root, batch_size=8, seconds=0.1)
    one = measure_speed(root, batch_size=8, seconds=0.1, cameras=[WRIST])
    assert one.bytes_per_sample < both.bytes_per_sample


def test_the_same_seed_draws_the_same_frames(root):
    first, again, other = (
        measure_speed(root, batch_size=50, seconds=0.01, seed=seed).bytes_per_sample
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_pictures_in_tables(tmp_path):
    root = make_dataset(
        tmp_path / "images", episodes=[5, 6], cameras=0, image_cameras={FRONT: (48, 64)}
    )
    speed = measure_speed(root, batch_size=4, seconds=0.1, window=2)
    assert speed.share is not None
    assert speed.bytes_per_sample > 0


def test_without_cameras_there_is_no_floor(tmp_path):
    root = make_dataset(tmp_path / "blind", episodes=[5, 6], cameras=0)
    speed = measure_speed(root, batch_size=4, seconds=0.1)
    assert speed.samples_per_s > 0
    assert speed.floor_samples_per_s is None
    assert speed.share is None


@pytest.mark.parametrize(
    "nonsense", [{"window": 0}, {"batch_size": 0}, {"seconds": 0}, {"threads": 0}]
)
def test_nonsense_is_refused(root, nonsense):
    with pytest.raises(ArgumentError):
        measure_speed(root, **nonsense)


def test_an_unknown_camera_is_refused(root):
    with pytest.raises(UnknownKeyError):
        measure_speed(root, cameras=["observation.images.fornt"])


@pytest.mark.parametrize("camera", [FRONT, WRIST])
def test_the_floor_decodes_the_spans_that_the_reader_plans(root, camera):
    ds = demoreel.open(root)
    rows = np.unique(np.random.default_rng(0).integers(0, len(ds), 25))
    planned = Camera(ds.reader, ds.features[camera], None, "mm").plan(rows, np.empty)[1]
    found = list(spans(ds.reader, ds.features[camera], rows))
    assert len(found) == len(list(planned))
    assert sum(len(span.frames) for span in found) == len(rows)


def test_the_floor_decodes_every_image_and_keeps_no_file_open(root, monkeypatch):
    ds = demoreel.open(root, windows={key: [-1, 0] for key in (FRONT, WRIST)})
    floor = _Floor(ds, 2, 1)
    indices = [np.array([3, 8, 8, 40]), np.array([9, 61])]
    jobs = floor.prepare(indices)
    seen: dict[str, list[tuple[int, int]]] = {FRONT: [], WRIST: []}
    paint = Camera.paint

    def watched(camera: Camera, decoder, frame, out) -> None:
        paint(camera, decoder, frame, out)
        stamp = read_stamp(out)
        seen[camera.feature.key].append((stamp.episode, stamp.frame))

    monkeypatch.setattr(Camera, "paint", watched)
    monkeypatch.setattr("demoreel.read.speed.open_file", lambda _: pytest.fail("reads a file"))
    DecodePool(1).run(jobs)
    # Frame 40 begins episode 3: its window clamps there, and the image is decoded once.
    wanted = [(0, 2), (0, 3), (1, 0), (1, 1), (3, 0), (1, 1), (1, 2), (3, 20), (3, 21)]
    for key in (FRONT, WRIST):
        assert sorted(seen[key]) == sorted(wanted)

"""Statistics while a dataset grows: exact for images, over kills and resumes, in every layout."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import demoreel
from demoreel.edit.cut import cut
from demoreel.layouts.beside import histogram_files, noted, read_histograms
from demoreel.record import create, resume
from demoreel.stats.running import QUANTILES

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
NAMES = ["height", "width", "channels"]
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (2,), "names": None},
    FRONT: {"dtype": "video", "shape": (48, 64, 3), "names": NAMES},
    WRIST: {"dtype": "image", "shape": (16, 24, 3), "names": NAMES},
}


def pixels(key: str, episode: int, frame: int) -> np.ndarray:
    shape = FEATURES[key]["shape"]
    rng = np.random.default_rng([episode, frame, len(key)])
    return rng.integers(10 * episode, 256 - 3 * frame, shape).astype(np.uint8)


def record(recorder, episode: int, frames: int) -> None:
    for frame in range(frames):
        state = np.array([episode, frame], np.float32)
        seen = {key: pixels(key, episode, frame) for key in (FRONT, WRIST)}
        recorder.add_frame({"observation.state": state, "task": "look", **seen})
    recorder.save_episode()


def assert_exact(root, lengths, episodes=None) -> None:
    """The statistics are those of all images that were put in."""
    stats = demoreel.open(root).stats
    episodes = range(len(lengths)) if episodes is None else episodes
    for key in (FRONT, WRIST):
        seen = np.array([pixels(key, e, n) for e in episodes for n in range(lengths[e])]) / 255
        for kind, share in QUANTILES.items():
            wanted = np.quantile(seen, share, axis=(0, 1, 2))
            np.testing.assert_allclose(stats[key][kind].ravel(), wanted, atol=1e-12)
        np.testing.assert_allclose(stats[key]["mean"].ravel(), seen.mean((0, 1, 2)))
        np.testing.assert_allclose(stats[key]["std"].ravel(), seen.std((0, 1, 2)))
        assert stats[key]["count"].tolist() == [len(seen)]


@pytest.mark.parametrize("layout", ["v3.0", "lance-video", "lance-native"])
@pytest.mark.soak
def test_levels_are_kept_and_counted_on(tmp_path, layout):
    root, lengths = tmp_path / "made", [3, 5, 2, 4]
    with create(root, fps=10, features=FEATURES, vcodec="h264", layout=layout) as recorder:
        record(recorder, 0, 3)
        record(recorder, 1, 5)
        assert len(histogram_files(root / "meta")) == 2  # one with each commit
        assert noted(root / "meta") is None  # quantiles of numbers are estimates as yet
    assert noted(root / "meta") == {}
    with resume(root) as recorder:
        record(recorder, 2, 2)
        assert_exact(root, lengths[:3])
        record(recorder, 3, 4)
    assert_exact(root, lengths)
    assert noted(root / "meta") == {}
    found = {(each.camera, each.episode): each.frames for each in read_histograms(root / "meta")}
    assert found == {(key, e): n for key in (FRONT, WRIST) for e, n in enumerate(lengths)}
    assert len(histogram_files(root / "meta")) == 1
    cut(root).delete([1]).render(tmp_path / "out")
    assert_exact(tmp_path / "out", lengths, [0, 2, 3])
    assert noted(tmp_path / "out" / "meta") == {}


@pytest.mark.soak
def test_without_the_levels_of_what_was_there_it_is_approximate(tmp_path):
    root = tmp_path / "made"
    with create(root, fps=10, features=FEATURES, vcodec="h264") as recorder:
        record(recorder, 0, 3)
    shutil.rmtree(root / "meta" / "demoreel")
    with resume(root) as recorder:
        record(recorder, 1, 2)
    assert noted(root / "meta").keys() == {FRONT, WRIST}
    assert demoreel.open(root).stats[FRONT]["count"].tolist() == [5]
    assert {each.episode for each in read_histograms(root / "meta")} == {1}

"""Recording into Lance: what was added is what is read, one commit of Lance an episode."""

from __future__ import annotations

import lance
import numpy as np
import pytest

import demoreel
from demoreel.testing.stamp import read_stamp, stamp

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
NAMES = ["height", "width", "channels"]
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]},
    "touch": {"dtype": "float64", "shape": (2, 2), "names": None},
    "done": {"dtype": "bool", "shape": (1,), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
    "language_events": {"dtype": "language", "shape": (1,), "names": None},
    FRONT: {"dtype": "video", "shape": (48, 64, 3), "names": NAMES},
    WRIST: {"dtype": "image", "shape": (48, 64, 3), "names": NAMES},
}


def image(episode, number):
    made = np.full((48, 64, 3), 90, np.uint8)
    stamp(made, episode, number)
    return made


def frame(episode, number):
    return {
        "observation.state": np.array([episode, number, 0.5], np.float32),
        "touch": np.full((2, 2), number / 3),
        "done": number % 2 == 0,
        "note": f"nötiz {episode}/{number}",
        "language_events": [
            {"role": "user", "content": f"go {number}", "style": "interjection", "camera": None}
        ],
        FRONT: image(episode, number),
        WRIST: image(episode, number),
        "task": "pick" if number < 2 else "place",
    }


def record(recorder, episode, frames):
    for number in range(frames):
        assert recorder.add_frame(frame(episode, number))
    return recorder.save_episode()


def check(root, lengths):
    dataset = demoreel.open(root)
    assert [episode.length for episode in dataset.episodes] == lengths
    where = [(episode, number) for episode, n in enumerate(lengths) for number in range(n)]
    for index, (episode, number) in enumerate(where):
        item, added = dataset[index], frame(episode, number)
        for key in ("observation.state", "touch", "done", "note", "task"):
            assert np.array_equal(item[key], added[key]), key
        assert item["language_events"][0]["content"] == f"go {number}"
        for camera in (FRONT, WRIST):
            assert read_stamp(item[camera]) == (episode, number)
    assert dataset.stats["observation.state"]["count"] == [sum(lengths)]
    return dataset


@pytest.mark.parametrize(
    "layout", ["lance-video", pytest.param("lance-native", marks=pytest.mark.soak)]
)
def test_a_recording_in_lance(tmp_path, layout):
    root = tmp_path / "arm"
    frames = root / ("frames.lance" if layout == "lance-native" else "arm.lance")
    with demoreel.create(root, fps=30, features=FEATURES, layout=layout, vcodec="h264") as recorder:
        assert lance.dataset(str(frames)).version == 1
        assert record(recorder, 0, 5).episode_index == 0
        assert check(root, [5]).layout == layout
        assert lance.dataset(str(frames)).version == 2
        record(recorder, 1, 1)
        assert lance.dataset(str(frames)).version == 3
        recorder.add_frame(frame(2, 0))
        recorder.discard_episode()
        check(root, [5, 1])
    check(root, [5, 1])
    assert len(lance.dataset(str(frames)).get_fragments()) == 1
    with demoreel.resume(root, fps=30) as recorder:
        assert record(recorder, 2, 3).episode_index == 2
    dataset = check(root, [5, 1, 3])
    assert dataset.layout == layout
    assert dataset.info.features[FRONT].info["video.codec"] == "h264"
    assert not (root / ".demoreel").exists()

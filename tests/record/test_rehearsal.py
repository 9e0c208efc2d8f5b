"""A save that was rehearsed: it leaves nothing, and the first real one is like the others."""

from __future__ import annotations

import numpy as np
import pytest

import demoreel

FEATURES = {
    "state": {"dtype": "float32", "shape": (2,)},
    "note": {"dtype": "string", "shape": (1,)},
    "film": {"dtype": "video", "shape": (32, 48, 3), "names": ["height", "width", "channels"]},
    "photo": {"dtype": "image", "shape": (32, 48, 3), "names": ["height", "width", "channels"]},
}


def frame(number, **changes):
    return {
        "state": np.full(2, number, np.float32),
        "note": str(number),
        "film": np.full((32, 48, 3), number, np.uint8),
        "photo": np.full((32, 48, 3), number, np.uint8),
        **changes,
    }


@pytest.mark.parametrize("layout", ["v3.0", "lance-video", "lance-native"])
@pytest.mark.soak
def test_every_episode_has_its_own_task_and_nothing_else(tmp_path, layout):
    root = tmp_path / "dataset"
    tasks = ["wait", "pick", "pick", "wait", "put it down"]
    with demoreel.create(
        root, fps=30, features=FEATURES, layout=layout, vcodec="h264", task="wait"
    ) as recorder:
        assert not list((root / ".demoreel").glob("staging-*"))
        for task in tasks:
            recorder.add_frame(frame(1), task=task)
            recorder.add_frame(frame(2), task=task)
            recorder.save_episode()
    dataset = demoreel.open(root)
    assert [dataset[2 * number]["task"] for number in range(len(tasks))] == tasks
    assert dataset.stats["state"]["count"].tolist() == [10]
    assert dataset.stats["state"]["max"].tolist() == [2, 2]
    assert dataset.stats["film"]["count"].tolist() == [10]
    assert sorted(dataset.tasks.values()) == ["pick", "put it down", "wait"]

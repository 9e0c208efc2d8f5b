"""Recording under lerobot's names."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from demoreel.errors import ArgumentError, TargetExistsError
from demoreel.testing.stamp import Stamp, read_stamp, stamp
from demoreel.torch import LeRobotDataset, VideoEncodingManager

FRONT = "observation.images.front"
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
    FRONT: {"dtype": "video", "shape": (48, 64, 3), "names": ["height", "width", "channels"]},
}


def frame(episode, number):
    image = np.full((48, 64, 3), 90, np.uint8)
    stamp(image, episode, number)
    state = np.array([episode, number], np.float32)
    return {"observation.state": state, FRONT: image, "task": "pick"}


def test_a_script_written_for_lerobot_records(tmp_path):
    ds = LeRobotDataset.create(
        repo_id="me/task",
        fps=30,
        features=FEATURES,
        root=tmp_path / "ds",
        robot_type="so101",
        use_videos=True,
        image_writer_processes=0,
        image_writer_threads=4,
        batch_encoding_size=1,
        vcodec="h264",
        streaming_encoding=True,
        encoder_queue_maxsize=30,
        encoder_threads=1,
    )
    assert (ds.num_episodes, len(ds), ds.fps, ds.meta.total_episodes) == (0, 0, 30, 0)
    assert ds.features[FRONT]["shape"] == (48, 64, 3)
    with pytest.raises(ArgumentError, match="nothing to read"):
        ds[0]
    with VideoEncodingManager(ds):
        for episode in range(2):
            for number in range(3):
                ds.add_frame(frame(episode, number))
                assert ds.has_pending_frames()
            ds.add_frame(frame(9, 9))
            ds.clear_episode_buffer()
            assert not ds.has_pending_frames()
            for number in range(3 + episode):
                ds.add_frame(frame(episode, number))
            ds.save_episode()
            assert ds.num_episodes == episode + 1
            assert read_stamp(ds[-1][FRONT]) == Stamp(episode, 2 + episode)
            assert ds.meta.total_episodes == episode + 1
        with pytest.raises(ArgumentError, match="stays in its process"):
            pickle.dumps(ds)
    assert len(ds) == 7
    assert "num_episodes=2" in repr(ds)
    again = LeRobotDataset("me/task", root=tmp_path / "ds")
    assert [read_stamp(again[i][FRONT]) for i in (0, 6)] == [Stamp(0, 0), Stamp(1, 3)]


def test_resume_appends(tmp_path):
    options = {"fps": 30, "features": FEATURES, "root": tmp_path / "ds", "vcodec": "h264"}
    first = LeRobotDataset.create("me/task", **options)
    first.add_frame(frame(0, 0))
    first.save_episode()
    first.finalize()
    with pytest.raises(TargetExistsError):
        LeRobotDataset.create("me/task", **options)
    more = LeRobotDataset.resume("me/task", root=tmp_path / "ds")
    more.add_frame(frame(1, 0))
    more.save_episode()
    more.finalize()
    assert len(LeRobotDataset("me/task", root=tmp_path / "ds")) == 2
    with pytest.raises(ArgumentError, match="root="):
        LeRobotDataset.resume("me/task")


def test_a_name_that_would_leave_the_home_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    with pytest.raises(ArgumentError, match="repo_id"):
        LeRobotDataset.create("../outside", 30, FEATURES)
    assert list(tmp_path.iterdir()) == []


def test_without_videos_images_are_kept_bit_for_bit(tmp_path):
    ds = LeRobotDataset.create(
        "me/task", 30, FEATURES, root=tmp_path / "ds", use_videos=False, capture_times=False
    )
    ds.add_frame(frame(0, 0))
    ds.save_episode()
    ds.finalize()
    assert ds.features[FRONT]["dtype"] == "image"
    expected = frame(0, 0)[FRONT].transpose(2, 0, 1)
    assert np.array_equal((ds[0][FRONT] * 255).round().numpy().astype(np.uint8), expected)
    assert "capture_time_ns" not in ds[0]


def test_a_dataset_that_is_read_does_not_record(tmp_path):
    ds = LeRobotDataset.create(
        "me/task", 30, {"x": {"dtype": "float32", "shape": (1,), "names": None}}, tmp_path / "ds"
    )
    ds.add_frame({"x": 1.0, "task": "t"})
    ds.save_episode()
    ds.finalize()
    read = LeRobotDataset("me/task", root=tmp_path / "ds")
    for method in ("save_episode", "clear_episode_buffer"):
        with pytest.raises(ArgumentError, match=r"create\(\.\.\.\)"):
            getattr(read, method)()
    assert not read.has_pending_frames()
    read.finalize()

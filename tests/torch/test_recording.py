"""Recording under lerobot's names."""

from __future__ import annotations

import copy
import os
import pickle
import signal
from types import SimpleNamespace

import av
import numpy as np
import pytest
from torch.utils.data import DataLoader

from demoreel.errors import ArgumentError, TargetExistsError
from demoreel.testing.stamp import Stamp, read_stamp, stamp
from demoreel.torch import (
    LeRobotDataset,
    LeRobotDatasetMetadata,
    VideoEncodingManager,
    delete_episodes,
)

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
    assert (ds.reader, ds.meta.tasks, ds.meta.episodes, ds.meta.stats) == (None,) * 4
    assert ds.writer.episode_buffer["size"] == 0
    with pytest.raises(RuntimeError, match=r"nothing to read[\s\S]*finalize"):
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


@pytest.mark.parametrize("use_videos", [True, False])
def test_a_camera_that_is_declared_as_images_is_kept_bit_for_bit(tmp_path, use_videos):
    features = {**FEATURES, FRONT: {**FEATURES[FRONT], "dtype": "image"}}
    ds = LeRobotDataset.create("me/task", 30, features, root=tmp_path / "ds", use_videos=use_videos)
    ds.add_frame(frame(0, 0))
    ds.save_episode()
    ds.finalize()
    ds = LeRobotDataset.resume("me/task", root=tmp_path / "ds")
    ds.add_frame(frame(0, 1))
    ds.save_episode()
    ds.finalize()
    assert ds.features[FRONT]["dtype"] == "image"
    assert not (tmp_path / "ds" / "videos").exists()
    for row in (0, 1):
        expected = frame(0, row)[FRONT].transpose(2, 0, 1)
        assert np.array_equal((ds[row][FRONT] * 255).round().numpy().astype(np.uint8), expected)


def test_video_features_without_videos_are_refused(tmp_path):
    with pytest.raises(ValueError, match="use_videos"):
        LeRobotDataset.create("me/task", 30, FEATURES, root=tmp_path / "ds", use_videos=False)
    assert not (tmp_path / "ds").exists()


@pytest.mark.parametrize(
    ("vcodec", "level", "given", "options"),
    [
        ("libsvtav1", 2, {}, {"svtav1-params": "fast-decode=2"}),
        ("av1", 1, {"svtav1-params": "tune=0"}, {"svtav1-params": "tune=0:fast-decode=1"}),
        ("h264", 1, {}, {"tune": "fastdecode"}),
        ("h264", 0, {"tune": "film"}, {"tune": "film"}),
    ],
)
def test_fast_decode_is_an_option_of_the_encoder(tmp_path, vcodec, level, given, options):
    encoder = SimpleNamespace(vcodec=vcodec, fast_decode=level, extra_options=given)
    ds = LeRobotDataset.create("me/task", 30, FEATURES, root=tmp_path / "ds", rgb_encoder=encoder)
    ds.add_frame(frame(0, 0))
    ds.save_episode()
    ds.finalize()
    said = ds.features[FRONT]["info"]
    assert (said["video.fast_decode"], said["video.extra_options"]) == (level, options)
    assert read_stamp(ds[0][FRONT]) == Stamp(0, 0)


def test_options_under_the_names_of_lerobots_example(tmp_path):
    given = {"tune": "film", "profile:v": "high", "bf": 2}  # as in the help of lerobot-record
    encoder = SimpleNamespace(vcodec="h264", g=6, preset="fast", extra_options=given)
    ds = LeRobotDataset.create("me/task", 30, FEATURES, root=tmp_path / "ds", rgb_encoder=encoder)
    for number in range(6):
        ds.add_frame(frame(0, number))
    ds.save_episode()
    ds.finalize()
    said = ds.features[FRONT]["info"]["video.extra_options"]
    assert said == {"tune": "film", "profile": "high"}
    with av.open(tmp_path / "ds" / ds.meta.get_video_file_path(0, FRONT)) as video:
        stream = video.streams.video[0]
        assert (stream.profile, stream.codec_context.has_b_frames) == ("High", True)
    assert [read_stamp(item[FRONT]) for item in ds[:6]] == [Stamp(0, n) for n in range(6)]
    encoder.extra_options = {"bf": "many"}
    with pytest.raises(ArgumentError, match="b_frames"):
        LeRobotDataset.create("me/no", 30, FEATURES, root=tmp_path / "no", rgb_encoder=encoder)
    assert not (tmp_path / "no").exists()


def test_features_that_a_script_changes_before_the_first_frame(tmp_path):
    """As lerobot's script that crops a dataset does."""
    ds = LeRobotDataset.create(
        "me/task", 30, FEATURES, root=tmp_path / "ds", robot_type="so101", vcodec="h264"
    )
    meta = ds.meta
    meta.update_chunk_settings(chunks_size=7)
    meta.tools = [{"type": "function", "function": {"name": "say"}}]
    meta.info.features[FRONT]["shape"] = (3, 32, 32)
    image = np.full((3, 32, 32), 90, np.uint8)
    for _ in range(2):
        ds.add_frame({**frame(0, 1), FRONT: image})
    ds.save_episode()
    ds.finalize()
    assert (ds.meta, meta.chunks_size, meta.robot_type) == (meta, 7, "so101")
    assert meta.tools[0]["function"]["name"] == "say"
    made = LeRobotDataset("me/task", root=tmp_path / "ds")
    assert made[1][FRONT].shape == (3, 32, 32) == made.features[FRONT]["shape"]
    info = made.features[FRONT]["info"]
    assert (info["video.height"], info["video.codec"]) == (32, "h264")


def test_features_that_cannot_be_are_refused_with_the_first_frame(tmp_path):
    ds = LeRobotDataset.create("me/task", 30, FEATURES, root=tmp_path / "ds", vcodec="h264")
    shape = ds.features[FRONT]["shape"]
    ds.features[FRONT]["shape"] = (48, 64, 5)
    with pytest.raises(ArgumentError, match="5 channels"):
        ds.add_frame(frame(0, 0))
    ds.features[FRONT]["shape"] = shape
    ds.add_frame(frame(0, 0))
    ds.save_episode()
    ds.finalize()
    assert read_stamp(ds[0][FRONT]) == Stamp(0, 0)


def test_the_range_of_depth_is_the_encoders(tmp_path):
    deep = {"dtype": "video", "shape": (48, 64, 1), "names": ["height", "width", "channels"]}
    features = {"deep": {**deep, "info": {"is_depth_map": True}}}
    encoder = SimpleNamespace(
        vcodec="hevc",
        pix_fmt="gray12le",
        g=3,
        crf=30,
        preset=None,
        extra_options={"x265-params": "lossless=1"},
        depth_min=0.1,
        depth_max=20.0,
        shift=1.0,
        use_log=False,
    )
    options = {"root": tmp_path / "ds", "depth_encoder": encoder}
    ds = LeRobotDataset.create("me/task", 30, features, **options)
    ds.add_frame({"deep": np.full((48, 64, 1), 15.0, np.float32), "task": "look"})
    ds.save_episode()
    ds.finalize()
    said = ds.features["deep"]["info"]
    names = ("video.depth_min", "video.depth_max", "video.shift", "video.use_log", "video.g")
    assert [said[name] for name in names] == [0.1, 20.0, 1.0, False, 3]
    assert said["depth_unit"] == "m"
    encoder.depth_max = 10.0
    with pytest.raises(ArgumentError, match="another range"):
        LeRobotDataset.resume("me/task", **options)
    encoder.depth_max = 20.0
    more = LeRobotDataset.resume("me/task", **options)
    more.add_frame({"deep": np.full((48, 64), 15000, np.uint16), "task": "look"})
    more.save_episode()
    more.finalize()
    again = LeRobotDataset("me/task", root=tmp_path / "ds")
    assert all(abs(again[row]["deep"] - 15000).max() < 3 for row in (0, 1))


def test_a_dataset_that_is_read_does_not_record(tmp_path):
    ds = LeRobotDataset.create(
        "me/task", 30, {"x": {"dtype": "float32", "shape": (1,), "names": None}}, tmp_path / "ds"
    )
    ds.add_frame({"x": np.ones(1, np.float32), "task": "t"})
    ds.save_episode()
    ds.finalize()
    read = LeRobotDataset("me/task", root=tmp_path / "ds")
    for method in ("save_episode", "clear_episode_buffer"):
        with pytest.raises(RuntimeError, match=r"read-only[\s\S]*create\(\.\.\.\)"):
            getattr(read, method)()
        with pytest.raises(ArgumentError, match="read-only"):
            getattr(ds, method)()
    assert (read.writer, ds.writer) == (None, None)
    assert not read.has_pending_frames()
    read.finalize()


def recorded(tmp_path, episodes=2):
    features = {"x": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]}}
    ds = LeRobotDataset.create("me/task", 10, features, tmp_path / "ds")
    held = ds.meta
    for episode in range(episodes):
        for number in range(3):
            value = np.array([episode, number], np.float32)
            ds.add_frame({"x": value, "task": f"task {episode}"})
        ds.save_episode()
        assert (held.total_episodes, held.total_frames) == (episode + 1, 3 * episode + 3)
        assert list(held.tasks.index) == [f"task {n}" for n in range(episode + 1)]
    ds.finalize()
    assert ds.meta is held
    return ds


def test_what_was_recorded_is_an_ordinary_dataset(tmp_path):
    ds = recorded(tmp_path)
    assert "v3.0" in repr(ds)
    for other in (pickle.loads(pickle.dumps(ds)), copy.deepcopy(ds)):
        assert (len(other), other[4]["x"].tolist()) == (6, [1, 1])
    loader = DataLoader(ds, batch_size=6, num_workers=1, multiprocessing_context="spawn")
    assert next(iter(loader))["x"][:, 1].tolist() == [0, 1, 2] * 2
    ds.delta_timestamps = {"x": [-0.1, 0]}
    assert ds[3]["x"].tolist() == [[1, 0], [1, 0]]
    assert ds[3]["x_is_pad"].tolist() == [True, False]
    with pytest.raises(ValueError, match="1/10"):
        ds.delta_timestamps = {"x": [0.05]}
    assert ds.delta_indices == {"x": [-1, 0]}
    ds.delta_timestamps = None
    assert ds[3]["x"].tolist() == [1, 0]
    made = delete_episodes(ds, [0], tmp_path / "rest")
    assert [made[n]["task"] for n in range(3)] == ["task 1"] * 3


def test_a_recording_without_episodes(tmp_path):
    ds = recorded(tmp_path, episodes=0)
    ds.finalize()
    assert (len(ds), ds.num_episodes, ds.reader, ds.meta.episodes) == (0, 0, None, None)
    assert len(pickle.loads(pickle.dumps(ds))) == 0
    with pytest.raises(ArgumentError, match="no episodes"):
        delete_episodes(ds, [0], tmp_path / "rest")
    more = LeRobotDataset.resume("me/task", tmp_path / "ds", token=False)
    assert more.meta.total_episodes == 0
    more.add_frame({"x": np.zeros(2, np.float32), "task": "t"})
    more.save_episode()
    more.finalize()
    assert len(more) == 1


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ({"x": np.zeros(2, np.float32)}, "Missing features: {'task'}\n"),
        ({"task": "t"}, "Feature mismatch in `frame` dictionary:\nMissing features: {'x'}\n"),
        ({"x": np.zeros(2, np.float32), "task": "t", "y": 1}, "Extra features: {'y'}\n"),
        ({"x": np.zeros(2), "task": "t"}, "of dtype 'float64' is not of the expected dtype"),
        ({"x": np.zeros(1, np.float32), "task": "t"}, r"of shape '\(1,\)' does not have"),
        ({"x": [0.0, 1.0], "task": "t"}, "is not a 'np.ndarray'"),
    ],
)
def test_frames_are_refused_as_lerobot_does(tmp_path, frame, words):
    features = {"x": {"dtype": "float32", "shape": (2,), "names": None}}
    ds = LeRobotDataset.create("me/task", 10, features, tmp_path / "ds")
    with pytest.raises(ValueError, match=words):
        ds.add_frame(frame)
    assert not ds.has_pending_frames()


def test_sizes_of_files_while_recording(tmp_path):
    features = {"x": {"dtype": "float32", "shape": (2,), "names": None}}
    ds = LeRobotDataset.create("me/task", 10, features, tmp_path / "ds")
    ds.meta.update_chunk_settings(chunks_size=500, data_files_size_in_mb=7)
    ds.add_frame({"x": np.zeros(2, np.float32), "task": "t"})
    ds.save_episode()
    ds.finalize()
    sizes = {"chunks_size": 500, "data_files_size_in_mb": 7, "video_files_size_in_mb": 200}
    assert ds.meta.get_chunk_settings() == sizes
    assert LeRobotDatasetMetadata("me/task", tmp_path / "ds").get_chunk_settings() == sizes


NUMBERS = {"state": {"dtype": "float32", "shape": (2,), "names": None}}


def numbers_recorded(root, lengths=(3, 4), **options):
    """Return a dataset that is being recorded, with episodes of numbers."""
    ds = LeRobotDataset.create("me/task", 10, NUMBERS, root=root, **options)
    for length in lengths:
        for number in range(length):
            ds.add_frame({"state": np.array([number, 0], np.float32), "task": "go"})
        ds.save_episode()
    return ds


def test_the_latest_episode_of_a_recording(tmp_path):
    ds = numbers_recorded(tmp_path / "ds", lengths=())
    assert ds.meta.latest_episode is None
    ds = numbers_recorded(tmp_path / "other")
    latest = ds.meta.latest_episode
    assert (latest["episode_index"], latest["length"]) == ([1], [4])
    assert (latest["dataset_from_index"], latest["data/chunk_index"]) == ([3], [0])
    ds.finalize()
    assert ds.meta.latest_episode["length"] == [4]
    assert LeRobotDataset("me/task", root=tmp_path / "other").meta.latest_episode is None


@pytest.mark.parametrize("features", [NUMBERS, FEATURES])
def test_a_recording_that_is_let_go_of_frees_its_dataset(tmp_path, features):
    ds = LeRobotDataset.create("me/task", 10, features, root=tmp_path / "ds")
    values = (
        frame(0, 0) if features is FEATURES else {"state": np.zeros(2, np.float32), "task": "go"}
    )
    for _ in range(2):
        ds.add_frame(values)
    ds.save_episode()
    ds.add_frame(values)
    del ds
    again = LeRobotDataset.resume("me/task", root=tmp_path / "ds")
    assert (again.num_episodes, again.num_frames) == (1, 2)
    again.add_frame(values)
    again.save_episode()
    again.finalize()
    assert len(again) == 3


@pytest.mark.parametrize("options", [{"streaming_encoding": True}, {"batch_encoding_size": 4}])
def test_a_dataset_that_is_opened_to_be_written(tmp_path, options):
    numbers_recorded(tmp_path / "ds").finalize()
    with pytest.warns(DeprecationWarning, match="resume"):
        ds = LeRobotDataset("me/task", root=tmp_path / "ds", **options)
    assert (len(ds), ds.writer.episode_buffer["size"], ds.has_pending_frames()) == (7, 0, False)
    ds.clear_episode_buffer()
    LeRobotDataset.resume("me/task", root=tmp_path / "ds").finalize()  # nothing is taken yet
    writer = ds.writer
    writer.add_frame({"state": np.array([5, 5], np.float32), "task": "more"})
    assert writer.episode_buffer["size"] == 1
    writer.save_episode()
    assert (len(ds), ds.meta.total_episodes, ds[7]["task"]) == (8, 3, "more")
    ds.finalize()
    assert (len(ds), ds.writer, ds[7]["state"].tolist()) == (8, None, [5.0, 5.0])
    with pytest.warns(DeprecationWarning, match="resume"):
        part = LeRobotDataset("me/task", root=tmp_path / "ds", episodes=[1], **options)
    with pytest.raises(ArgumentError, match="episodes="):
        part.add_frame({"state": np.zeros(2, np.float32), "task": "more"})


def test_the_reader_has_lerobots_names(tmp_path):
    numbers_recorded(tmp_path / "ds", lengths=(3, 4, 5)).finalize()
    ds = LeRobotDataset("me/task", root=tmp_path / "ds", episodes=[0, 2])
    reader = ds.reader
    assert (reader.num_frames, reader.num_episodes, reader.delta_indices) == (8, 2, None)
    assert reader.get_episodes_file_paths() == ["data/chunk-000/file-000.parquet"]
    assert reader.get_item(3)["index"] == 7
    assert dict(reader.absolute_to_relative_idx) == dict(ds.absolute_to_relative_idx)
    assert ds.absolute_to_relative_idx[7] == 3
    ds.delta_timestamps = {"state": [-0.1, 0.0]}
    assert ds.reader.delta_indices == {"state": [-1, 0]}
    assert ds.reader.get_item(3)["state"].shape == (2, 2)
    for other in (pickle.loads(pickle.dumps(ds)), copy.copy(ds)):
        other.set_image_transforms(len)
        assert other.reader.get_item(3)["index"] == 7
        del other
        assert (ds.reader.get_item(3)["index"], ds.image_transforms) == (7, None)


def test_metadata_have_an_episode_that_waits_for_its_encoder(tmp_path, monkeypatch):
    monkeypatch.setattr("demoreel.record.recorder._BEHIND_S", -1.0)  # every save is persisted
    ds = LeRobotDataset.create("me/task", 30, FEATURES, tmp_path / "ds", vcodec="h264")
    (encoder,) = ds._recorder.encoder_processes.values()
    os.kill(encoder, signal.SIGSTOP)
    ds.add_frame(frame(0, 0))
    assert ds.save_episode().pending
    for meta in (ds.meta, LeRobotDatasetMetadata("me/task", tmp_path / "ds")):
        assert (meta.total_episodes, meta.total_frames, meta.total_tasks) == (1, 1, 1)
        assert list(meta.tasks.index) == ["pick"]
        assert meta.episodes["tasks"] == [["pick"]]
    os.kill(encoder, signal.SIGCONT)
    ds._recorder._deferred.wait()
    assert ds.meta.episodes[0]["data/file_index"] == 0
    assert ds.meta.stats["observation.state"]["count"] == [1]
    ds.finalize()
    assert ds.meta.total_tasks == 1

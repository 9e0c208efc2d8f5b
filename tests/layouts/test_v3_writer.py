import json

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoreel.errors import ArgumentError, FrameMismatchError, TargetExistsError, UnknownKeyError
from demoreel.layouts.v3.writer import V3Writer
from demoreel.layouts.writing import EpisodeDraft, create_writer
from demoreel.media.encode import VideoEncoder, VideoSettings
from demoreel.model import Feature, Info
from demoreel.testing import make_dataset, read_stamp, stamp

CAMERA = "observation.images.cam"
H264 = VideoSettings(codec="h264")


def film(folder, episode, frames, chosen=H264):
    path = folder / f"episode-{episode}.mp4"
    with VideoEncoder(path, fps=10, width=64, height=64, settings=chosen) as encoder:
        for frame in range(frames):
            image = np.zeros((64, 64, 3), np.uint8)
            stamp(image, episode, frame)
            encoder.add(image)
    return path


def described(*, camera=True, **fields):
    features = {"action": Feature("action", "float32", (2,))}
    if camera:
        features[CAMERA] = Feature(CAMERA, "video", (64, 64, 3), ["height", "width", "channels"])
    return Info.new(version="v3.0", fps=10, features=features, **fields)


def actions(frames):
    return {"action": np.arange(2.0 * frames, dtype=np.float32).reshape(frames, 2)}


def filmed(folder, episode, frames, *, task, rows=None):
    rows = rows or frames
    return EpisodeDraft(actions(rows), [task] * rows, {CAMERA: film(folder, episode, frames)})


def stats_of(value):
    return {"action": {"mean": np.array([value, value]), "count": np.array([5])}}


def shown_from(path, seconds, frames, fps):
    """The stamps that a player shows from a time on."""
    with av.open(str(path)) as container:
        images = [f for f in container.decode(video=0) if f.time >= seconds - 0.4 / fps][:frames]
    return [tuple(read_stamp(image.to_ndarray(format="rgb24"))) for image in images]


def episodes_of(root):
    return pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()


def file_of(root, row, what, name):
    return root / name.format(row[f"{what}/chunk_index"], row[f"{what}/file_index"])


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    data_mb=st.sampled_from([100, 0.004, 1e-6]),
    video_mb=st.sampled_from([200, 0.006, 1e-6]),
    chunks_size=st.sampled_from([1, 2, 1000]),
)
def test_every_row_and_image_is_where_the_metadata_says(
    tmp_path_factory, lengths, data_mb, video_mb, chunks_size
):
    root = tmp_path_factory.mktemp("v3") / "dataset"
    make_dataset(
        root,
        episodes=lengths,
        fps=10,
        data_files_size_in_mb=data_mb,
        video_files_size_in_mb=video_mb,
        chunks_size=chunks_size,
    )
    rows = episodes_of(root)
    assert [row["length"] for row in rows] == lengths
    start = 0
    for episode, row in enumerate(rows):
        length = lengths[episode]
        assert (row["episode_index"], row["dataset_from_index"]) == (episode, start)
        assert row["dataset_to_index"] == start + length
        table = pq.read_table(
            file_of(root, row, "data", "data/chunk-{:03d}/file-{:03d}.parquet"),
            filters=[("episode_index", "=", episode)],
        )
        assert table["frame_index"].to_pylist() == list(range(length))
        assert table["index"].to_pylist() == list(range(start, start + length))
        assert [state[:3] for state in table["observation.state"].to_pylist()] == [
            [episode, frame, start + frame] for frame in range(length)
        ]
        key = "videos/observation.images.cam0"
        video = file_of(root, row, key, key + "/chunk-{:03d}/file-{:03d}.mp4")
        begin, end = row[f"{key}/from_timestamp"], row[f"{key}/to_timestamp"]
        assert shown_from(video, begin, length, 10) == [(episode, f) for f in range(length)]
        assert round((end - begin) * 10, 6) == length
        start += length
    assert all(len(list(folder.iterdir())) <= chunks_size for folder in root.glob("data/chunk-*"))


def test_small_limits_mean_many_files_and_large_ones_mean_one(tmp_path):
    sizes = {"data_files_size_in_mb": 1e-6, "video_files_size_in_mb": 1e-6}
    make_dataset(tmp_path / "many", episodes=5, length=3, chunks_size=2, **sizes)
    make_dataset(tmp_path / "one", episodes=5, length=3)
    names = [
        str(path.relative_to(tmp_path / "many/data"))
        for path in sorted((tmp_path / "many").glob("data/*/*"))
    ]
    assert names == [f"chunk-00{n // 2}/file-00{n % 2}.parquet" for n in range(5)]
    assert len(list((tmp_path / "many").glob("videos/*/*/*.mp4"))) == 5
    assert len(list((tmp_path / "one").rglob("data/*/*.parquet"))) == 1
    assert len(list((tmp_path / "one").glob("videos/*/*/*.mp4"))) == 1


def test_tables_have_one_row_group_an_episode(tmp_path):
    make_dataset(tmp_path / "dataset", episodes=[4, 7, 2], cameras=0)
    file = pq.ParquetFile(tmp_path / "dataset/data/chunk-000/file-000.parquet")
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    assert [group.num_rows for group in groups] == [4, 7, 2]
    assert groups[0].column(0).compression == "SNAPPY"


def test_metadata_has_the_form_that_lerobot_gives_it(fixtures, tmp_path):
    """The same features as a dataset of lerobot's must give the same columns, types and fields."""
    theirs = fixtures / "kitchen_v30"
    raw = json.loads((theirs / "meta/info.json").read_text())
    made_here = ("timestamp", "frame_index", "episode_index", "index", "task_index", "action")
    plain = {
        key: value
        for key, value in raw["features"].items()
        if value["dtype"] != "video" and key not in (*made_here, "observation.state")
    }
    make_dataset(
        tmp_path / "ours",
        features=plain,
        cameras={"observation.images.front": (96, 128), "observation.images.wrist": (64, 64)},
        depth_cameras={"observation.depth.front": (96, 128)},
        fps=10,
    )
    for name in ("meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet"):
        one, two = pq.read_schema(tmp_path / "ours" / name), pq.read_schema(theirs / name)
        assert dict(zip(one.names, one.types, strict=True)) == dict(
            zip(two.names, two.types, strict=True)
        )
    info = json.loads((tmp_path / "ours/meta/info.json").read_text())
    assert set(info) == set(raw)
    assert {key: set(value) for key, value in info["features"].items()} == {
        key: set(value) for key, value in raw["features"].items()
    }
    depth = [i["features"]["observation.depth.front"]["info"] for i in (info, raw)]
    assert {**depth[0], "video.preset": None} == depth[1]
    stats = [
        json.loads((root / "meta/stats.json").read_text()) for root in (theirs, tmp_path / "ours")
    ]
    assert set(stats[0]) == set(stats[1])
    for key, kinds in stats[0].items():
        ours = stats[1][key]
        assert {n: np.shape(v) for n, v in kinds.items()} == {
            n: np.shape(v) for n, v in ours.items()
        }


def test_pandas_finds_the_tasks_as_its_index(tmp_path):
    import pandas

    make_dataset(tmp_path / "dataset", cameras=0, tasks=("first", "抓起杯子"))
    tasks = pandas.read_parquet(tmp_path / "dataset/meta/tasks.parquet")
    assert tasks.index.name == "task"
    assert tasks.loc["抓起杯子"].task_index == 1
    assert tasks.iloc[0].name == "first"


def test_tasks_are_numbered_as_they_come(tmp_path):
    info = described(camera=False)
    with create_writer(tmp_path / "dataset", info) as writer:
        writer.append(EpisodeDraft(actions(3), tasks=["b", "b", "a"]))
        writer.append(EpisodeDraft(actions(2), tasks=["a", "c"]))
        writer.commit()
    rows = episodes_of(tmp_path / "dataset")
    assert [row["tasks"] for row in rows] == [["b", "a"], ["a", "c"]]
    table = pq.read_table(tmp_path / "dataset/data")
    assert table["task_index"].to_pylist() == [0, 0, 1, 1, 2]
    written = json.loads((tmp_path / "dataset/meta/info.json").read_text())
    totals = ("total_episodes", "total_frames", "total_tasks", "splits")
    assert [written[name] for name in totals] == [2, 5, 3, {"train": "0:2"}]
    assert not (tmp_path / "dataset/meta/stats.json").exists()


def test_statistics_are_written_as_they_are_given(tmp_path):
    with create_writer(tmp_path / "dataset", described(camera=False)) as writer:
        for value in (1.5, 2.5):
            writer.append(EpisodeDraft(actions(5), tasks=["t"] * 5, stats=stats_of(value)))
        writer.commit(stats=stats_of(2.0))
    rows = episodes_of(tmp_path / "dataset")
    assert [row["stats/action/mean"] for row in rows] == [[1.5, 1.5], [2.5, 2.5]]
    assert [row["stats/action/count"] for row in rows] == [[5], [5]]
    stats = json.loads((tmp_path / "dataset/meta/stats.json").read_text())
    assert stats == {"action": {"mean": [2.0, 2.0], "count": [5]}}


def test_timestamps_are_the_frames_over_fps_or_the_callers_own(tmp_path):
    own = np.array([0.0, 0.11, 0.2], np.float32)
    with create_writer(tmp_path / "dataset", described(camera=False)) as writer:
        writer.append(EpisodeDraft(actions(3), tasks=["t"] * 3))
        writer.append(EpisodeDraft({**actions(3), "timestamp": own}, tasks=["t"] * 3))
        writer.commit()
    found = pq.read_table(tmp_path / "dataset/data")["timestamp"].to_numpy()
    expected = np.concatenate([(np.arange(3) / 10).astype(np.float32), own])
    assert np.array_equal(found, expected)


def test_more_episodes_than_are_held_at_once(tmp_path):
    with create_writer(tmp_path / "dataset", described(camera=False)) as writer:
        for _ in range(600):
            writer.append(EpisodeDraft(actions(1), tasks=["t"]))
        writer.commit()
    assert [row["episode_index"] for row in episodes_of(tmp_path / "dataset")] == list(range(600))


def test_a_refused_episode_changes_nothing(tmp_path):
    with create_writer(tmp_path / "dataset", described()) as writer:
        writer.append(
            EpisodeDraft(actions(4), tasks=["t"] * 4, videos={CAMERA: film(tmp_path, 0, 4)})
        )
        with pytest.raises(FrameMismatchError, match="5 frames; the episode has 4 rows") as caught:
            writer.append(
                EpisodeDraft(actions(4), tasks=["u"] * 4, videos={CAMERA: film(tmp_path, 9, 5)})
            )
        assert caught.value.where["camera"] == CAMERA
        writer.append(
            EpisodeDraft(actions(3), tasks=["v"] * 3, videos={CAMERA: film(tmp_path, 1, 3)})
        )
        writer.commit()
    rows = episodes_of(tmp_path / "dataset")
    assert [(row["length"], row["tasks"]) for row in rows] == [(4, ["t"]), (3, ["v"])]
    video = tmp_path / "dataset/videos" / CAMERA / "chunk-000/file-000.mp4"
    assert shown_from(video, 0, 99, 10) == [(0, f) for f in range(4)] + [(1, f) for f in range(3)]
    assert pq.read_table(tmp_path / "dataset/meta/tasks.parquet")["task"].to_pylist() == ["t", "v"]


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"columns": {}}, ArgumentError, "lacks the column 'action'"),
        ({"columns": {"acton": np.zeros((4, 2))}}, UnknownKeyError, "did you mean 'action'"),
        ({"columns": {**actions(4), "index": np.arange(4)}}, UnknownKeyError, "makes it itself"),
        ({"columns": actions(3)}, ArgumentError, "3 rows; the episode has 4"),
        ({"tasks": []}, ArgumentError, "every frame"),
        ({"tasks": "pick"}, ArgumentError, "every frame"),
        ({"videos": {}}, ArgumentError, "lacks the video camera"),
        ({"images": {CAMERA: [b""] * 4}}, UnknownKeyError, "no image camera"),
        ({"stats": stats_of(1.0)}, ArgumentError, "action/count"),
    ],
)
def test_episodes_that_do_not_fit_are_refused(tmp_path, change, error, said):
    video = film(tmp_path, 0, 4)
    good = {"columns": actions(4), "tasks": ["t"] * 4, "videos": {CAMERA: video}}
    writer = V3Writer(tmp_path / "dataset", described())
    writer.append(EpisodeDraft(**good))
    with pytest.raises(error, match=said):
        writer.append(EpisodeDraft(**{**good, **change}))
    writer.close()


def test_videos_that_cannot_share_a_file_get_their_own(tmp_path):
    other = VideoSettings(codec="h264", preset="medium")
    chosen = [H264, H264, other, H264]
    with create_writer(tmp_path / "dataset", described()) as writer:
        for episode, how in enumerate(chosen):
            video = film(tmp_path, episode, 3, how)
            writer.append(EpisodeDraft(actions(3), tasks=["t"] * 3, videos={CAMERA: video}))
        writer.commit()
    rows = episodes_of(tmp_path / "dataset")
    assert [row[f"videos/{CAMERA}/file_index"] for row in rows] == [0, 0, 1, 2]
    for row in rows:
        key = f"videos/{CAMERA}"
        path = file_of(tmp_path / "dataset", row, key, key + "/chunk-{:03d}/file-{:03d}.mp4")
        begin = row[f"{key}/from_timestamp"]
        assert shown_from(path, begin, 3, 10) == [(row["episode_index"], f) for f in range(3)]


def test_a_video_that_changes_before_the_commit_is_noticed(tmp_path):
    def write():
        with create_writer(tmp_path / "dataset", described()) as writer:
            video = film(tmp_path, 0, 4)
            writer.append(EpisodeDraft(actions(4), tasks=["t"] * 4, videos={CAMERA: video}))
            film(tmp_path, 0, 6)
            writer.commit()

    with pytest.raises(FrameMismatchError, match="6 frames; its episodes have 4"):
        write()
    assert not (tmp_path / "dataset").exists()


def test_without_a_commit_nothing_appears(tmp_path):
    def write(*, episodes, commit, fail=False):
        with create_writer(tmp_path / "dataset", described(camera=False)) as writer:
            for _ in range(episodes):
                writer.append(EpisodeDraft(actions(2), tasks=["t"] * 2))
            if fail:
                raise RuntimeError("power cut")
            if commit:
                writer.commit()

    with pytest.raises(ArgumentError, match="not called"):
        write(episodes=1, commit=False)
    with pytest.raises(RuntimeError, match="power cut"):
        write(episodes=1, commit=True, fail=True)
    with pytest.raises(ArgumentError, match="at least one episode"):
        write(episodes=0, commit=True)
    assert list(tmp_path.iterdir()) == []
    write(episodes=1, commit=True)
    with pytest.raises(TargetExistsError):
        write(episodes=1, commit=True)


def test_a_committed_dataset_takes_no_more(tmp_path):
    writer = V3Writer(tmp_path / "dataset", described(camera=False))
    writer.append(EpisodeDraft(actions(2), tasks=["t"] * 2))
    writer.commit()
    with pytest.raises(ArgumentError, match="already committed"):
        writer.append(EpisodeDraft(actions(2), tasks=["t"] * 2))
    with pytest.raises(ArgumentError, match="already committed"):
        writer.commit()


def test_another_version_is_refused(tmp_path):
    info = Info.new(version="v2.1", fps=10, features={})
    with pytest.raises(ArgumentError, match=r"writes v3\.0, not v2\.1"):
        V3Writer(tmp_path, info)

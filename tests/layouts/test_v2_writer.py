import json

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from demoreel.errors import ArgumentError, FrameMismatchError
from demoreel.layouts.v2.writer import V2Writer
from demoreel.layouts.writing import EpisodeDraft, create_writer
from demoreel.model import Feature, Info
from demoreel.testing import make_dataset, read_stamp


def described(version="v2.1"):
    return Info.new(
        version=version, fps=10, features={"action": Feature("action", "float32", (2,))}
    )


def actions(frames):
    return {"action": np.zeros((frames, 2), np.float32)}


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("layout", ["v2.0", "v2.1"])
def test_every_episode_has_its_own_table_and_videos(tmp_path, layout):
    lengths = [5, 1, 8, 3]
    root = make_dataset(
        tmp_path / "dataset",
        layout=layout,
        episodes=lengths,
        cameras=2,
        chunks_size=3,
        codec="hevc",
        b_frames=2,
        gop=4,
    )
    start = 0
    for episode, length in enumerate(lengths):
        chunk = episode // 3
        table = pq.read_table(root / f"data/chunk-{chunk:03d}/episode_{episode:06d}.parquet")
        assert table["index"].to_pylist() == list(range(start, start + length))
        assert table["frame_index"].to_pylist() == list(range(length))
        for camera in ("observation.images.cam0", "observation.images.cam1"):
            video = root / f"videos/chunk-{chunk:03d}/{camera}/episode_{episode:06d}.mp4"
            with av.open(str(video)) as container:
                images = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
            assert [read_stamp(p) for p in images] == [(episode, f) for f in range(length)]
        start += length
    info = json.loads((root / "meta/info.json").read_text())
    names = ("codebase_version", "total_episodes", "total_frames", "total_videos", "total_chunks")
    assert [info[name] for name in names] == [layout, 4, 17, 8, 2]
    assert "data_files_size_in_mb" not in info


def test_metadata_lines(tmp_path):
    root = make_dataset(
        tmp_path / "dataset", layout="v2.1", cameras=0, tasks=("a", "抓"), task_changes=True
    )
    assert lines_of(root / "meta/tasks.jsonl") == [
        {"task_index": 0, "task": "a"},
        {"task_index": 1, "task": "抓"},
    ]
    assert lines_of(root / "meta/episodes.jsonl") == [
        {"episode_index": 0, "tasks": ["a", "抓"], "length": 20},
        {"episode_index": 1, "tasks": ["抓", "a"], "length": 20},
        {"episode_index": 2, "tasks": ["a", "抓"], "length": 20},
    ]
    assert "抓" in (root / "meta/tasks.jsonl").read_text(encoding="utf-8")


def test_the_versions_differ_in_their_statistics(tmp_path):
    old = make_dataset(tmp_path / "old", layout="v2.0")
    new = make_dataset(tmp_path / "new", layout="v2.1")
    bare = make_dataset(tmp_path / "bare", layout="v2.1", with_stats=False)
    assert not (old / "meta/episodes_stats.jsonl").exists()
    assert not (new / "meta/stats.json").exists()
    assert not list(bare.glob("meta/*stats*"))
    whole = json.loads((old / "meta/stats.json").read_text())
    rows = lines_of(new / "meta/episodes_stats.jsonl")
    assert [row["episode_index"] for row in rows] == [0, 1, 2]
    assert whole["observation.state"]["max"][0] == 2
    assert [row["stats"]["observation.state"]["max"][0] for row in rows] == [0, 1, 2]
    assert whole["observation.images.cam0"]["count"] == [60]


def test_metadata_has_the_form_of_a_real_recording(fixtures, tmp_path):
    theirs = fixtures / "g1_v21"
    raw = json.loads((theirs / "meta/info.json").read_text())
    camera = "observation.images.cam_high"
    root = make_dataset(tmp_path / "ours", layout="v2.1", cameras={camera: (48, 64)})
    info = json.loads((root / "meta/info.json").read_text())
    assert set(info) == set(raw)
    assert info["data_path"] == raw["data_path"]
    assert info["video_path"] == raw["video_path"]
    name = "data/chunk-000/episode_000000.parquet"
    ours, real = pq.read_schema(root / name), pq.read_schema(theirs / name)
    assert ours.names == real.names
    kinds = [str(kind).replace("[26]", "[6]") for kind in real.types]
    assert [str(kind) for kind in ours.types] == kinds
    mine, other = (lines_of(folder / "meta/episodes_stats.jsonl")[0] for folder in (root, theirs))
    assert set(mine) == set(other)
    assert set(mine["stats"]) == set(other["stats"])
    assert np.shape(mine["stats"][camera]["mean"]) == np.shape(other["stats"][camera]["mean"])


def test_without_a_commit_nothing_appears(tmp_path):
    def write(commit):
        with create_writer(tmp_path / "dataset", described()) as writer:
            writer.append(EpisodeDraft(actions(2), tasks=["t"] * 2))
            if commit:
                writer.commit()

    with pytest.raises(ArgumentError, match="not called"):
        write(commit=False)
    assert list(tmp_path.iterdir()) == []
    write(commit=True)
    assert (tmp_path / "dataset/meta/info.json").exists()


def test_a_refused_episode_changes_nothing(tmp_path):
    make_dataset(tmp_path / "source", layout="v2.1", episodes=[6], cameras=1)
    video = next((tmp_path / "source/videos").rglob("*.mp4"))
    key = "observation.images.cam0"
    features = {**described().features, key: Feature(key, "video", (64, 64, 3))}
    info = Info.new(version="v2.1", fps=30, features=features)
    with create_writer(tmp_path / "dataset", info) as writer:
        with pytest.raises(FrameMismatchError, match="6 frames"):
            writer.append(EpisodeDraft(actions(5), tasks=["no"] * 5, videos={key: video}))
        writer.append(EpisodeDraft(actions(6), tasks=["yes"] * 6, videos={key: video}))
        writer.commit()
    assert lines_of(tmp_path / "dataset/meta/tasks.jsonl") == [{"task_index": 0, "task": "yes"}]
    assert len(list((tmp_path / "dataset/data").rglob("*.parquet"))) == 1


def test_a_committed_dataset_takes_no_more(tmp_path):
    writer = V2Writer(tmp_path / "dataset", described())
    with pytest.raises(ArgumentError, match="at least one episode"):
        writer.commit()
    writer.append(EpisodeDraft(actions(2), tasks=["t"] * 2))
    writer.commit()
    with pytest.raises(ArgumentError, match="already committed"):
        writer.append(EpisodeDraft(actions(2), tasks=["t"] * 2))


def test_another_version_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"not v3\.0"):
        V2Writer(tmp_path, described("v3.0"))

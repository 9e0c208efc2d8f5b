import hashlib
import io
import json
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from demoreel.errors import ArgumentError, MetadataError, TargetExistsError, VideoError
from demoreel.model import DepthCode
from demoreel.model.depth import depth_table
from demoreel.testing import make_dataset, read_stamp

FRAMES = [(episode, frame) for episode in range(3) for frame in range(20)]


def stamps_of(video):
    with av.open(str(video)) as container:
        images = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return [tuple(read_stamp(image)) for image in images]


def table_of(root):
    return pa.concat_tables(pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet")))


def checksums(root):
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"codec": "av1"},
        {"codec": "av1", "gop": 30, "crf": 40},
        {"codec": "hevc", "gop": 8, "b_frames": 3, "open_gop": True},
        {"codec": "vp9", "gop": 10},
        {"codec": "mpeg4", "gop": 6, "b_frames": 2},
        {"pix_fmt": "yuv444p", "cameras": {"observation.images.cam0": (49, 67)}},
    ],
)
def test_every_image_says_where_it_belongs(tmp_path, options):
    root = make_dataset(tmp_path / "dataset", **options)
    assert stamps_of(root / "videos/observation.images.cam0/chunk-000/file-000.mp4") == FRAMES


def test_every_row_says_where_it_belongs(tmp_path):
    root = make_dataset(tmp_path / "dataset", cameras=0, episodes=[4, 1, 6])
    table = table_of(root)
    where = [(e, f) for e, length in enumerate([4, 1, 6]) for f in range(length)]
    state = np.array(table["observation.state"].to_pylist(), np.float32)
    action = np.array(table["action"].to_pylist(), np.float32)
    for index, (episode, frame) in enumerate(where):
        assert state[index, :4].tolist() == [episode, frame, index, episode + frame / 4096]
        assert action[index, :3].tolist() == [-episode, -frame, -index]


def test_image_and_depth_cameras_are_stamped_too(tmp_path):
    still, depth = "observation.images.still", "observation.depth.front"
    root = make_dataset(
        tmp_path / "dataset", image_cameras={still: (48, 80)}, depth_cameras={depth: (64, 96)}
    )
    encoded = [row["bytes"] for row in table_of(root)[still].to_pylist()]
    images = [np.asarray(Image.open(io.BytesIO(data))) for data in encoded]
    assert {image.shape for image in images} == {(48, 80, 3)}
    assert [tuple(read_stamp(image)) for image in images] == FRAMES
    with av.open(str(root / f"videos/{depth}/chunk-000/file-000.mp4")) as container:
        codes = [frame.to_ndarray() for frame in container.decode(video=0)]
    millimetres = [depth_table(DepthCode())[code] for code in codes]
    assert [tuple(read_stamp(image)) for image in millimetres] == FRAMES
    stats = json.loads((root / "meta/stats.json").read_text())
    assert stats[depth]["max"] == [[[4000.0]]]
    assert np.shape(stats[still]["mean"]) == (3, 1, 1)


def test_features_of_every_kind(tmp_path):
    features = {
        "touch": {"dtype": "float32", "shape": [4, 3]},
        "done": {"dtype": "bool", "shape": [1]},
        "phase": {"dtype": "uint8", "shape": [1]},
        "offset": {"dtype": "int16", "shape": [2]},
        "note": {"dtype": "string", "shape": [1]},
    }
    root = make_dataset(tmp_path / "dataset", features=features, language=True)
    table = table_of(root)
    assert np.array(table["touch"].to_pylist()).shape == (60, 4, 3)
    assert set(table["done"].to_pylist()) == {True, False}
    assert min(np.array(table["offset"].to_pylist()).ravel()) < 0
    assert table["note"][25].as_py() == "note, episode 1, frame 5 ✓"
    events = table["language_events"].to_pylist()
    assert [bool(rows) for rows in events[:6]] == [True, False, False, False, False, True]
    assert events[25][0]["content"] == "episode 1, frame 5"
    assert json.loads(events[25][0]["tool_calls"][0])["function"]["name"] == "say"
    stats = json.loads((root / "meta/stats.json").read_text())
    assert {"touch", "done", "phase", "offset"} <= set(stats)
    assert not {"note", "language_events"} & set(stats)


def test_tasks_change_where_they_should(tmp_path):
    root = make_dataset(
        tmp_path / "dataset", episodes=[4, 5], cameras=0, tasks=("a", "b"), task_changes=True
    )
    assert table_of(root)["task_index"].to_pylist() == [0, 0, 1, 1, 1, 1, 1, 0, 0]


def test_statistics_of_the_whole_are_those_of_all_rows(tmp_path):
    root = make_dataset(tmp_path / "dataset", episodes=[4, 1, 9])
    stats = json.loads((root / "meta/stats.json").read_text())
    table = table_of(root)
    for key in ("observation.state", "timestamp", "index", "task_index"):
        values = np.array(table[key].to_pylist(), np.float64)
        values = values.reshape(len(table), -1)
        np.testing.assert_allclose(stats[key]["mean"], values.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(stats[key]["std"], values.std(axis=0), atol=1e-12)
        np.testing.assert_allclose(stats[key]["q90"], np.quantile(values, 0.9, axis=0), atol=1e-12)
    assert stats["observation.images.cam0"]["count"] == [14]


@pytest.mark.parametrize("layout", ["v2.0", "v2.1", "v3.0"])
def test_the_same_arguments_give_the_same_dataset(tmp_path, layout):
    options = {
        "layout": layout,
        "features": {"noise": {"dtype": "float32", "shape": [3]}},
        "image_cameras": {"observation.images.still": (48, 64)},
    }
    one = make_dataset(tmp_path / "one", **options)
    two = make_dataset(tmp_path / "two", **options)
    other = make_dataset(tmp_path / "other", seed=1, **options)
    assert checksums(one) == checksums(two)
    assert checksums(one) != checksums(other)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"layout": "v4.0"}, ArgumentError, "layout"),
        ({"codec": "h265"}, ArgumentError, "codec"),
        ({"episodes": 0}, ArgumentError, "at least one episode"),
        ({"episodes": [3, 0]}, VideoError, "No frames"),
        ({"features": {"x": {"dtype": "complex64", "shape": [1]}}}, MetadataError, "complex64"),
        ({"cameras": {"observation.images.cam": (65, 64)}}, VideoError, "odd"),
    ],
)
def test_arguments_that_make_no_sense_leave_nothing(tmp_path, options, error, said):
    with pytest.raises(error, match=said):
        make_dataset(tmp_path / "dataset", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_dataset_is_not_overwritten(tmp_path):
    root = make_dataset(tmp_path / "dataset", cameras=0)
    before = checksums(root)
    with pytest.raises(TargetExistsError):
        make_dataset(root, cameras=0, seed=3)
    assert checksums(root) == before


def test_the_path_comes_back(tmp_path):
    assert make_dataset(str(tmp_path / "dataset"), cameras=0) == Path(tmp_path / "dataset")

"""A Ray Dataset of episodes, read by the workers of a real, small cluster."""

from __future__ import annotations

import io
import logging
import sys

import numpy as np
import pytest
from PIL import Image

import demoreel
from demoreel.errors import ArgumentError, MissingExtraError, UnknownKeyError
from demoreel.testing import make_dataset

pytestmark = pytest.mark.soak

VIDEO, TABLE, DEPTH = "observation.images.cam0", "observation.images.wrist", "observation.depth.top"
LENGTHS = [5, 9, 3, 7]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("ray") / "data",
        episodes=LENGTHS,
        cameras={VIDEO: (48, 64)},
        image_cameras={TABLE: (32, 32)},
        depth_cameras={DEPTH: (48, 64)},
        features={"note": {"dtype": "string", "shape": [1]}},
        tasks=("pick", "place"),
        language=True,
    )


@pytest.fixture(scope="module")
def cluster():
    import ray

    ray.init(
        address="local",  # not a cluster that another test has started at the moment
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        # Workers must find what this process has imported, installed or only on the path.
        runtime_env={"env_vars": {"PYTHONPATH": ":".join(filter(None, sys.path))}},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def test_rows_are_episodes(cluster, path, monkeypatch, tmp_path):
    monkeypatch.chdir(path.parent)
    dataset = demoreel.open("data", episodes=[3, 1, 0], windows={"action": [-1, 0]})
    plain = dataset.to_ray()
    images = dataset.to_ray(columns=["action"], cameras=[VIDEO, TABLE, DEPTH], blocks=2)
    encoded = dataset.to_ray(columns=(), cameras=[VIDEO, TABLE, DEPTH], encoded=True)
    monkeypatch.chdir(tmp_path)  # workers have no reason to stand where this process stands
    reference = demoreel.open(path)

    rows = sorted(plain.take_all(), key=lambda row: row["episode_index"])
    assert [row["episode_index"] for row in rows] == [0, 1, 3]
    assert [row["length"] for row in rows] == [5, 9, 7]
    assert [row["task"] for row in rows] == ["pick", "place", "place"]
    assert [list(row["tasks"]) for row in rows] == [["pick"], ["place"], ["place"]]
    for row in rows:
        view = reference.episode(row["episode_index"])
        for key in ("observation.state", "action", "timestamp", "frame_index", "index"):
            column = view.column(key)
            assert row[key].dtype == column.dtype
            assert np.array_equal(row[key], column)
        assert list(row["note"]) == view.column("note")
        assert "language_events" in row

    total = images.map_batches(
        lambda batch: {"sum": np.array([batch["action"][0].sum()])}, batch_size=1
    )
    assert total.count() == 3
    for row in images.take_all():
        start = int(reference.episodes.start[row["episode_index"]])
        batch = reference.batch(range(start, start + row["length"]))
        for key in (VIDEO, TABLE, DEPTH):
            assert row[key].dtype == batch[key].dtype
            assert np.array_equal(row[key], batch[key])
        assert "note" not in row

    row = encoded.take(1)[0]
    start = int(reference.episodes.start[row["episode_index"]])
    batch = reference.batch(range(start, start + row["length"]))
    for key in (VIDEO, TABLE, DEPTH):
        assert len(row[key]) == row["length"]
        image = np.array(Image.open(io.BytesIO(row[key][4])))
        wanted = batch[key][4].transpose(1, 2, 0)
        assert np.array_equal(image, np.rint(wanted[..., 0]) if key == DEPTH else wanted)


def test_what_makes_no_sense(path):
    dataset = demoreel.open(path)
    with pytest.raises(UnknownKeyError, match="camera"):
        dataset.to_ray(cameras=["front"])
    with pytest.raises(UnknownKeyError, match="column"):
        dataset.to_ray(columns=["actions"])
    with pytest.raises(ArgumentError, match="blocks"):
        dataset.to_ray(blocks=0)


def test_without_ray_it_says_so(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(MissingExtraError, match=r"demoreel\[ray\]"):
        demoreel.open(path).to_ray()

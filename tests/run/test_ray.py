"""The same cut on a Ray cluster of two nodes, one of which is killed in the middle."""

from __future__ import annotations

import logging
import sys

import pytest

import demoreel
from demoreel.errors import MissingExtraError
from demoreel.run.ray import RayEngine
from demoreel.testing import make_dataset

pytestmark = pytest.mark.soak

SIZES = {"data_files_size_in_mb": 0.002, "video_files_size_in_mb": 0.004}


@pytest.fixture
def cluster():
    """A head and a second node, each a process of its own with one processor."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False},
    )
    second = made.add_node(num_cpus=1)
    ray.init(
        address=made.address,
        log_to_driver=False,
        logging_level=logging.ERROR,
        # Workers must find what this process has imported, installed or only on the path.
        runtime_env={"env_vars": {"PYTHONPATH": ":".join(filter(None, sys.path))}},
    )
    yield made, second
    ray.shutdown()
    made.shutdown()


def test_a_node_is_lost_and_nothing_is_missing(cluster, tmp_path):
    nodes, second = cluster
    make_dataset(tmp_path / "in", episodes=[6] * 8, gop=3, **SIZES)
    made = demoreel.cut(tmp_path / "in").delete(3).trim(5, 1)
    made.render(tmp_path / "here", **SIZES)
    lost = []

    def lose(share: float) -> None:
        if not lost:
            nodes.remove_node(second, allow_graceful=False)
            lost.append(share)

    done = made.render(tmp_path / "out", engine=RayEngine(), report=lose, verify="full", **SIZES)
    assert done.committed
    assert lost
    assert lost[0] < 1
    files = [path for path in (tmp_path / "here").rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        there = tmp_path / "out" / path.relative_to(tmp_path / "here")
        assert there.read_bytes() == path.read_bytes()


def test_a_conversion_that_encodes(cluster, tmp_path):
    root = make_dataset(tmp_path / "in", episodes=[6] * 4, gop=3, **SIZES)
    options = {"to": "v3.0", "codec": "h264", "image_size": (48, 48), **SIZES}
    demoreel.convert(root, tmp_path / "here", **options)
    report = demoreel.convert(root, tmp_path / "out", **options, engine=RayEngine())
    assert report.verified.lowest_psnr > 20
    videos = list((tmp_path / "here").rglob("*.mp4"))
    assert len(videos) > 1
    for path in videos:
        there = tmp_path / "out" / path.relative_to(tmp_path / "here")
        assert there.read_bytes() == path.read_bytes()


def test_without_ray_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="Ray is not installed"):
        RayEngine()

"""Merging datasets that differ: what is refused, left out, filled."""

from __future__ import annotations

import json

import numpy as np
import pytest

from demoreel.edit.cut import cut
from demoreel.errors import ArgumentError
from demoreel.testing import make_dataset

from .conftest import assert_is, opened, tasks_of

JOINTS = [f"joint_{number}" for number in range(6)]
CAMERAS = {"observation.images.front": (64, 64)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("plain") / "plain", episodes=[4, 3], cameras=CAMERAS
    )


@pytest.fixture(scope="module")
def richer(tmp_path_factory):
    """The same with more: numbers, a matrix, text."""
    features = {
        "reward": {"dtype": "float32", "shape": [1]},
        "matrix": {"dtype": "int32", "shape": [2, 3]},
        "note": {"dtype": "string", "shape": [1]},
    }
    folder = tmp_path_factory.mktemp("richer") / "richer"
    return make_dataset(folder, episodes=[5], cameras=CAMERAS, features=features, tasks=("other",))


def changed(source, folder, change):
    """A copy of a dataset whose info.json was changed."""
    import shutil

    shutil.copytree(source, folder)
    info = folder / "meta" / "info.json"
    raw = json.loads(info.read_text())
    change(raw)
    info.write_text(json.dumps(raw))
    return folder


def test_strict_refuses_with_a_table(plain, richer):
    with pytest.raises(ArgumentError) as refused:
        cut(plain).merge(richer).plan()
    said = str(refused.value)
    for key, kind in (("reward", "float32 [1]"), ("matrix", "int32 [2, 3]"), ("note", "string")):
        line = next(line for line in said.splitlines() if f"feature {key}" in line)
        assert " -  " in line
        assert kind in line
    assert str(plain) in said
    assert "common" in said
    assert "observation.state" not in said


def test_common_leaves_out(plain, richer, tmp_path):
    made = cut(plain).merge(richer, features="common")
    made.render(tmp_path / "out")
    result = opened(tmp_path / "out")
    assert set(result.features) == set(opened(plain).features)
    assert tasks_of(result) == ["do it"] * 7 + ["other"] * 5
    cut(richer).merge(plain, features="common").render(tmp_path / "back")
    assert set(opened(tmp_path / "back").features) == set(opened(plain).features)


def test_union_fills_and_masks(plain, richer, tmp_path):
    cut(plain).merge(richer, features="union").render(tmp_path / "out")
    result = opened(tmp_path / "out").batch(range(12))
    theirs = opened(richer).batch(range(5))
    for key in ("reward", "matrix", "note"):
        assert list(result[f"{key}_is_missing"]) == [True] * 7 + [False] * 5
        assert np.array_equal(result[key][7:], theirs[key])
    assert not np.any(result["matrix"][:7])
    assert result["note"][:7] == [""] * 7


def test_cameras_that_some_lack(plain, tmp_path):
    two = make_dataset(
        tmp_path / "two", episodes=[2], cameras={**CAMERAS, "observation.images.top": (64, 64)}
    )
    with pytest.raises(ArgumentError, match="differ"):
        cut(plain).merge(two).plan()
    cut(plain).merge(two, features="common").render(tmp_path / "out")
    assert opened(tmp_path / "out").cameras == ("observation.images.front",)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["features"].update(dict(reversed(raw["features"].items()))),
        lambda raw: raw.update(features=dict(reversed(raw["features"].items()))),
        lambda raw: raw["features"]["action"].update(names=None),
        lambda raw: raw["features"]["action"].update(names={"motors": JOINTS}),
        lambda raw: raw["features"]["observation.images.front"].update(
            video_info=raw["features"]["observation.images.front"].pop("info")
        ),
        lambda raw: raw["features"]["action"].update(fps=30),
    ],
)  # fmt: skip
def test_what_does_not_matter(plain, tmp_path, change):
    other = changed(plain, tmp_path / "other", change)
    for made in (cut(plain).merge(other), cut(other).merge(plain)):
        assert len(made.plan().clips) == 4
    made.render(tmp_path / "out")
    assert_is(opened(tmp_path / "out"), made)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["features"]["action"].update(dtype="float64"),
        lambda raw: raw["features"]["action"].update(
            names=[f"joint_{n}" for n in reversed(range(6))]
        ),
        lambda raw: raw["features"]["observation.images.front"].update(shape=[32, 64, 3]),
    ],
)
def test_what_does(plain, tmp_path, change):
    other = changed(plain, tmp_path / "other", change)
    for features in ("strict", "union"):
        with pytest.raises(ArgumentError, match="differ"):
            cut(plain).merge(other, features=features).plan()


def test_other_rates_are_refused(plain, tmp_path):
    other = make_dataset(tmp_path / "other", episodes=[2], cameras=CAMERAS, fps=10)
    with pytest.raises(ArgumentError, match="frame rates"):
        cut(plain).merge(other).plan()


def test_robots_are_kept_by_episode(plain, tmp_path):
    import pyarrow.parquet as pq

    other = changed(plain, tmp_path / "other", lambda raw: raw.update(robot_type="walker"))
    cut(plain).merge(other).render(tmp_path / "out")
    table = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet")
    assert table.column("robot_type").to_pylist() == ["made_up"] * 2 + ["walker"] * 2
    cut(tmp_path / "out").delete([0, 1]).render(tmp_path / "half")
    table = pq.read_table(tmp_path / "half/meta/episodes/chunk-000/file-000.parquet")
    assert table.column("robot_type").to_pylist() == ["walker"] * 2


def test_images_in_tables_and_language(tmp_path):
    make_dataset(
        tmp_path / "in",
        episodes=[12, 4],
        cameras=0,
        image_cameras={"observation.images.still": (64, 64)},
        depth_cameras={"observation.depth": (48, 64)},
        language=True,
    )
    made = cut(tmp_path / "in").trim(0, 5, 11)
    made.render(tmp_path / "out", verify="full")
    result, source = opened(tmp_path / "out"), opened(tmp_path / "in")
    rows = [*range(5, 11), *range(12, 16)]
    for key in ("observation.images.still", "observation.depth", "language_events"):
        found, theirs = result.batch(range(10))[key], source.batch(rows)[key]
        assert all(np.array_equal(a, b) for a, b in zip(found, theirs, strict=True))
    assert result[0]["language_persistent"][0]["timestamp"] == 0.0

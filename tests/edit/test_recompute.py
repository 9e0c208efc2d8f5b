"""Statistics computed again, in place: right, whole, and nothing but them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import ArgumentError, DatasetBusyError, DiskFullError
from demoreel.layouts.appending import create_appender, open_appender
from demoreel.layouts.beside import histogram_files, noted, read_histograms
from demoreel.stats.files import episode_stats
from demoreel.stats.recompute import recompute
from demoreel.storage.commit.writer_lock import WriterLock
from demoreel.testing import make_dataset
from support.crash import (
    crash_info,
    files_may_not_grow,
    killed,
    make_draft,
    recompute_for_ever,
)
from support.plain_stats import stats_of_rows

from ..conftest import LAYOUTS
from .conftest import opened
from .test_levels import from_scratch

CAM, EYE, DEEP = "observation.images.cam0", "observation.images.eye", "observation.depth.deep"
STATISTICS = (
    "meta/stats.json",
    "meta/episodes_stats.jsonl",
    "meta/episodes/",
    "meta/demoreel",
    "meta.lance/",
)


def made(path: Path, layout: str, **options) -> Path:
    source = "v3.0" if layout.startswith("lance") else layout
    target = path if source == layout else path.with_name("source")
    make_dataset(
        target,
        episodes=[6, 9, 3],
        image_cameras={EYE: (16, 24)},
        features={"grid": {"dtype": "float32", "shape": [2, 3]}},
        layout=source,
        with_stats=options.pop("with_stats", True),
        **options,
    )
    if source != layout:
        demoreel.convert(target, path, to=layout)
    return path


def contents(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("layout", "with_stats"),
    [
        *((layout, True) for layout in LAYOUTS),
        *((layout, False) for layout in ("v2.1", "v3.0", "lance-native")),
    ],
)
def test_all_are_computed_and_nothing_else_is_changed(tmp_path, layout, with_stats):
    path = made(tmp_path / "made", layout, with_stats=with_stats)
    before = contents(path)
    planned = recompute(path, dry_run=True)
    assert contents(path) == before
    done = recompute(path)
    assert (done.committed, planned.committed) == (True, False)
    assert (done.cameras, done.files) == (planned.cameras, planned.files)
    assert done.cameras == {CAM: 18, EYE: 18}
    after = contents(path)
    assert {
        name for name in before | after if before.get(name) != after.get(name)
    } <= {name for name in after if name.startswith(STATISTICS)}  # fmt: skip
    assert set(done.files) <= after.keys()
    assert_right(path)


def assert_right(path: Path) -> None:
    dataset = opened(path)
    reader = dataset.reader
    assert noted(path / "meta") == {}
    numeric = {key: f for key, f in dataset.features.items() if f.is_numeric}
    rows = reader.rows(np.arange(len(dataset)), list(numeric))
    wanted = stats_of_rows(numeric, rows)
    for key, kinds in wanted.items():
        for kind, value in kinds.items():
            if dataset.layout != "v2.1" or kind in ("min", "max", "mean", "std", "count"):
                np.testing.assert_allclose(dataset.stats[key][kind], value, rtol=1e-9, atol=1e-9)
    if dataset.layout == "v2.0":
        found = dataset.stats[CAM]
        assert episode_stats(reader, 0) is None
        assert not histogram_files(path / "meta")
        wanted_of = from_scratch(dataset, range(len(dataset)))
    else:
        found = episode_stats(reader, 1)[CAM]
        assert len(list(read_histograms(path / "meta"))) == 2 * len(dataset.episodes)
        start = dataset.episodes.start
        wanted_of = from_scratch(dataset, range(int(start[1]), int(start[2])))
    for kind, value in wanted_of.items():
        np.testing.assert_allclose(found[kind].reshape(-1), value, rtol=1e-9, atol=1e-12)


def test_the_copy_in_lance_holds_the_new_metadata(tmp_path):
    import lance

    path = made(tmp_path / "made", "lance-native")
    recompute(path)
    rows = lance.dataset(str(path / "meta.lance")).to_table().to_pylist()
    held = {row["path"]: row["data"] for row in rows}
    assert held == contents(path / "meta")


def test_only_numbers(tmp_path):
    path = made(tmp_path / "made", "v3.0")
    stats = json.loads((path / "meta" / "stats.json").read_text())
    done = recompute(path, pictures="none")
    assert done.cameras == {}
    assert json.loads((path / "meta" / "stats.json").read_text())[CAM] == stats[CAM]
    assert set(noted(path / "meta")) == {CAM, EYE}  # of these nothing is known
    assert not histogram_files(path / "meta")


def test_metadata_keep_their_rows_and_other_columns(copy_of):
    path = copy_of("kitchen_v30")
    file = next((path / "meta" / "episodes").glob("*/*.parquet"))
    before = pq.read_table(file)
    recompute(path)
    after = pq.read_table(file)
    assert after.column_names == before.column_names
    assert after.schema.types == before.schema.types
    for name in before.column_names:
        if not name.startswith("stats/"):
            assert after.column(name).equals(before.column(name)), name


@pytest.mark.parametrize("name", ["g1_v30", "kitchen_v30", "kitchen_images_v30", "g1_v21"])
def test_numbers_of_another_tool_mean_the_same(copy_of, name):
    """Its extremes, means and deviations of numbers are ours; quantiles it can only estimate."""
    path = copy_of(name)
    before = opened(path).stats
    recompute(path, pictures="none")
    after = opened(path).stats
    assert before.keys() == after.keys()
    for key, kinds in before.items():
        for kind in ("min", "max", "mean", "std", "count"):
            np.testing.assert_allclose(
                after[key][kind], np.asarray(kinds[kind], np.float64), rtol=1e-5, atol=1e-6
            )
            assert after[key][kind].shape == kinds[kind].shape


def test_depth_in_its_unit(tmp_path):
    path = make_dataset(tmp_path / "made", episodes=[4, 5], depth_cameras={DEEP: (16, 24)})
    recompute(path)
    dataset = opened(path)
    values = np.stack([dataset[row][DEEP] for row in range(9)]).astype(np.float64)
    found = dataset.stats[DEEP]
    assert found["mean"].reshape(-1) == pytest.approx(values.mean())
    assert found["q10"].reshape(-1) == pytest.approx(np.quantile(values, 0.1))
    assert found["mean"].shape == (1, 1, 1)


def test_recording_goes_on_afterwards(tmp_path):
    path = make_dataset(tmp_path / "made", episodes=[4, 5])
    recompute(path)
    with open_appender(path) as appender:
        assert appender.episodes == 2
    assert noted(path / "meta") == {}


def test_what_makes_no_sense_changes_nothing(tmp_path):
    path = make_dataset(tmp_path / "made", episodes=[3])
    before = contents(path)
    for wrong in ({"numbers": False, "pictures": "none"}, {"pictures": "some"}, {"threads": 0}):
        with pytest.raises(ArgumentError):
            recompute(path, **wrong)
    lock = WriterLock(path)
    with pytest.raises(DatasetBusyError):
        recompute(path)
    lock.release(remove=True)
    assert contents(path) == before


def test_a_full_disk_leaves_all_as_it_was(tmp_path):
    path = made(tmp_path / "made", "v3.0")
    before = contents(path)
    with files_may_not_grow(beyond=2000), pytest.raises(DiskFullError):
        recompute(path)
    assert contents(path) == before
    recompute(path)
    assert_right(path)


def test_a_small_disk_leaves_all_as_it_was(mounted, tmp_path):
    path = mounted("400k") / "made"
    shutil.copytree(made(tmp_path / "made", "v3.0"), path)
    before = contents(path)
    filler = path.parent / "filler"
    free = os.statvfs(path)
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize - 12 * 4096))
    with pytest.raises(DiskFullError):
        recompute(path)
    assert contents(path) == before
    filler.unlink()
    recompute(path)
    assert_right(path)


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["v3.0", "lance-native"])
def test_a_kill_leaves_the_old_or_the_new(tmp_path, layout):
    path = made(tmp_path / "made", layout, with_stats=False)
    rng = np.random.default_rng(3)
    for round_ in range(4):
        killed(recompute_for_ever, path, reports=round_ % 2, then=float(rng.uniform(0, 1.2)))
        demoreel.finish(path)
        opened(path)
        if (path / "meta" / "stats.json").exists():
            assert_right(path)
    recompute(path)
    assert_right(path)
    assert not (path / ".demoreel").exists()


def test_what_was_recorded_and_what_is_decoded_may_be_mixed(tmp_path):
    """A recorder counts its frames; only episodes without counts are decoded."""
    root = tmp_path / "made"
    (tmp_path / "scratch").mkdir()
    with create_appender(root, crash_info(cameras=1)) as appender:
        for episode in range(3):
            appender.append(make_draft(appender, episode, tmp_path / "scratch"))
    assert recompute(root, pictures="missing").cameras == {CAM: 0}
    assert noted(root / "meta") == {}
    shutil.rmtree(root / "meta" / "demoreel")
    assert recompute(root, pictures="missing").cameras == {CAM: len(opened(root))}

"""Edits in place: a new version of a Lance dataset, whole or absent, and no video byte written."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import lance
import numpy as np
import pytest

import demoreel
from demoreel.edit.cut import cut
from demoreel.errors import ArgumentError, DatasetBusyError, DiskFullError
from demoreel.layouts.appending import create_appender, open_appender
from demoreel.testing import make_dataset
from support.crash import crash_info, files_may_not_grow, killed, make_draft
from support.crash_editing import WHOLE, edit_for_ever
from support.plain_stats import stats_of_rows
from support.power_cut import watch

from .stamped import assert_shows, wanted

LENGTHS = [5, 12, 3, 9]
EVERY = wanted(*((number, range(length)) for number, length in enumerate(LENGTHS)))
FILMED = ("lance-video", "lance-native")
LAYOUTS = (*FILMED, "lance-frames")
CAMERA = "observation.images.cam0"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    """One dataset in each layout, of the same episodes."""
    folder = tmp_path_factory.mktemp("in_place")
    options = {
        "episodes": LENGTHS,
        "features": {
            "noise": {"dtype": "float64", "shape": [2, 3]},
            "note": {"dtype": "string", "shape": [1]},
        },
        "language": True,
        "tasks": ("do it", "do more"),
        "task_changes": True,
    }
    filmed = make_dataset(folder / "filmed", gop=4, video_files_size_in_mb=0.01, **options)
    imaged = make_dataset(
        folder / "pictured", cameras=0, image_cameras={CAMERA: (64, 64)}, **options
    )
    for layout in LAYOUTS:
        source = imaged if layout == "lance-frames" else filmed
        # Images in two fragments, so that one may go as a whole.
        cut(source).render(folder / layout, layout=layout, data_files_size_in_mb=0.02)
    return {layout: folder / layout for layout in LAYOUTS}


@pytest.fixture(params=LAYOUTS)
def dataset(request, made, tmp_path) -> Path:
    """A dataset that may be edited; ``like`` beside it stays as it was."""
    return copied(made[request.param], tmp_path)


@pytest.fixture(params=FILMED)
def filmed(request, made, tmp_path) -> Path:
    return copied(made[request.param], tmp_path)


def copied(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder / "like")
    return shutil.copytree(source, folder / source.name)


def like(dataset: Path) -> Path:
    return dataset.with_name("like")


def files_of(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file, and what changes when it does."""
    return {
        path.relative_to(folder).as_posix(): (s.st_ino, s.st_size, s.st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
        for s in [path.stat()]
    }


def rows_of(path: Path) -> lance.LanceDataset:
    (table,) = (
        p
        for p in path.glob("*.lance")
        if not p.name.endswith("videos.lance") and p.name != "meta.lance"
    )
    return lance.dataset(str(table))


def test_delete(dataset):
    before = files_of(dataset)
    done = cut(dataset).delete([0, 2]).render_in_place(verify="full")
    assert (done.episodes, done.frames, done.committed) == (2, 21, True)
    ds = assert_shows(dataset, wanted((1, range(12)), (3, range(9))))
    assert ds.reader.tables["frames"].version == done.version
    after = files_of(dataset)
    kept = {name: told for name, told in before.items() if name.partition("/")[0] != "meta"}
    hints = {name for name in kept if name.endswith("latest_version_hint.json")}
    assert {name: after[name] for name in kept.keys() - hints} == {
        n: kept[n] for n in kept.keys() - hints
    }
    new = after.keys() - before.keys()
    assert not [name for name in new if "videos.lance" in name]
    assert not (dataset / ".demoreel").exists()


def test_images_in_rows_are_not_written_again(made, tmp_path):
    dataset = copied(made["lance-frames"], tmp_path)
    before = files_of(dataset)
    assert any(b"PNG" in (dataset / name).read_bytes() for name in before if "/data/" in name)
    cut(dataset).delete(0).trim(1, 2, 7).render_in_place()
    new = [dataset / name for name in files_of(dataset).keys() - before.keys()]
    assert not any(b"PNG" in path.read_bytes() for path in new)


def test_trim_and_order(filmed):
    cut(filmed).keep([3, 1]).trim(1, 3, 10).render_in_place(verify="full")
    assert_shows(filmed, wanted((3, range(9)), (1, range(3, 10))))


def test_trim_keeps_the_order_of_images(dataset):
    cut(dataset).trim(1, 3, 10).trim(3, 0.1, 0.2).render_in_place(verify="full")
    clips = wanted((0, range(5)), (1, range(3, 10)), (2, range(3)), (3, range(3, 6)))
    assert_shows(dataset, clips)


def test_what_is_said_of_the_result_is_what_a_new_dataset_would_say(dataset, tmp_path):
    def changed(made):
        return made.delete(0).trim(1, 2, 9).retask({1: "another"}).remove("note")

    changed(cut(dataset)).render_in_place()
    changed(cut(like(dataset))).render(tmp_path / "new", layout=demoreel.open(dataset).layout)
    mine, new = demoreel.open(dataset), demoreel.open(tmp_path / "new")
    assert mine.info.features == new.info.features
    assert list(mine.tasks.values()) == list(new.tasks.values())
    assert mine.stats.keys() == new.stats.keys()
    for key, kinds in new.stats.items():
        for kind, value in kinds.items():
            np.testing.assert_array_equal(mine.stats[key][kind], value, err_msg=f"{key} {kind}")
    numeric = [key for key, f in mine.features.items() if f.is_numeric]
    rows = mine.reader.rows(np.arange(len(mine)), numeric)
    again = stats_of_rows(mine.features, rows)
    for key in numeric:
        np.testing.assert_allclose(mine.stats[key]["q50"], again[key]["q50"], rtol=1e-12)
    columns = list(mine.features.keys() - set(mine.cameras))
    mine_rows, new_rows = (ds.reader.rows(np.arange(len(ds)), columns) for ds in (mine, new))
    for key in columns:
        assert (
            np.array_equal(mine_rows[key], new_rows[key])
            if isinstance(new_rows[key], np.ndarray)
            else mine_rows[key] == new_rows[key]
        ), key


def test_features(dataset):
    values = np.arange(29, dtype=np.float32)
    changed = cut(dataset).delete(0).rename({"noise": "note", "note": "noise"})
    changed.add("reward", values).remove("action").render_in_place(verify="full")
    ds = demoreel.open(dataset)
    assert {"noise", "note", "reward"} < ds.features.keys()
    assert "action" not in ds.features
    assert ds.reader.rows(np.arange(24), ["reward"])["reward"].tolist() == values[5:].tolist()
    before = demoreel.open(like(dataset)).reader.rows(np.arange(5, 29), ["noise", "note"])
    after = ds.reader.rows(np.arange(24), ["noise", "note"])
    assert np.array_equal(after["note"], before["noise"])
    assert after["noise"] == before["note"]
    cut(dataset).delete(0).render_in_place()  # what was changed once can be changed again
    assert_shows(dataset, wanted((2, range(3)), (3, range(9))))


def test_a_camera_may_go(filmed):
    cut(filmed).remove(CAMERA).render_in_place()
    assert demoreel.open(filmed).cameras == ()
    assert demoreel.open(filmed, version=3).cameras == (CAMERA,)


def test_indices_stay(dataset):
    before = {index.name: index.index_type for index in rows_of(dataset).describe_indices()}
    cut(dataset).delete(1).render_in_place()
    after = rows_of(dataset).describe_indices()
    assert {index.name: index.index_type for index in after} == before
    assert {index.num_rows_indexed for index in after} == {17}
    assert demoreel.open(dataset, filter="task_index = 0").episodes.total_frames > 0


def test_the_copy_of_metadata_follows(made, tmp_path):
    dataset = copied(made["lance-native"], tmp_path)
    cut(dataset).delete(1).render_in_place()
    copy = lance.dataset(str(dataset / "meta.lance")).to_table()
    found = dict(zip(copy["path"].to_pylist(), copy["data"].to_pylist(), strict=True))
    meta = dataset / "meta"
    files = {p.relative_to(meta).as_posix(): p for p in meta.rglob("*") if p.is_file()}
    assert found == {name: path.read_bytes() for name, path in files.items()}


def test_several_edits_and_recordings_between(tmp_path, filmed):
    layout = demoreel.open(filmed).layout
    root, scratch = tmp_path / "recorded", tmp_path / "scratch"
    scratch.mkdir()
    with create_appender(root, crash_info(cameras=1), layout=layout) as appender:
        for _ in range(4):
            appender.append(make_draft(appender, appender.episodes, scratch))
        while appender.compact(finish=True):
            pass

    def episodes(**options):
        ds = demoreel.open(root, **options)
        batch = ds.batch(range(len(ds)))
        told = [int(episode) for episode in batch["state"][ds.episodes.start[:-1], 0]]
        stamps = [demoreel.testing.read_stamp(p).episode for p in batch[CAMERA]]
        assert stamps == [int(episode) for episode in batch["state"][:, 0]]
        return told

    seen = {newest(root): episodes()}
    cut(root).delete(1).render_in_place()
    seen[newest(root)] = episodes()
    with open_appender(root) as appender:
        appender.append(make_draft(appender, 9, scratch))
    cut(root).delete(0).render_in_place()
    seen[newest(root)] = episodes()
    demoreel.lance.checkout(root, min(seen))
    assert list(seen.values()) == [[0, 1, 2, 3], [0, 2, 3], [2, 3, 9]]
    assert episodes() == [0, 1, 2, 3]
    with open_appender(root) as appender:
        appender.append(make_draft(appender, 10, scratch))
    assert episodes() == [0, 1, 2, 3, 10]
    assert {number: episodes(version=number) for number in seen} == seen


def newest(root: Path) -> int:
    return demoreel.lance.versions(root)[-1].number


def test_other_tools_files(copy_of):
    """Columns keep the types that the tools which invented the layouts gave them."""
    for name in ("g1_lance_video", "g1_lance_native", "kitchen_lance_frames"):
        dataset = copy_of(name)
        before = rows_of(dataset).schema
        whole = demoreel.open(dataset)
        rows = np.arange(whole.episodes.start[1], whole.episodes.start[2])
        sample = whole.batch(rows[:3])
        cut(dataset).keep([1]).render_in_place()
        after = rows_of(dataset).schema
        assert {f.name: f.type for f in after} == {f.name: f.type for f in before}
        found = demoreel.open(dataset).batch(range(3))
        for camera in whole.cameras:
            assert np.array_equal(found[camera], sample[camera])
        for key, feature in whole.features.items():
            if feature.is_numeric and key not in ("index", "episode_index", "task_index"):
                assert np.array_equal(found[key], sample[key]), key
        assert demoreel.open(dataset, version=newest(dataset)).episodes.total_frames == len(rows)


# What is refused changes nothing


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.merge(like(Path(c.cutlist.sources[0].path))), "Only one dataset"),
        (lambda c: c.keep([1, 1]), "in two episodes"),
        (lambda c: c.rename({CAMERA: "observation.images.other"}), "cannot be renamed in place"),
    ],
)
def test_what_cannot_be_done_in_place(filmed, change, message):
    before = files_of(filmed)
    with pytest.raises(ArgumentError, match=message):
        change(cut(filmed)).render_in_place()
    assert files_of(filmed) == before


def test_order_of_images_in_rows(made, tmp_path):
    dataset = copied(made["lance-frames"], tmp_path)
    with pytest.raises(ArgumentError, match="cannot change their order"):
        cut(dataset).keep([1, 0]).render_in_place()
    assert not (dataset / ".demoreel").exists()
    assert_shows(dataset, EVERY)


def test_other_layouts_have_no_versions(tmp_path):
    source = make_dataset(tmp_path / "v3", episodes=2, length=3)
    with pytest.raises(ArgumentError, match="cannot be edited in place"):
        cut(source).delete(0).render_in_place()


def test_an_older_version_does_not_change(filmed):
    cut(filmed).delete(0).render_in_place()
    with pytest.raises(ArgumentError, match="not the newest"):
        cut(demoreel.open(filmed, version=3)).delete(1).render_in_place()
    made = cut(filmed).delete(1)
    cut(filmed).delete(0).render_in_place()
    with pytest.raises(ArgumentError, match="has changed"):
        made.render_in_place()


def test_a_recording_that_is_open_comes_first(filmed):
    with open_appender(filmed):
        before = files_of(filmed)
        with pytest.raises(DatasetBusyError):
            cut(filmed).delete(0).render_in_place()
        with pytest.raises(DatasetBusyError):
            demoreel.lance.checkout(filmed, 1)
        assert files_of(filmed) == before
    cut(filmed).delete(0).render_in_place()


# What may go wrong


def test_a_full_disk(dataset):
    before = files_of(dataset)
    with files_may_not_grow(2000), pytest.raises(DiskFullError):
        cut(dataset).delete(0).render_in_place()
    assert files_of(dataset) == before
    cut(dataset).delete(0).render_in_place()
    assert_shows(dataset, EVERY[1:])


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["lance-native", "lance-frames"])
def test_every_state_that_a_power_cut_may_leave_is_whole(made, tmp_path, layout):
    dataset = copied(made[layout], tmp_path)
    with watch(dataset) as cuts:
        cut(dataset).delete(0).render_in_place()
    found, seen = set(), []
    for number, state in enumerate(cuts.states):
        pending = ".demoreel/journal.json" in state
        told = {n: c for n, c in state.items() if pending or ".demoreel" not in n}
        if told in seen:
            continue
        seen.append(told)
        folder = cuts.build(state, tmp_path / str(number) / dataset.name)
        demoreel.finish(folder)
        found.add(len(demoreel.open(folder).episodes))
        assert_shows(folder, EVERY[-len(demoreel.open(folder).episodes) :])
        shutil.rmtree(folder.parent)
    assert found == {3, 4}


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["lance-native", "lance-frames"])
def test_killed_at_any_instant(made, tmp_path, layout):
    dataset = copied(made[layout], tmp_path)
    demoreel.lance.tag(dataset, WHOLE)
    instant, versions = random.Random(3), len(demoreel.lance.versions(dataset))
    for _ in range(3):
        reports = killed(
            edit_for_ever, dataset, 0, reports=instant.randrange(2), then=instant.uniform(0, 1.2)
        )
        demoreel.finish(dataset)
        there = len(demoreel.lance.versions(dataset))
        assert there - versions - len(reports) in (0, 1)
        versions = there
        assert_shows(dataset, EVERY[-len(demoreel.open(dataset).episodes) :])
        assert_shows(demoreel.open(dataset, tag=WHOLE, decode_threads=1), EVERY)
    cut(dataset).delete(0).render_in_place()
    assert not (dataset / ".demoreel").exists()

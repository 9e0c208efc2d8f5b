"""Appending to Lance: both tables and the metadata grow together, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import (
    ArgumentError,
    DatasetBusyError,
    FrameMismatchError,
    MetadataError,
    TableError,
)
from demoreel.layouts.appending import create_appender, open_appender
from demoreel.layouts.lance import append
from demoreel.layouts.lance.schemas import PACKETS_COLUMN
from demoreel.layouts.v3 import compact
from demoreel.layouts.writing import EpisodeDraft
from demoreel.media.encode import VideoEncoder, VideoSettings
from demoreel.model import Feature, Info
from demoreel.storage.commit.writer_lock import is_held
from demoreel.testing import LayoutTests, make_dataset
from demoreel.testing.stamp import read_stamp
from support.crash import (
    TASKS,
    append_for_ever,
    columns_of,
    crash_info,
    kill_again_and_again,
    length_of,
    make_draft,
)
from support.power_cut import watch

from .promises import (  # noqa: F401
    test_a_commit_that_cannot_be_put_in_place_is_undone,
    test_files_that_may_not_grow_lose_nothing,
)

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")
LAYOUTS = ("lance-video", "lance-native")
ROUNDS = 5


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture
def appender(tmp_path, layout):
    with create_appender(tmp_path / "dataset", crash_info(), layout=layout) as made:
        yield made


@pytest.fixture
def add(scratch):
    """A function that appends episodes to an appender, up to so many."""

    def add(appender, episodes):
        while appender.episodes < episodes:
            appender.append(make_draft(appender, appender.episodes, scratch))

    return add


def finish(appender):
    while appender.compact(finish=True):
        pass


def tables(root):
    """The table of rows and the table of videos, as Lance opens them: at the newest version."""
    native = (root / "frames.lance").is_dir()
    names = ("frames", "videos") if native else ("dataset", "dataset_videos")
    return [lance.dataset(str(root / f"{name}.lance")) for name in names]


def check_whole(root, *, images_from=0):
    """Return how many episodes there are; every file and both tables must agree on it."""
    if not is_held(root):
        demoreel.finish(root)
    dataset = demoreel.open(root)
    count = len(dataset.episodes)
    lengths = [length_of(episode) for episode in range(count)]
    info = json.loads((root / "meta" / "info.json").read_text())
    assert (info["total_episodes"], info["total_frames"]) == (count, sum(lengths))
    assert info["total_tasks"] == len(pq.read_table(root / "meta" / "tasks.parquet"))
    stats = json.loads((root / "meta" / "stats.json").read_text())
    assert stats["state"]["count"] == [sum(lengths)]
    frames, videos = tables(root)
    rows = frames.to_table()
    assert rows["index"].to_pylist() == list(range(sum(lengths)))
    assert rows["episode_index"].to_pylist() == np.repeat(range(count), lengths).tolist()
    assert rows["frame_index"].to_pylist() == [n for length in lengths for n in range(length)]
    noise = np.array(rows["noise"].to_pylist()).reshape(-1, 2)
    assert np.array_equal(noise, np.concatenate([columns_of(e)["noise"] for e in range(count)]))
    named = videos.to_table(columns=["video_key", "chunk_index", "file_index"]).to_pylist()
    assert len(named) == len({tuple(row.values()) for row in named})
    assert len(named) == len(dataset.cameras) * count
    for table in (frames, videos):
        table.validate()
    for episode in range(images_from, count):
        begin = sum(lengths[:episode])
        for frame in range(lengths[episode]):
            sample = dataset[begin + frame]
            assert sample["task"] == TASKS[episode % len(TASKS)]
            assert sample["state"][:2].tolist() == [episode, frame]
            for camera in dataset.cameras:
                assert read_stamp(sample[camera]) == (episode, frame)
    return count


def everything(root):
    """Every file but the writer's own, and when it was last changed."""
    return {
        path.relative_to(root).as_posix(): (path.stat().st_ino, path.stat().st_size)
        for top in root.iterdir()
        if top.name != ".demoreel"  # whose files come and go
        for path in (top, *top.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def state():
    return everything


@pytest.fixture
def whole():
    return check_whole


@pytest.fixture
def limit():
    return 1500


def test_a_new_dataset_has_no_episodes(appender, layout):
    with pytest.raises(MetadataError, match="no episodes yet"):
        demoreel.open(appender.root)
    assert (appender.episodes, appender.frames, dict(appender.tasks)) == (0, 0, {})
    appender.close()
    with open_appender(appender.root) as again:
        assert again.episodes == 0


def test_an_episode_is_readable_when_append_returns(appender, add, layout):
    for episodes in (1, 2, 3):
        add(appender, episodes)
        assert check_whole(appender.root) == episodes
        assert [table.version for table in tables(appender.root)] == [episodes + 1] * 2
    dataset = demoreel.open(appender.root)
    assert dataset.layout == layout
    assert dataset.stats["state"]["count"] == [len(dataset)]


def test_videos_are_kept_byte_for_byte(appender, scratch):
    draft = make_draft(appender, 0, scratch)
    expected = {key: path.read_bytes() for key, path in draft.videos.items()}
    appender.append(draft)
    assert not any(scratch.iterdir())
    videos = tables(appender.root)[1]
    rows = videos.to_table(columns=["video_key", PACKETS_COLUMN])
    assert all(rows[PACKETS_COLUMN].to_pylist())
    blobs = videos.take_blobs("video_bytes", indices=[0, 1])
    found = {key: b.read() for key, b in zip(rows["video_key"].to_pylist(), blobs, strict=True)}
    assert found == expected


def test_large_videos_are_not_copied(tmp_path, layout, scratch):
    camera = "observation.images.cam0"
    feature = Feature(camera, "video", (512, 512, 3), ["height", "width", "channels"])
    info = Info.new(version="v3.0", fps=30, features={camera: feature})
    settings = VideoSettings(codec="h264", preset="ultrafast", crf=0, pix_fmt="yuv444p")
    path = scratch / "large.mp4"
    noise = np.random.default_rng(0).integers(0, 256, (512, 512, 3), np.uint8)
    with VideoEncoder(path, fps=30, width=512, height=512, settings=settings) as video:
        for _ in range(8):
            video.add(noise := np.roll(noise, 7, axis=1)[::-1].copy())
    assert path.stat().st_size > 4 << 20
    inode = path.stat().st_ino
    with create_appender(tmp_path / "dataset", info, layout=layout) as appender:
        appender.append(EpisodeDraft({}, ["do it"] * 8, {camera: path}))
    assert inode in {blob.stat().st_ino for blob in tmp_path.rglob("*.blob")}
    assert len(demoreel.open(tmp_path / "dataset")) == 8
    assert demoreel.open(tmp_path / "dataset")[7][camera].shape == (3, 512, 512)


def test_a_refused_episode_changes_nothing(appender, scratch, add):
    add(appender, 1)
    before = everything(appender.root)
    draft = make_draft(appender, 1, scratch)
    longer = make_draft(appender, 4, scratch)
    for wrong, error in (
        (replace(draft, columns={"state": draft.columns["state"]}), ArgumentError),
        (replace(draft, videos=longer.videos), FrameMismatchError),
    ):
        for attempt in (appender.check, appender.append):
            with pytest.raises(error):
                attempt(wrong)
    assert everything(appender.root) == before
    assert appender.append(draft) == 1
    assert check_whole(appender.root) == 2


def test_one_appender_at_a_time(appender, add):
    add(appender, 1)
    with pytest.raises(DatasetBusyError, match=f"process {os.getpid()}"):
        open_appender(appender.root)
    appender.close()
    appender.close()
    with open_appender(appender.root) as other:
        add(other, 2)
    assert check_whole(appender.root) == 2
    assert not (appender.root / ".demoreel").exists()


def test_another_program_that_writes_the_table_is_noticed(appender, add, scratch):
    add(appender, 2)
    frames = tables(appender.root)[0]
    frames.update_metadata({"note": "by hand"})
    draft = make_draft(appender, 2, scratch)
    with pytest.raises(TableError, match="Another program"):
        appender.append(draft)
    appender.close()
    with open_appender(appender.root) as other:
        assert other.append(draft) == 2
    assert check_whole(appender.root) == 3
    assert tables(appender.root)[0].metadata["note"] == "by hand"


def test_what_cannot_be_appended_to(tmp_path, copy_of):
    with pytest.raises(ArgumentError, match="lance-frames"):
        open_appender(copy_of("kitchen_lance_frames"))
    with pytest.raises(ArgumentError, match="lance-frames"):
        create_appender(tmp_path / "new", crash_info(), layout="lance-frames")
    features = {name: Feature(name, "float32", (2,)) for name in ("a.b", "a_b")}
    twice = Info.new(version="v3.0", fps=30, features=features)
    with pytest.raises(ArgumentError, match="share the Lance column"):
        create_appender(tmp_path / "new", twice, layout="lance-native")
    assert not (tmp_path / "new").exists()


# Merging


@pytest.mark.soak
def test_fragments_are_merged_while_episodes_come(appender, add, layout):
    root = appender.root
    for episodes in range(1, 27):
        add(appender, episodes)
        if episodes == 3:
            tables(root)[0].tags.create("early", tables(root)[0].version)
        while appender.compact():
            pass
    assert check_whole(root) == 26
    assert len(tables(root)[0].get_fragments()) == 3 + 2
    finish(appender)
    appender.close()
    assert check_whole(root) == 26
    frames, videos = tables(root)
    assert len(frames.get_fragments()) == 1
    assert [version["version"] for version in videos.versions()] == [videos.version]
    kept = [version["version"] for version in frames.versions()]
    assert kept == [frames.tags.list()["early"]["version"], frames.version]
    assert frames.checkout_version("early").count_rows() == sum(map(length_of, range(3)))
    assert {i.field_names[0] for i in frames.describe_indices()} == {"episode_index", "task_index"}
    assert frames.count_rows("episode_index = 25") == length_of(25)
    # The files are those of the two versions, and no others.
    named = {f.path for v in kept for part in frames.checkout_version(v).get_fragments()
             for f in part.metadata.files}  # fmt: skip
    assert {path.name for path in Path(frames.uri, "data").iterdir()} == named
    assert not (root / ".demoreel").exists()


def test_versions_from_before_stay(appender, add):
    root = appender.root
    add(appender, 2)
    finish(appender)
    appender.close()
    before = [[v["version"] for v in table.versions()] for table in tables(root)]
    for episodes in (4, 6):
        with open_appender(root) as later:
            add(later, episodes)
            finish(later)
    assert check_whole(root) == 6
    for old, table in zip(before, tables(root), strict=True):
        found = [version["version"] for version in table.versions()]
        assert found[: len(old)] == old
        assert len(found) == len(old) + 2
    frames = tables(root)[0]
    assert len(frames.get_fragments()) == 3  # one of each session, all of them indexed
    assert frames.count_rows("episode_index = 5") == length_of(5)
    dataset = demoreel.open(root, version=before[0][-1])
    assert int(dataset[0]["episode_index"]) == 0


@pytest.mark.soak
def test_merging_goes_on_beside_appending(appender, add):
    stop = threading.Event()
    failed = []

    def merge():
        try:
            while not stop.is_set():
                appender.compact()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=merge)
    thread.start()
    add(appender, 18)
    stop.set()
    thread.join()
    assert not failed
    assert check_whole(appender.root) == 18


def test_readers_keep_the_state_that_they_opened(appender, add):
    add(appender, 2)
    early = demoreel.open(appender.root)
    add(appender, 9)
    assert len(early) == sum(map(length_of, range(2)))
    assert read_stamp(early[-1][early.cameras[0]]) == (1, length_of(1) - 1)
    assert early.reader.tables["frames"].count_rows() == len(early)
    late = demoreel.open(appender.root)
    finish(appender)
    appender.close()  # the version that it would have read is gone
    assert read_stamp(late[-1][late.cameras[0]]) == (8, length_of(8) - 1)


def test_old_versions_stay_while_a_commit_is_not_settled(appender, add, monkeypatch):
    """The record of such a commit names files of versions that are old by now."""
    monkeypatch.setattr(compact, "_STALE_S", 0.0)
    monkeypatch.setattr(append, "is_pending", lambda root: True)
    add(appender, 3)
    finish(appender)
    (there, _) = tables(appender.root)
    kept = len(there.versions())
    monkeypatch.undo()
    appender.close()
    assert kept > len(there.versions()) == 1


def test_another_process_reads_between_two_episodes(appender, add):
    code = (
        "import sys, demoreel; d = demoreel.open(sys.argv[1]); "
        "print(len(d.episodes), int(d[-1]['episode_index']), d[-1][d.cameras[1]].shape)"
    )
    add(appender, 1)
    done = subprocess.run(
        [sys.executable, "-c", code, appender.root], capture_output=True, text=True, check=True
    )
    assert done.stdout.split(maxsplit=2)[:2] == ["1", "0"]
    add(appender, 3)
    assert len(demoreel.open(appender.root).episodes) == 3


def test_the_copy_of_the_metadata_is_that_of_the_end(tmp_path, add):
    root = tmp_path / "dataset"
    for episodes in (2, 3):
        if episodes == 2:
            appender = create_appender(root, crash_info(), layout="lance-native")
        else:
            appender = open_appender(root)
        add(appender, episodes)
        appender.close()
        copied = lance.dataset(str(root / "meta.lance")).to_table().to_pylist()
        found = {row["path"]: row["data"] for row in copied}
        there = (path for path in (root / "meta").rglob("*") if path.is_file())
        assert found == {str(p.relative_to(root / "meta")): p.read_bytes() for p in there}


# Datasets that others wrote


def draft_of(dataset, episode, scratch):
    """An episode that a dataset has, as a draft; its images are encoded again."""
    begin, length = int(dataset.episodes.start[episode]), 7
    rows = dataset.batch(list(range(begin, begin + length)))
    (camera,) = dataset.cameras
    path = scratch / f"{episode}.mp4"
    settings = VideoSettings(codec="h264", preset="ultrafast")
    with VideoEncoder(path, fps=dataset.fps, width=640, height=480, settings=settings) as video:
        for image in np.asarray(rows[camera]):
            video.add(np.ascontiguousarray(image.transpose(1, 2, 0)))
    columns = {key: np.asarray(rows[key]) for key in ("observation.state", "action")}
    return EpisodeDraft(columns, [str(task) for task in rows["task"]], {camera: path})


@pytest.mark.parametrize("name", ["g1_lance_video", "g1_lance_native"])
def test_a_dataset_of_lerobot_lancedb_goes_on(copy_of, scratch, name):
    root = copy_of(name)
    names = ("g1.lance", "g1_videos.lance") if name.endswith("video") else (
        "frames.lance", "videos.lance"
    )  # fmt: skip
    before = [lance.dataset(str(root / one)) for one in names]
    schemas = [table.schema for table in before]
    old = demoreel.open(root)
    kept = old.batch(list(range(0, 1013, 97)))
    with open_appender(root) as appender:
        for source in (1, 3):
            appender.append(draft_of(old, source, scratch))
        finish(appender)
    new = demoreel.open(root)
    assert [len(new), len(new.episodes)] == [1013 + 14, 6]
    again = new.batch(list(range(0, 1013, 97)))
    for key in kept:
        assert np.array_equal(kept[key], again[key]), key
    for source, begin in ((1, 1013), (3, 1020)):
        for frame in range(7):
            one, other = old[int(old.episodes.start[source]) + frame], new[begin + frame]
            for key in ("observation.state", "action", "timestamp", "frame_index", "task"):
                assert np.array_equal(one[key], other[key]), key
            assert (int(other["index"]), int(other["episode_index"])) == (
                begin + frame,
                4 + (source == 3),
            )
            camera = new.cameras[0]
            difference = one[camera].astype(int) - other[camera]
            assert np.abs(difference).mean() < 8
    after = [lance.dataset(str(root / one)) for one in names]
    for table, schema, older in zip(after, schemas, before, strict=True):
        assert table.schema == schema
        assert older.version in [version["version"] for version in table.versions()]
        assert {i.name for i in table.describe_indices()} == {
            i.name for i in older.describe_indices()
        }
    assert after[0].count_rows("episode_index = 5") == 7


@pytest.mark.parametrize("damage", ["column", "type", "missing", "rows"])
def test_tables_that_are_not_as_declared_are_refused(copy_of, damage):
    root = copy_of("g1_lance_video")
    path = str(root / "g1.lance")
    table = lance.dataset(path)
    if damage == "column":
        table.add_columns({"reward": "1.0"})
        words = "does not declare 'reward'"
    if damage == "type":
        table.alter_columns({"path": "timestamp", "name": "timestamp"})
        info = json.loads((root / "meta/info.json").read_text())
        info["features"]["action"]["dtype"] = "float64"
        (root / "meta/info.json").write_text(json.dumps(info))
        words = r"'action' is .*float.* there, float64 of shape \(26,\)"
    if damage == "missing":
        table.drop_columns(["action"])
        words = "lacks 'action'"
    if damage == "rows":
        table.delete("index = 1012")
        words = "1012 rows, and its episodes 1013"
    before = everything(root)
    with pytest.raises(MetadataError, match=words):
        open_appender(root)
    assert everything(root) == before


def test_narrow_columns_take_what_fits(tmp_path, scratch):
    """Older tools store every number as float32; integers in it go on as long as they are exact."""
    features = {"count": Feature("count", "int64", (1,)), "on": Feature("on", "bool", (2,))}
    info = Info.new(version="v3.0", fps=10, features=features)
    root = tmp_path / "dataset"
    columns = {"count": np.array([1, 2]), "on": np.array([[True, False]] * 2)}
    with create_appender(root, info, layout="lance-video") as appender:
        appender.append(EpisodeDraft(columns, ["do it"] * 2))
    wide = lance.dataset(str(root / "dataset.lance")).to_table()
    narrow = wide.set_column(
        wide.schema.get_field_index("count"),
        "count",
        pc.list_flatten(wide["count"]).cast(pa.float32()),
    )
    flags = pa.FixedSizeListArray.from_arrays(pa.array([1, 0, 1, 0], pa.float32()), 2)
    narrow = narrow.set_column(narrow.schema.get_field_index("on"), "on", flags)
    shutil.rmtree(root / "dataset.lance")
    lance.write_dataset(narrow, str(root / "dataset.lance"), data_storage_version="2.2")
    with open_appender(root) as appender:
        appender.append(EpisodeDraft(columns, ["do it"] * 2))
        with pytest.raises(ArgumentError, match="'count' is stored as float32"):
            appender.append(EpisodeDraft({**columns, "count": np.array([1, 2**25 + 1])}, ["x"] * 2))
    dataset = demoreel.open(root)
    assert [int(dataset[n]["count"]) for n in range(4)] == [1, 2, 1, 2]
    assert dataset[3]["on"].tolist() == [True, False]


# What may go wrong


@pytest.mark.soak
def test_whatever_was_reported_is_there_after_a_kill(tmp_path, scratch, layout):
    root = tmp_path / "dataset"
    create_appender(root, crash_info(), layout=layout).close()
    there = kill_again_and_again(
        append_for_ever, root, scratch, rounds=ROUNDS, seed=7, check=check_whole
    )
    assert there >= ROUNDS / 2
    with open_appender(root) as appender:
        appender.append(make_draft(appender, appender.episodes, scratch))
        finish(appender)
    assert check_whole(root) == there + 1
    assert not (root / ".demoreel").exists()
    frames, videos = tables(root)
    for table in (frames, videos):
        assert [version["version"] for version in table.versions()] == [table.version]
        named = {f.path for part in table.get_fragments() for f in part.metadata.files}
        data = {path.name for path in Path(table.uri, "data").iterdir() if path.is_file()}
        assert data == named
    assert len(videos.get_fragments()) == there + 1


@pytest.mark.soak
@pytest.mark.parametrize(("work", "layout"), [("append", "lance-native"), ("merge", "lance-video")])
def test_every_state_that_a_power_cut_may_leave_is_whole(tmp_path, add, scratch, work, layout):
    appender = create_appender(tmp_path / "dataset", crash_info(cameras=1), layout=layout)
    add(appender, 2)
    draft = make_draft(appender, 2, scratch)
    with watch(appender.root) as cuts:
        if work == "append":
            appender.append(draft)
        else:
            finish(appender)
            appender.close()
        last = cuts.last
    appender.close()
    expected = {2, 3} if work == "append" else {2}
    found = set()
    for number, state in enumerate(distinct(cuts.states)):
        folder = cuts.build(state, tmp_path / str(number) / "dataset")
        found.add(check_whole(folder, images_from=2))
        shutil.rmtree(folder.parent)
    assert found == expected
    folder = cuts.build(last, tmp_path / "last" / "dataset")
    with open_appender(folder) as after:
        add(after, max(expected) + 1)
    assert check_whole(folder) == max(expected) + 1


def distinct(states):
    """States that differ in more than what is being written aside for a commit yet to come."""
    seen = []
    for state in states:
        pending = ".demoreel/journal.json" in state
        told = {name: c for name, c in state.items() if pending or ".demoreel" not in name}
        if told not in seen:
            seen.append(told)
            yield state


# What is appended reads like any other dataset


@pytest.mark.soak
class TestAppended(LayoutTests):
    layout = "lance-native"

    @classmethod
    def make(cls, path: Path, **options: Any) -> Path:
        source = make_dataset(path.with_name(f"{path.name}_v21"), layout="v2.1", **options)
        dataset = demoreel.open(source)
        info = Info.new(version="v3.0", fps=dataset.fps, features=dataset.info.features)
        kept = [key for key, f in info.features.items() if not f.is_camera and key not in _MADE]
        with create_appender(path, info, layout=cls.layout) as appender:
            for position, episode in enumerate(dataset.episodes):
                begin = int(dataset.episodes.start[position])
                rows = np.arange(begin, begin + episode.length)
                columns = dataset.reader.rows(rows, [*kept, "task_index"])
                tasks = [dataset.tasks[int(number)] for number in columns.pop("task_index")]
                videos = {}
                for key, name in episode.video_files.items():
                    videos[key] = path.with_name(f"{path.name}-{position}-{key}.mp4")
                    shutil.copy(source / name, videos[key])
                images = {key: dataset.reader.encoded(rows, key) for key in info.image_keys}
                draft = EpisodeDraft(columns, tasks, videos, images)
                appender.append(draft, total_stats=dataset.stats if options.get("with_stats", 1)
                                else None)  # fmt: skip
            while appender.compact(finish=True):
                pass
        return path


_MADE = ("frame_index", "episode_index", "index", "task_index")

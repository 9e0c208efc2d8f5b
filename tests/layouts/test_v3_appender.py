"""Appending to v3.0: what is committed is there, for everyone, and stays."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import (
    ArgumentError,
    DatasetBusyError,
    DatasetNotFoundError,
    DiskError,
    DiskFullError,
    FrameMismatchError,
    MetadataError,
    TargetExistsError,
    UnfinishedError,
    UnknownKeyError,
    VideoError,
)
from demoreel.layouts.appending import create_appender, open_appender
from demoreel.layouts.v3 import compact
from demoreel.layouts.v3.compact import next_group
from demoreel.layouts.v3.files import FilePlace, FileRun
from demoreel.layouts.writing import EpisodeDraft
from demoreel.media.encode import LOSSLESS_DEPTH, VideoEncoder, VideoSettings
from demoreel.model import combine_stats
from demoreel.testing import make_dataset
from demoreel.testing.stamp import read_stamp
from support.crash import (
    check_whole,
    columns_of,
    crash_info,
    length_of,
    make_draft,
)
from support.defects.tools import add_audio
from support.power_cut import watch

from .promises import (  # noqa: F401
    test_a_commit_that_cannot_be_put_in_place_is_undone,
    test_files_that_may_not_grow_lose_nothing,
)


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def appender(tmp_path):
    with create_appender(tmp_path / "dataset", crash_info()) as made:
        yield made


@pytest.fixture
def add(scratch):
    """A function that appends episodes to an appender, up to so many."""

    def add(appender, episodes):
        while appender.episodes < episodes:
            appender.append(make_draft(appender, appender.episodes, scratch))

    return add


def contents(root):
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for top in root.iterdir()
        if top.name != ".demoreel"  # whose files come and go
        for path in (top, *top.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def state():
    return contents


@pytest.fixture
def whole():
    return check_whole


@pytest.fixture
def limit():
    return 2000


def finish(appender):
    while appender.compact(finish=True):
        pass


def test_a_new_dataset_has_no_episodes(appender):
    with pytest.raises(MetadataError, match="no episodes yet"):
        demoreel.open(appender.root)
    assert contents(appender.root).keys() == {"meta/info.json"}
    assert (appender.episodes, appender.frames, dict(appender.tasks)) == (0, 0, {})
    assert appender.stats is None


def test_an_episode_is_readable_when_append_returns(appender, add):
    for episodes in (1, 2, 3):
        add(appender, episodes)
        assert check_whole(appender.root) == episodes
    assert appender.info.total_episodes == 3
    assert appender.frames == sum(map(length_of, range(3)))


def test_the_drafts_videos_are_taken_over(appender, scratch):
    draft = make_draft(appender, 0, scratch)
    inodes = {os.stat(path).st_ino for path in draft.videos.values()}
    appender.append(draft)
    assert not any(scratch.iterdir())
    assert {os.stat(path).st_ino for path in appender.root.rglob("*.mp4")} == inodes


def test_videos_may_come_when_all_else_is_written(appender, scratch):
    draft = make_draft(appender, 0, scratch)
    before = contents(appender.root)

    def not_yet():
        raise VideoError("The encoder has failed.")

    with pytest.raises(VideoError, match="failed"):
        appender.append(replace(draft, videos=not_yet))
    other = make_draft(appender, 1, scratch)
    assert length_of(1) != length_of(0)
    with pytest.raises(FrameMismatchError):
        appender.append(replace(draft, videos=lambda: other.videos))
    with pytest.raises(ArgumentError, match="lacks the video camera"):
        appender.append(replace(draft, videos=dict))
    assert contents(appender.root) == before
    assert appender.append(replace(draft, videos=lambda: draft.videos)) == 0
    assert check_whole(appender.root) == 1


def test_a_refused_episode_changes_nothing(appender, scratch, add):
    add(appender, 1)
    before = contents(appender.root)
    draft = make_draft(appender, 1, scratch)
    longer = make_draft(appender, 4, scratch)
    assert length_of(4) != length_of(1)
    for wrong, error in (
        (replace(draft, columns={"state": draft.columns["state"]}), ArgumentError),
        (
            replace(draft, columns={**draft.columns, "more": draft.columns["state"]}),
            UnknownKeyError,
        ),
        (replace(draft, tasks=[]), ArgumentError),
        (replace(draft, stats={"state": {"min": np.zeros(3)}}), ArgumentError),
        (replace(draft, videos=longer.videos), FrameMismatchError),
    ):
        for attempt in (appender.check, appender.append):
            with pytest.raises(error):
                attempt(wrong)
    assert contents(appender.root) == before
    appender.check(draft)
    assert appender.append(draft) == 1
    assert check_whole(appender.root) == 2


def test_tasks_are_numbered_as_they_come(appender, scratch):
    lengths = []
    for episode, tasks in enumerate((["a", "b", "b", "c"], ["b", "d"], ["a"])):
        number = next(n for n in range(100) if length_of(n) == len(tasks))
        draft = make_draft(appender, number, scratch)
        appender.append(replace(draft, tasks=tasks))
        lengths.append(len(tasks))
        dataset = demoreel.open(appender.root)
        begin = sum(lengths[:episode])
        assert [dataset[begin + n]["task"] for n in range(len(tasks))] == tasks
    assert appender.tasks == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert appender.info.total_tasks == 4


def test_statistics_of_the_whole(appender, scratch):
    parts = []
    for episode in range(5):
        draft = make_draft(appender, episode, scratch)
        parts.append(draft.stats)
        appender.append(draft)
    values = np.concatenate([columns_of(episode)["noise"] for episode in range(5)])
    found = demoreel.open(appender.root).stats["noise"]
    assert found["count"] == [len(values)]
    for name, expected in (
        ("min", values.min(axis=0)),
        ("max", values.max(axis=0)),
        ("mean", values.mean(axis=0)),
        ("std", values.std(axis=0)),
    ):
        assert np.allclose(found[name], expected, rtol=1e-12)
    together = combine_stats(parts, quantiles=True)
    for key, kinds in together.items():
        for name, value in kinds.items():
            assert np.allclose(appender.stats[key][name], value), (key, name)


def test_statistics_that_are_given_are_written(appender, scratch):
    draft = make_draft(appender, 0, scratch)
    total = {**draft.stats, "state": {**draft.stats["state"], "q50": np.full(3, 42.0)}}
    appender.append(draft, total_stats=total)
    assert demoreel.open(appender.root).stats["state"]["q50"].tolist() == [42.0] * 3
    appender.replace_stats(draft.stats)
    assert demoreel.open(appender.root).stats["state"]["q50"].tolist() != [42.0] * 3


def test_one_appender_at_a_time(appender, add):
    add(appender, 1)
    with pytest.raises(DatasetBusyError, match=f"process {os.getpid()}"):
        open_appender(appender.root)
    appender.close()
    appender.close()
    with pytest.raises(ArgumentError, match="closed"):
        appender.compact()
    with open_appender(appender.root) as other:
        add(other, 2)
    assert check_whole(appender.root) == 2
    assert not (appender.root / ".demoreel").exists()


def test_what_cannot_be_appended_to(tmp_path, copy_of):
    with pytest.raises(DatasetNotFoundError):
        open_appender(tmp_path / "nothing")
    with pytest.raises(ArgumentError, match="lance-frames"):
        open_appender(copy_of("kitchen_lance_frames"))
    with pytest.raises(ArgumentError, match=r"v2\.1"):
        open_appender(copy_of("g1_v21"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(TargetExistsError):
        create_appender(tmp_path / "full", crash_info())


@pytest.mark.parametrize("damage", ["gap", "orphan", "task"])
def test_a_dataset_that_nothing_can_follow_is_refused(tmp_path, damage):
    root = make_dataset(tmp_path / "dataset", episodes=2, length=3, cameras=0)
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    if damage == "gap":
        pq.write_table(pq.read_table(path).slice(1), path)
    if damage == "orphan":
        shutil.copy(
            root / "data/chunk-000/file-000.parquet", root / "data/chunk-000/file-001.parquet"
        )
    if damage == "task":
        tasks = pq.read_table(root / "meta/tasks.parquet").to_pydict()
        import pyarrow as pa

        pq.write_table(
            pa.table({"task_index": [4], "task": tasks["task"]}), root / "meta/tasks.parquet"
        )
    with pytest.raises(MetadataError, match="No episode can be appended"):
        open_appender(root)
    assert not (root / ".demoreel" / "journal.json").exists()


# Merging


def test_small_files_are_merged_while_episodes_come(appender, add):
    for episodes in range(1, 27):
        add(appender, episodes)
        while appender.compact():
            pass
    assert check_whole(appender.root) == 26
    assert len(list((appender.root / "data").rglob("*.parquet"))) == 3 + 2
    finish(appender)
    appender.close()
    assert check_whole(appender.root) == 26
    assert len(list(appender.root.rglob("*.mp4"))) == 2
    assert len(list(appender.root.rglob("*.parquet"))) == 4
    assert not (appender.root / ".demoreel").exists()


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


def test_another_process_reads_whole_states_meanwhile(appender, add):
    """Readers open again and again while episodes are appended and files merged."""
    add(appender, 1)
    found, failed = [], []
    stop = threading.Event()

    def read():
        try:
            while not stop.is_set():
                dataset = demoreel.open(appender.root)
                found.append(len(dataset.episodes))
                assert dataset.info.total_episodes == found[-1]
                assert dataset.info.total_frames == len(dataset)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for episodes in range(2, 20):
        add(appender, episodes)
        appender.compact()
    stop.set()
    thread.join()
    assert failed == []
    assert found == sorted(found)


def test_readers_from_before_a_merge_are_right(appender, add):
    add(appender, 12)
    early = demoreel.open(appender.root)
    assert early[0]["episode_index"] == 0  # its table is open, and its rows are known
    finish(appender)
    frames = [(e, f) for e in range(12) for f in range(length_of(e))]
    for close in (False, True):
        if close:
            appender.close()
            with open_appender(appender.root) as later:  # file numbers may be used again
                add(later, 20)
        for row, (episode, frame) in enumerate(frames):
            sample = early[row]
            assert sample["episode_index"] == episode
            assert sample["state"][0] == episode
            for camera in early.cameras:
                assert read_stamp(sample[camera]) == (episode, frame)
    assert early.episodes[11].tasks == ("wait",)


def test_sizes_and_chunks_are_kept_to(tmp_path, add):
    info = crash_info(
        cameras=1, chunks_size=3, data_files_size_in_mb=0.02, video_files_size_in_mb=0.01
    )
    with create_appender(tmp_path / "dataset", info) as appender:
        add(appender, 10)
        names = sorted(
            path.relative_to(appender.root).as_posix()
            for path in (appender.root / "data").rglob("*.parquet")
        )
        assert names[-1] == "data/chunk-003/file-000.parquet"
        assert check_whole(appender.root) == 10
        while appender.compact():  # comes to an end although no two tables fit into one
            pass
        finish(appender)
        assert check_whole(appender.root) == 10
    sizes = [path.stat().st_size for path in appender.root.rglob("*.mp4")]
    assert 1 < len(sizes) < 10
    assert max(sizes) <= 0.01 * 1024 * 1024


def test_videos_that_do_not_join_stay_apart(appender, scratch, add):
    add(appender, 2)
    draft = make_draft(appender, 2, scratch)
    camera = "observation.images.cam0"
    settings = VideoSettings(codec="mpeg4")
    with VideoEncoder(
        scratch / "other.mp4", fps=30, width=64, height=48, settings=settings
    ) as video:
        from support.crash import images_of

        for picture in images_of(2):
            video.add(picture)
    appender.append(replace(draft, videos={**draft.videos, camera: scratch / "other.mp4"}))
    add(appender, 5)
    finish(appender)
    assert check_whole(appender.root) == 5
    appender.close()
    assert len(list((appender.root / "videos" / camera).rglob("*.mp4"))) == 3
    assert len(list((appender.root / "videos/observation.images.cam1").rglob("*.mp4"))) == 1


def test_videos_with_audio_stay_apart(appender, add):
    """Another tool has put audio beside frames: merging would drop it, so they are left alone."""
    add(appender, 3)
    name = sorted(appender.root.rglob("*.mp4"))[1]
    add_audio(name)
    heard = name.read_bytes()
    appender.close()
    with open_appender(appender.root) as other:
        add(other, 12)
        finish(other)
    assert check_whole(appender.root) == 12
    assert name.read_bytes() == heard


def test_files_of_an_earlier_session_are_merged_with_later_ones(appender, add):
    add(appender, 3)
    appender.close()
    for episodes in (4, 5):
        with open_appender(appender.root) as later:
            add(later, episodes)
            finish(later)
    assert check_whole(appender.root) == 5
    assert len(list(appender.root.rglob("*.mp4"))) == 2
    assert len(list(appender.root.rglob("*.parquet"))) == 4


def test_the_work_of_merging_stays_bounded():
    """5,000 episodes of a megabyte: each byte is copied a few times, and few files are left."""
    runs, copied = [], 0
    for episode in range(5000):
        runs.append(FileRun(episode, episode + 1, FilePlace(0, episode), 1 << 20))
        while (group := next_group(runs, 200 << 20, finish=False)) is not None:
            merged = runs[group]
            size = sum(run.size for run in merged)
            copied += size
            runs[group] = [FileRun(merged[0].first, merged[-1].stop, FilePlace(0, 0), size)]
    assert copied <= 4 * 5000 << 20
    assert len(runs) < 80
    assert max(run.size for run in runs) <= 200 << 20


@pytest.mark.parametrize("episodes", [6, 20])
def test_the_finish_takes_as_many_commits_for_few_episodes_as_for_many(appender, add, episodes):
    add(appender, episodes)
    commits = 0
    while True:
        with watch(appender.root) as cuts:
            more = appender.compact(finish=True)
            appender._wait_until_settled()
        commits += sum("journal.json" in e and e.startswith("rename") for e in cuts.events)
        if not more:
            break
    assert commits <= 3
    assert check_whole(appender.root) == episodes
    assert len(list((appender.root / "data").rglob("*.parquet"))) == 1


def test_at_the_finish_only_so_much_is_copied_at_once(appender, add, monkeypatch):
    add(appender, 6)
    monkeypatch.setattr(compact, "_MOST_BYTES", 1)
    steps = 0
    while appender.compact(finish=True):
        steps += 1
        assert check_whole(appender.root) == 6
    assert steps >= 3  # tables, and each camera
    assert len(list((appender.root / "data").rglob("*.parquet"))) == 1


def test_episode_14_takes_the_same_steps_as_episode_3(appender, scratch, add):
    add(appender, 3)
    counts = []
    for episode in (3, 14):
        add(appender, episode)
        draft = make_draft(appender, episode, scratch)
        appender._wait_until_settled()
        with watch(appender.root) as cuts:
            appender.append(draft)
            appender._wait_until_settled()
        counts.append(len(cuts.events))
    assert counts[0] == counts[1]


# Datasets that others wrote


def draft_like(dataset, episode, scratch):
    """An episode that a dataset has already, as a draft: its rows, its images encoded again."""
    info = dataset.info
    begin = sum(dataset.episodes.length[:episode])
    length = int(dataset.episodes.length[episode])
    samples = [dataset[begin + n] for n in range(length)]
    columns, videos, images = {}, {}, {}
    made = {"timestamp", "frame_index", "episode_index", "index", "task_index"}
    for key, feature in info.features.items():
        if feature.is_video:
            depth = feature.is_depth
            path = scratch / f"{key}-{episode}.mp4"
            settings = LOSSLESS_DEPTH if depth else VideoSettings(codec="h264", preset="ultrafast")
            height, width = feature.shape[:2]
            with VideoEncoder(
                path, fps=info.fps, width=width, height=height, settings=settings
            ) as video:
                for sample in samples:
                    picture = np.asarray(sample[key])
                    if depth:
                        video.add(
                            np.clip(picture.reshape(height, width), 0, 4095).astype(np.uint16)
                        )
                    else:
                        video.add(np.ascontiguousarray(picture.transpose(1, 2, 0)))
            videos[key] = path
        elif feature.is_image:
            images[key] = [pictures(sample[key]) for sample in samples]
        elif key not in made:
            values = [sample[key] for sample in samples]
            columns[key] = values if feature.is_string else np.stack(values)
    stats = {
        key: {"min": v.min(axis=0), "max": v.max(axis=0), "mean": v.mean(axis=0),
              "std": v.std(axis=0), "count": np.array([len(v)])}
        for key, v in ((k, np.atleast_2d(np.asarray(v).T).T) for k, v in columns.items()
                       if info.features[k].is_numeric and np.asarray(v).dtype.kind == "f")
        if v.ndim == 2
    }  # fmt: skip
    return EpisodeDraft(columns, [s["task"] for s in samples], videos, images, stats)


def pictures(array):
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(np.asarray(array).transpose(1, 2, 0))).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["kitchen_v30", "kitchen_images_v30"])
def test_a_dataset_of_lerobot_goes_on(copy_of, scratch, name):
    root = copy_of(name)
    before, old = contents(root), demoreel.open(root)
    episodes, frames = len(old.episodes), len(old)
    rows = old.batch(list(range(0, frames, 10)))
    names = pq.read_schema(root / "meta/episodes/chunk-000/file-000.parquet")
    with open_appender(root) as appender:
        for source in (2, 4):
            appender.append(draft_like(old, source, scratch))
        finish(appender)
    after = contents(root)
    untouched = {name for name in before if name.startswith(("data/", "videos/", "meta/episodes/"))}
    assert all(after[name] == before[name] for name in untouched)
    new = demoreel.open(root)
    assert len(new.episodes) == episodes + 2
    again = new.batch(list(range(0, frames, 10)))
    for key in rows:
        assert np.array_equal(rows[key], again[key]), key
    for source, episode in ((2, episodes), (4, episodes + 1)):
        begin = int(old.episodes.start[source])
        for frame in range(int(old.episodes.length[source])):
            one, other = old[begin + frame], new[int(new.episodes.start[episode]) + frame]
            assert other["index"] == int(new.episodes.start[episode]) + frame
            for key in ("observation.state", "action", "note", "observation.tactile", "task"):
                assert np.array_equal(one[key], other[key]), key
    fresh = pq.read_table(root / "meta/episodes/chunk-000/file-001.parquet")
    assert fresh.schema.names == names.names
    assert fresh.schema.types == names.types
    info = json.loads((root / "meta/info.json").read_text())
    assert info["splits"] == {"train": f"0:{episodes + 2}"}
    assert demoreel.open(root).stats["action"]["count"] == [len(new)]


def test_other_columns_and_splits_stay(tmp_path):
    root = make_dataset(tmp_path / "dataset", episodes=2, length=3, cameras=0, with_stats=False)
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("success", [[True, False]]), path)
    info = json.loads((root / "meta/info.json").read_text())
    info |= {"splits": {"train": "0:1", "test": "1:2"}, "made_by": "hand"}
    (root / "meta/info.json").write_text(json.dumps(info))
    old = demoreel.open(root)
    columns = {
        key: np.stack([old[n][key] for n in range(3)]) for key in ("observation.state", "action")
    }
    with open_appender(root) as appender:
        assert appender.append(EpisodeDraft(columns, ["do it"] * 3)) == 2
        finish(appender)
    new = pq.read_table(root / "meta/episodes/chunk-000/file-001.parquet").to_pylist()
    assert [row["success"] for row in new] == [None]
    info = json.loads((root / "meta/info.json").read_text())
    assert info["splits"] == {"train": "0:1", "test": "1:2"}
    assert info["made_by"] == "hand"
    assert not (root / "meta/stats.json").exists()  # of the episodes before nothing is known
    assert len(demoreel.open(root)) == 9


# What may go wrong


@pytest.fixture
def small_disk(mounted):
    return mounted("4m")


def fill(path, *, leave):
    with open(path, "wb", buffering=0) as file:
        free = shutil.disk_usage(path.parent).free
        file.write(bytes(max(0, free - leave)))


@pytest.mark.parametrize("leave", [0, 8192, 28672])
def test_a_full_disk_loses_nothing(small_disk, scratch, add, leave):
    root = small_disk / "dataset"
    inside = small_disk / "scratch"
    inside.mkdir()
    with create_appender(root, crash_info()) as appender:
        add(appender, 2)
        draft = make_draft(appender, 2, inside)
        before = contents(root)
        fill(small_disk / "filler", leave=leave)
        try:
            appender.append(draft)
        except DiskFullError:
            assert contents(root) == before
            assert check_whole(root) == 2
            assert all(path.exists() for path in draft.videos.values())
            (small_disk / "filler").unlink()
            assert appender.append(draft) == 2
        else:
            assert leave  # the little that was left was enough
            (small_disk / "filler").unlink()
        assert check_whole(root) == 3
        fill(small_disk / "filler", leave=leave)
        try:
            finish(appender)
        except DiskFullError:
            assert check_whole(root) == 3
        (small_disk / "filler").unlink()
        finish(appender)
        assert check_whole(root) == 3


def test_an_interrupted_commit_is_undone_before_the_next(appender, scratch, add):
    add(appender, 1)
    draft = make_draft(appender, 1, scratch)
    hindrance = appender.root / "meta/info.json"
    text = hindrance.read_bytes()
    hindrance.unlink()
    hindrance.mkdir()  # the last step fails, when statistics are already replaced
    with pytest.raises(DiskError, match="directory"):
        appender.append(draft)
    hindrance.rmdir()
    hindrance.write_bytes(text)
    assert appender.append(draft) == 1
    appender.close()
    assert check_whole(appender.root) == 2


def test_a_disk_that_became_read_only(small_disk, add, scratch):
    root = small_disk / "dataset"
    with create_appender(root, crash_info()) as appender:
        add(appender, 2)
        draft = make_draft(appender, 2, scratch)
        appender._wait_until_settled()
        with watch(root) as cuts:
            appender.append(draft)
            appender._wait_until_settled()
    pending = [s for s in cuts.states if ".demoreel/journal.json" in s]
    states = {"first": pending[0], "last": pending[-1]}
    for name, state in states.items():
        cuts.build(state, small_disk / name)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert check_whole(root) == 3
    with pytest.raises(UnfinishedError, match="demoreel finish"):
        demoreel.open(small_disk / "first")
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert check_whole(small_disk / "first") == 3
    assert check_whole(small_disk / "last") == 3


@pytest.mark.parametrize("work", ["append", "append late videos", "merge"])
@pytest.mark.soak
def test_every_state_that_a_power_cut_may_leave_is_whole(tmp_path, add, scratch, work):
    appender = create_appender(tmp_path / "dataset", crash_info(cameras=1))
    add(appender, 3)
    draft = make_draft(appender, 3, scratch)
    appender._wait_until_settled()
    with watch(appender.root) as cuts:
        if work != "merge":
            late = work == "append late videos"
            appender.append(replace(draft, videos=lambda: draft.videos) if late else draft)
            returned = cuts.last
            appender._wait_until_settled()
        else:
            finish(appender)
            appender.close()
            returned = cuts.last
        last = cuts.last
    appender.close()
    expected = {3} if work == "merge" else {3, 4}
    found = set()
    for number, state in enumerate(cuts.states):
        folder = cuts.build(state, tmp_path / "cuts" / str(number))
        found.add(check_whole(folder, images_from=2))
        shutil.rmtree(folder)
    assert found == expected
    folder = cuts.build(returned, tmp_path / "cuts" / "returned")
    assert check_whole(folder) == max(expected)
    folder = cuts.build(last, tmp_path / "cuts" / "last")
    assert check_whole(folder) == max(expected)
    with open_appender(folder) as after:
        add(after, max(expected) + 1)
    assert check_whole(folder) == max(expected) + 1

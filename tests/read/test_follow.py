"""An open dataset stays what it was while others write: right, or an error that says so."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import shutil
import threading
from contextlib import ExitStack

import numpy as np
import pytest

import demoreel
from demoreel.errors import DatasetBusyError, DatasetChangedError, DemoreelError, VideoError
from demoreel.layouts import rows as row_columns
from demoreel.layouts.appending import create_appender
from demoreel.layouts.detect import open_reader
from demoreel.layouts.v3 import compact
from demoreel.media.decode import GopSpan
from demoreel.read import dataset as dataset_module
from demoreel.read.speed import load
from demoreel.testing import make_dataset
from demoreel.testing.stamp import read_stamp, stamp
from support.crash import crash_info, length_of, make_draft

LAYOUTS = ("v3.0", "lance-video", "lance-native")
LATE = 60


def assert_right(dataset, episodes):
    """The dataset has just these first episodes, and every frame is the one it should be."""
    frames = [(e, f) for e in range(episodes) for f in range(length_of(e))]
    assert len(dataset.episodes) == episodes
    assert len(dataset) == len(frames)
    batch = dataset.batch(range(len(dataset)))
    for camera in dataset.cameras:
        assert [tuple(read_stamp(image)) for image in batch[camera]] == frames
    assert [tuple(row) for row in batch["state"][:, :2].astype(int).tolist()] == frames
    assert batch["task"] == [dataset.episodes[e].tasks[0] for e, _ in frames]


def read_when_told(datasets, told, answers):
    """In another process: read datasets that were opened, or sent, before a recording went on."""
    answers.put("ready")
    told.wait(LATE)
    try:
        for episodes, dataset in datasets:
            assert_right(dataset, episodes)
        answers.put("right")
    except BaseException as error:
        answers.put(f"{type(error).__name__}: {error}")


class Watchers:
    """Processes that were started before a recording went on, and read when it is over."""

    def __init__(self):
        self._waiting = []

    def start(self, method, datasets):
        context = multiprocessing.get_context(method)
        told, answers = context.Event(), context.Queue()
        process = context.Process(target=read_when_told, args=(datasets, told, answers))
        process.start()
        assert answers.get(timeout=LATE) == "ready"
        self._waiting.append((method, process, told, answers))

    def assert_right(self):
        for _, _, told, _ in self._waiting:
            told.set()
        found = [(method, answers.get(timeout=LATE)) for method, _, _, answers in self._waiting]
        for _, process, _, _ in self._waiting:
            process.join(LATE)
        assert all(answer == "right" for _, answer in found), found


@pytest.fixture
def recording(tmp_path):
    """A function that makes an appender, and one that appends to it."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with ExitStack() as stack:

        def begin(layout="v3.0"):
            root = tmp_path / layout
            appender = stack.enter_context(create_appender(root, crash_info(), layout=layout))

            def add(episodes, merge=True):
                while appender.episodes < episodes:
                    appender.append(make_draft(appender, appender.episodes, scratch))
                while merge and appender.compact():
                    pass

            def finish():
                while appender.compact(finish=True):
                    pass
                appender.close()

            return root, add, finish

        yield begin


def test_readers_follow_a_recording_in_every_process(recording, monkeypatch):
    monkeypatch.setattr(compact, "_STALE_S", 0.0)  # what was merged goes at the next step
    recordings = [recording(layout) for layout in LAYOUTS]
    readers, watchers = [], Watchers()
    for episodes in (2, 9):
        for root, add, _ in recordings:
            add(episodes)
            readers += [(episodes, demoreel.open(root))]
            if episodes == 9:
                assert readers[-1][1][-1]["episode_index"] == 8  # its files are open
    watchers.start("fork", readers)
    watchers.start("spawn", readers)
    sent = pickle.dumps(readers)
    for _, add, finish in recordings:
        add(11)
        finish()
    for episodes, dataset in [*readers, *pickle.loads(sent)]:
        assert_right(dataset, episodes)
    watchers.assert_right()


@pytest.mark.soak
@pytest.mark.parametrize("layout", LAYOUTS)
def test_readers_read_all_the_while(tmp_path, monkeypatch, layout):
    """A recorder merges in its own thread; readers of all ages read meanwhile, and are right."""
    monkeypatch.setattr(compact, "_STALE_S", 0.0)
    root, camera, readers, watchers = tmp_path / "data", "observation.images.front", [], Watchers()
    features = {
        "state": {"dtype": "float32", "shape": (3,), "names": None},
        camera: {"dtype": "video", "shape": (48, 64, 3), "names": ["height", "width", "channels"]},
    }
    stop, failed, batches = threading.Event(), [], [0]

    def read():
        choose = random.Random(0)
        while not stop.is_set():
            if readers:
                episodes, dataset = choose.choice(readers)
                try:
                    assert_right(dataset, episodes)
                    batches[0] += 1
                except BaseException as error:
                    failed.append(error)
                    return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        with demoreel.create(
            root, fps=30, features=features, vcodec="h264", layout=layout
        ) as recorder:
            for episode in range(20):
                for frame in range(length_of(episode)):
                    image = np.full((48, 64, 3), 90, np.uint8)
                    stamp(image, episode, frame)
                    state = np.array([episode, frame, 0], np.float32)
                    recorder.add_frame({"state": state, camera: image, "task": "pick"})
                recorder.save_episode()
                if episode % 3 == 1:
                    readers.append((episode + 1, demoreel.open(root)))
                if episode == 7:
                    watchers.start("spawn", list(readers))
    finally:
        stop.set()
        thread.join()
    assert not failed, failed
    assert batches[0]
    for episodes, dataset in readers:
        assert_right(dataset, episodes)
    watchers.assert_right()


def test_an_episode_and_a_query_follow(recording):
    root, add, finish = recording()
    add(10)
    early = demoreel.open(root)
    episode = early.episode(9)
    frames = episode.frames(early.cameras[0])
    first = next(frames)
    known = early.episodes
    said = early.info, early.tasks, early.info.total_episodes, early.info.total_frames
    add(14)
    finish()
    assert [tuple(read_stamp(p)) for p in [first, *frames]] == [(9, f) for f in range(len(episode))]
    assert episode.column("state")[:, 0].tolist() == [9] * len(episode)
    assert early.sql("select count(*) as n from frames")["n"].to_pylist() == [len(early)]
    now = demoreel.open(root)
    assert known[9].tasks == now.episodes[9].tasks != ()
    for dataset in (early, pickle.loads(pickle.dumps(early))):
        assert dataset.info == said[0]
        assert dict(dataset.tasks) == dict(said[1])
        assert len(dataset.episodes) == dataset.info.total_episodes == said[2] < len(now.episodes)
        assert len(dataset) == dataset.info.total_frames == said[3]


def test_chosen_and_filtered_episodes_follow(recording):
    root, add, finish = recording()
    add(6)
    some = demoreel.open(root, episodes=[1, 4])
    last = demoreel.open(root, filter="episode_index >= 5")
    length = len(last)
    add(9)
    finish()
    assert {int(e) for e in some.batch(range(len(some)))["episode_index"]} == {1, 4}
    assert len(last) == length
    for copied in (last, pickle.loads(pickle.dumps(last))):
        assert {int(e) for e in copied.batch(range(length))["episode_index"]} == {5}


def test_tables_in_shared_memory_follow(recording, monkeypatch):
    monkeypatch.setattr(row_columns, "_MEMORY_BYTES", 0)
    root, add, finish = recording()
    add(4)
    early = demoreel.open(root)
    assert early[0]["episode_index"] == 0
    add(10)
    finish()
    assert_right(early, 4)


def other_dataset(path, **options):
    """A dataset with as many frames in as many files as any other, but other ones."""
    noise = {"noise": {"dtype": "float32", "shape": (2,)}}
    return make_dataset(path, **{"episodes": 3, "length": 4, "features": noise, **options})


def without_the_first(path):
    """What the dataset is when its first episode was deleted, and another was recorded."""
    made = other_dataset(path.with_name("four"), episodes=4)
    return demoreel.cut(made).keep([1, 2, 3]).render(path)


def put_in_place(new, root):
    os.rename(root, root.with_name("old"))
    os.rename(new, root)


def write_over(new, root):
    """As rsync has it: the folder stays, its files are replaced."""
    for path in sorted(new.rglob("*"), key=lambda path: "info.json" in path.name):
        if path.is_file():
            shutil.copyfile(path, root / path.relative_to(new))


@pytest.mark.parametrize("change", [put_in_place, write_over])
@pytest.mark.parametrize("layout", ["v3.0", "v2.1"])
def test_a_dataset_that_became_another_is_an_error(tmp_path, layout, change):
    root, new = tmp_path / "data", tmp_path / "new"
    other_dataset(root, layout=layout)
    if layout == "v3.0":
        without_the_first(new)
    else:
        other_dataset(new, layout=layout, seed=1)
    early, untouched = demoreel.open(root), demoreel.open(root)
    before = early.batch(range(len(early)))
    change(new, root)
    with pytest.raises(DatasetChangedError, match="open it again"):
        early.batch(range(len(early)))
    if change is put_in_place:
        with pytest.raises(DatasetChangedError, match="another folder"):
            untouched[0]
    assert not np.array_equal(before["noise"], demoreel.open(root).batch(range(12))["noise"])


def test_a_worker_that_starts_late_refuses_another_dataset(tmp_path):
    root = make_dataset(tmp_path / "data", episodes=[2, 3])
    sent = pickle.dumps(demoreel.open(root))
    put_in_place(make_dataset(tmp_path / "new", episodes=[3, 2]), root)
    with pytest.raises(DatasetChangedError, match="its episodes are others"):
        pickle.loads(sent)


def test_rows_of_a_later_state_are_not_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(row_columns, "_MEMORY_BYTES", 0)
    root = other_dataset(tmp_path / "data")
    first, second = open_reader(root), open_reader(root)
    for reader in (first, second):
        assert reader._rows._store.is_shared
    write_over(without_the_first(tmp_path / "new").path, root)
    first.rows(np.arange(4), ["observation.state"])
    assert not first._rows._store.is_shared
    assert second._rows._store.filled().tolist() == []


def test_a_video_that_is_read_again_must_be_the_same(tmp_path):
    root = other_dataset(tmp_path / "data")
    video = open_reader(root).clip(0, "observation.images.cam0").video
    loaded = load(GopSpan(video.index, video.file, video.name, (5,)))
    path = root / "videos/observation.images.cam0/chunk-000/file-000.mp4"
    shutil.copyfile(path, path.with_suffix(".new"))
    os.rename(path.with_suffix(".new"), path)
    with pytest.raises(VideoError, match="replaced while it was being read"):
        loaded.file.read(0, 8)


def test_errors_of_a_dataset_that_stands_still_stay_as_they_are(tmp_path):
    root = other_dataset(tmp_path / "data")
    dataset = demoreel.open(root)
    (root / "data/chunk-000/file-000.parquet").unlink()
    with pytest.raises(DemoreelError, match="A table that the metadata names is missing"):
        dataset[0]


def test_a_dataset_that_never_stands_still_is_busy(tmp_path, monkeypatch):
    root = other_dataset(tmp_path / "data")
    dataset = demoreel.open(root)
    monkeypatch.setattr(dataset_module, "ATTEMPTS", 3)
    info = root / "meta" / "info.json"

    def disturbed():
        os.utime(info, ns=(0, info.stat().st_mtime_ns + 1000))
        raise VideoError("gone")

    with pytest.raises(DatasetBusyError, match="faster than they can be read"):
        dataset.following(disturbed)


def edited(root):
    """Rename a feature and back: another state of the same lengths, tasks, features and values."""
    for old, new in (("noise", "other"), ("other", "noise")):
        demoreel.cut(root).rename({old: new}).render_in_place()


@pytest.mark.parametrize("layout", ["v3.0", "v2.1", "lance-video", "lance-frames"])
def test_a_worker_notices_an_edit_that_keeps_lengths_and_tasks(tmp_path, layout):
    root = other_dataset(tmp_path / "made")
    if layout != "v3.0":
        demoreel.convert(root, tmp_path / layout, to=layout)
        root = tmp_path / layout
    opened = demoreel.open(root)
    sent = pickle.dumps(opened)
    assert len(pickle.loads(sent)) == 12
    if layout.startswith("lance"):
        edited(root)
    else:
        other_dataset(tmp_path / "new", layout=layout, seed=1)
        put_in_place(tmp_path / "new", root)
    for late in (sent, pickle.dumps(opened)):
        with pytest.raises(DatasetChangedError, match="open it again"):
            pickle.loads(late)


def test_a_worker_compares_what_was_read(tmp_path):
    root = other_dataset(tmp_path / "data")
    opened = demoreel.open(root)
    assert opened[5]["episode_index"] == 1
    sent = pickle.dumps(opened)
    write_over(other_dataset(tmp_path / "new", seed=1), root)
    with pytest.raises(DatasetChangedError, match="other values"):
        pickle.loads(sent)

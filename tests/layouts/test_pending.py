"""Saved episodes that wait for their encoders: seen by every reader, and nothing is written."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import demoreel
from demoreel.cli.app import run
from demoreel.errors import (
    DatasetBusyError,
    DatasetChangedError,
    DemoreelError,
    DemoreelWarning,
    MetadataError,
    ShortageError,
    UnfinishedError,
)
from demoreel.layouts.appending import create_appender
from demoreel.layouts.detect import open_reader
from demoreel.layouts.pending import PendingReader, refuse_waiting
from demoreel.layouts.persisted_files import MANIFEST, WORKDIR
from demoreel.record.encoding.camera import CameraEncoder
from demoreel.record.finish import clear_workdir
from demoreel.storage.commit.journal import transaction
from demoreel.storage.commit.writer_lock import WriterLock
from demoreel.testing import make_dataset
from demoreel.testing.stamp import read_stamp
from support.crash import crash_info
from support.persisted import leave_persisted
from support.power_cut import watch

CAM, DEPTH = "observation.images.cam0", "observation.depth"
LAYOUTS = ("v3.0", "lance-video", "lance-native")
SOME_LAYOUTS = (*LAYOUTS[:2], pytest.param(LAYOUTS[2], marks=pytest.mark.soak))
HOSTILE = {
    "options": {"x264-params": "dump-yuv=PWNED", "x265-params": "csv=PWNED:dump-yuv=PWNED"},
    "extra": "../../..",
}


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """A dataset of two committed episodes in each layout that can be recorded to."""
    folder = tmp_path_factory.mktemp("committed")
    source = make_dataset(
        folder / "v3.0", episodes=[4, 3], cameras=1, depth_cameras={DEPTH: (48, 64)}
    )
    for layout in LAYOUTS[1:]:
        demoreel.convert(source, folder / layout, to=layout)
    return folder


@pytest.fixture
def pending(committed, tmp_path):
    """A function that returns a dataset with two committed and two saved episodes."""

    def make(layout="v3.0", **settings):
        root = tmp_path / "dataset"
        shutil.copytree(committed / layout, root)
        leave_persisted(root, frames=3, task="pour", episode=2, **settings)
        leave_persisted(root, frames=2, task="do it", episode=3, **settings)
        return root

    return make


def snapshot(*folders):
    """Every file and folder with all that a write would change."""
    found = {}
    for folder in folders:
        for path in [folder, *folder.rglob("*")]:
            status = os.lstat(path)
            kept = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)
            small = path.is_file() and status.st_size < 1 << 24
            found[path] = (*kept, path.read_bytes() if small else b"")
    return found


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A function that runs something, and fails if it writes or encodes anything."""

    def refuse(*args, **kwargs):
        raise AssertionError("an encoder was started")

    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)

    def do(work):
        before = snapshot(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(CameraEncoder, "start", refuse)
            patch.setattr("demoreel.media.encode.VideoEncoder.__init__", refuse)
            found = work()
        assert snapshot(tmp_path) == before
        return found

    return do


def whole(dataset):
    """Look at every frame of a dataset; return which it says they are."""
    batch = dataset.batch(range(len(dataset)))
    assert batch[DEPTH].shape == (len(dataset), 1, 48, 64)
    return [tuple(read_stamp(image)) for image in batch[CAM]]


STAMPS = [(0, n) for n in range(4)] + [(1, n) for n in range(3)]
STAMPS += [(2, n) for n in range(3)] + [(3, n) for n in range(2)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_saved_episodes_are_read_like_committed_ones(pending, watched, layout):
    root = pending(layout, **HOSTILE)

    def read():
        dataset = demoreel.open(root)
        assert (len(dataset.episodes), len(dataset), dataset.layout) == (4, 12, layout)
        assert (dataset.info.total_episodes, dataset.info.total_frames) == (4, 12)
        assert list(dataset.tasks.values()) == ["do it", "pour"]
        assert whole(dataset) == STAMPS
        assert [dataset[i]["task"] for i in (0, 7, 10)] == ["do it", "pour", "do it"]
        assert dataset.batch([8, 1])["index"].tolist() == [8, 1]
        assert dataset[8]["episode_index"] == 2
        assert dataset[8]["frame_index"] == 1
        assert dataset.episode(2).column("action").tolist() == [[2.0] * 6] * 3
        small = demoreel.open(root, image_size=(24, 32), windows={CAM: [-1, 0], "action": [0, 1]})
        assert small[7][CAM].shape == (2, 3, 24, 32)
        assert small[7][f"{CAM}_is_pad"].tolist() == [True, False]
        assert [p.shape for p in dataset.episode(3).frames(DEPTH)] == [(48, 64)] * 2
        chosen = demoreel.open(root, episodes=[3])
        assert whole(chosen) == STAMPS[10:]
        assert dataset.episodes[2].tasks == ("pour",)
        query = "select episode_index, count(*) from frames group by 1 order by 1"
        assert [tuple(row.values()) for row in dataset.sql(query).to_pylist()] == [
            (0, 4),
            (1, 3),
            (2, 3),
            (3, 2),
        ]
        found = demoreel.open(root, filter="task_index = 1 and frame_index > 1")
        assert found.episodes.episode_index.tolist() == [2]
        rows = dataset.sql("select length, tasks from episodes order by episode_index").to_pylist()
        assert rows[2] == {"length": 3, "tasks": ["pour"]}
        again = dataset.reader.rows_once(1, 4)
        assert again["episode_index"].tolist() == [1] * 3 + [2] * 3 + [3] * 2

    watched(read)


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_torch_classes_see_them(pending, watched, layout):
    torch = pytest.importorskip("torch")
    from demoreel.torch import LeRobotDataset, LeRobotLanceVideoDataset, StreamingLeRobotDataset

    root = pending(layout, **HOSTILE)

    def read():
        kinds = [LeRobotDataset] if layout == "v3.0" else [LeRobotDataset, LeRobotLanceVideoDataset]
        for kind in kinds:
            dataset = kind("me/it", root=root, delta_timestamps={CAM: [-1 / 30, 0.0]})
            assert (len(dataset), dataset.num_episodes) == (12, 4)
            assert (dataset.meta.total_episodes, dataset.meta.total_frames) == (4, 12)
            assert dataset.meta.episodes[3]["length"] == 2
            assert dataset.meta.episodes["dataset_from_index"] == [0, 4, 7, 10]
            assert dataset.meta.get_task_index("pour") == 1
            batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=12)))
            assert batch[CAM].shape[:2] == (12, 2)
            assert batch["episode_index"].tolist() == [0] * 4 + [1] * 3 + [2] * 3 + [3] * 2
        stream = StreamingLeRobotDataset("me/it", root=root, shuffle=False)
        assert sorted(int(item["index"]) for item in stream) == list(range(12))

    watched(read)


READING = {
    "info": ["info", "{root}", "--json"],
    "episodes": ["episodes", "{root}"],
    "frame": ["frame", "{root}", "8", "-c", CAM, "-o", "{out}/frame.png"],
    "stats": ["stats", "{root}"],
    "sql": ["sql", "{root}", "select count(*) from frames"],
    "bench": ["bench", "{root}", "--seconds", "0.1", "--batch-size", "2"],
    "check": ["check", "{root}", "--json"],
    "diff": ["diff", "{root}", "{root}"],
    "finish": ["finish", "{root}", "--dry-run"],
}
REFUSING = {
    "push": ["push", "{root}", "me/it", "--dry-run"],
    "convert": ["convert", "{root}", "{root}-target", "--to", "lance-video"],
    "convert-in-place": ["convert", "{root}", "--to", "v2.1", "--in-place"],
    "convert-dry": ["convert", "{root}", "{root}-target", "--to", "v2.1", "--dry-run"],
    "cut": ["cut", "delete", "{root}", "{root}-target", "--episodes", "0"],
    "repair": ["repair", "{root}", "{root}-target"],
    "repair-in-place": ["repair", "{root}", "--in-place"],
    "recompute": ["stats", "{root}", "--recompute"],
    "stats-of-one": ["stats", "{root}", "--episode", "2"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_commands_that_read_show_them_and_write_nothing(
    pending, watched, capsys, tmp_path_factory, layout
):
    root, out = pending(layout, **HOSTILE), tmp_path_factory.mktemp("out")
    said = {}
    for name, arguments in READING.items():
        filled = [argument.format(root=root, out=out) for argument in arguments]
        assert watched(lambda filled=filled: run(filled)) == 0, name
        said[name] = capsys.readouterr().out
    facts = json.loads(said["info"])
    assert (facts["episodes"], facts["frames"], facts["waiting"]["episodes"]) == (4, 12, 2)
    assert "12" in said["sql"]
    assert len(said["episodes"].splitlines()) == 5
    report = json.loads(said["check"])
    (finding,) = [f for f in report["findings"] if f["code"] == "episodes-waiting"]
    assert "demoreel finish" in json.dumps(finding)
    assert json.dumps(report).count('"episodes": 4') == 1


def test_commands_that_would_leave_them_out_stop_before_writing(pending, watched, capsys):
    root = pending(**HOSTILE)
    for name, arguments in REFUSING.items():
        filled = [argument.format(root=root) for argument in arguments]
        assert watched(lambda filled=filled: run(filled)) == 1, name
        assert f"demoreel finish {root}" in capsys.readouterr().err, name


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_edits_in_place_stop_before_writing(pending, watched, layout):
    root = pending(layout)

    def edit():
        with pytest.raises(UnfinishedError, match="demoreel finish"):
            demoreel.cut(root)
        assert [version.number for version in demoreel.versions(root)]

    watched(edit)
    with pytest.raises(UnfinishedError, match="demoreel finish"):
        demoreel.checkout(root, 1)


def test_a_cut_that_was_planned_before_stops_too(committed, tmp_path):
    root = tmp_path / "dataset"
    shutil.copytree(committed / "v3.0", root)
    made = demoreel.cut(root)
    leave_persisted(root)
    with pytest.raises(UnfinishedError, match="1 saved episode waits"):
        made.render(tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_long_texts_are_read_as_they_were_saved(tmp_path):
    note, root = "x" * 1_000_000, tmp_path / "dataset"
    make_dataset(root, episodes=[2], features={"note": {"dtype": "string", "shape": [1]}})
    leave_persisted(root, frames=40, episode=1, note=note)
    dataset = demoreel.open(root)
    assert len(dataset) == 42
    assert dataset[41]["note"] == note
    assert [episode.frames for episode in demoreel.finish(root).episodes] == [40]
    assert demoreel.open(root)[41]["note"] == note


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_said_of_the_first_episodes(tmp_path, watched, capsys, layout):
    root = tmp_path / "new"
    demoreel.create(
        root,
        fps=30,
        features={CAM: {"dtype": "video", "shape": [64, 64, 3]}},
        layout=layout,
        vcodec="h264",
        capture_times=False,
    ).finalize()
    leave_persisted(root, frames=2, task="first", episode=0)
    finish = f"demoreel finish {root}"
    for verb in ("info", "episodes", "check", "diff", "sql"):
        more = {"diff": [str(root)], "sql": ["select 1 from frames"]}
        arguments = [verb, str(root), *more.get(verb, [])]
        assert watched(lambda words=arguments: run(words)) == 0, (verb, capsys.readouterr())
    said = capsys.readouterr().out
    assert "tasks-missing" not in said
    assert "demoreel repair" not in said
    assert finish in said
    for verb in ("stats", "versions", "tag"):
        words = [verb, str(root), *(["x"] if verb == "tag" else [])]
        assert watched(lambda words=words: run(words)) == 1
        assert finish in capsys.readouterr().err, verb


def test_the_first_episodes_of_a_dataset(tmp_path, watched):
    root = tmp_path / "new"
    create_appender(root, crash_info(cameras=1)).close()
    with pytest.raises(MetadataError, match="no episodes yet"):
        demoreel.open(root)
    leave_persisted(root, frames=2, task="first", episode=0)

    def read():
        dataset = demoreel.open(root)
        with pytest.warns(DemoreelWarning, match="no statistics"):
            assert dataset.stats is None
        assert (len(dataset), list(dataset.tasks.values())) == (2, ["first"])
        assert [tuple(read_stamp(p)) for p in dataset[0:2][CAM]] == [(0, 0), (0, 1)]
        assert set(dataset.reader.episode_columns()) >= {"length", f"videos/{CAM}/to_timestamp"}
        assert len(dataset.sql("select * from frames")) == 2
        assert run(["info", str(root)]) == 0

    watched(read)
    done = demoreel.finish(root)
    assert [(e.episode_index, e.frames) for e in done.episodes] == [(0, 2)]
    assert not (root / ".demoreel").exists()
    assert demoreel.open(root).stats["state"]["count"].tolist() == [2]


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_finish_commits_them_with_the_same_items(pending, layout):
    root = pending(layout)
    before = demoreel.open(root)
    items = [before[index] for index in range(len(before))]
    shares = []
    planned = demoreel.finish(root, dry_run=True)
    done = demoreel.finish(root, report=shares.append)
    assert planned.episodes == done.episodes
    assert [(e.episode_index, e.frames) for e in done.episodes] == [(2, 3), (3, 2)]
    assert done.kept == ()
    assert shares[-1] == 1.0
    assert not (root / ".demoreel").exists()
    after = demoreel.open(root)
    assert not isinstance(after.reader, PendingReader)
    assert after.stats["index"]["count"].tolist() == [12]
    for mine, theirs in zip(items, (after[index] for index in range(len(after))), strict=True):
        assert mine.keys() == theirs.keys()
        assert read_stamp(mine[CAM]) == read_stamp(theirs[CAM])
        for key in mine.keys() - {CAM}:
            assert np.array_equal(mine[key], theirs[key]), key
    # The reader from before continues with the episodes where they are now.
    assert whole(before) == STAMPS
    assert demoreel.finish(root).episodes == ()


@pytest.mark.soak
def test_the_next_recorder_commits_them(pending):
    root = pending()
    with demoreel.resume(root) as recorder:
        assert (recorder.num_episodes, recorder.num_frames) == (4, 12)
    assert whole(demoreel.open(root)) == STAMPS


def test_finish_waits_for_no_recorder(pending, capsys):
    root = pending()
    with WriterLock(root):
        with pytest.raises(DatasetBusyError):
            demoreel.finish(root)
        assert run(["finish", str(root)]) == 1
        assert whole(demoreel.open(root)) == STAMPS
    assert run(["finish", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"][0] == {"episode_index": 2, "frames": 3}


def test_what_another_tool_appended_meanwhile_takes_no_number_away(pending, committed):
    """Its number is taken: the episode gets the next one, and is not forgotten."""
    root = pending()
    aside = root.with_name("aside")
    shutil.move(root / ".demoreel", aside)
    leave_persisted(root, frames=5, task="other tool", episode=9)
    demoreel.finish(root)
    shutil.move(aside, root / ".demoreel")
    assert [tuple(s) for s in _stamps(root)] == STAMPS[:7] + [(9, n) for n in range(5)] + STAMPS[7:]
    done = demoreel.finish(root)
    assert [e.episode_index for e in done.episodes] == [3, 4]
    assert [tuple(s) for s in _stamps(root)] == STAMPS[:7] + [(9, n) for n in range(5)] + STAMPS[7:]


def _stamps(root):
    dataset = demoreel.open(root)
    return [read_stamp(image) for image in dataset.batch(range(len(dataset)))[CAM]]


def test_equal_episodes_are_each_committed(committed, tmp_path):
    root = tmp_path / "dataset"
    shutil.copytree(committed / "v3.0", root)
    for _ in range(2):
        leave_persisted(root, frames=2, episode=5)
    demoreel.finish(root)
    assert _stamps(root)[7:] == [(5, 0), (5, 1)] * 2


@pytest.mark.soak
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_power_cut_at_any_step_neither_loses_nor_repeats_one(committed, tmp_path, layout):
    root = tmp_path / "dataset"
    shutil.copytree(committed / layout, root)
    leave_persisted(root, frames=2, episode=2)
    with watch(root) as cuts:
        demoreel.finish(root)
        last = cuts.last
    states = [*cuts.states, last]
    seen = set()
    step = 2 if layout == "v3.0" else 9  # Lance takes longer for each
    for number, state in list(enumerate(states))[-1::-step]:
        folder = cuts.build(state, tmp_path / "cuts" / str(number))
        try:
            seen.add(len(_stamps(folder)))
        except UnfinishedError:
            seen.add("half")
        demoreel.finish(folder)
        assert _stamps(folder) == [*STAMPS[:7], (2, 0), (2, 1)], (number, len(states))
        assert not list(folder.glob(".demoreel/encoding/*/sealed.json"))
        shutil.rmtree(folder)
    assert seen <= {9, "half"}
    assert len(states) > 20


@pytest.mark.soak
def test_a_reader_beside_a_recorder_sees_each_once(committed, tmp_path):
    """Again and again while the episodes that wait are committed, one after the other."""
    root = tmp_path / "dataset"
    shutil.copytree(committed / "v3.0", root)
    for episode in range(2, 8):
        leave_persisted(root, frames=1, episode=episode)
    expected = [*STAMPS[:7], *((episode, 0) for episode in range(2, 8))]
    process = subprocess.Popen([sys.executable, "-m", "demoreel", "finish", str(root), "--quiet"])
    opened = 0
    while process.poll() is None:
        assert _stamps(root) == expected
        opened += 1
    assert process.wait() == 0
    assert _stamps(root) == expected
    assert opened > 3


# Damage


def _edit(folder, change):
    path = folder / MANIFEST
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def _arrow(folder, make):
    path = folder / "rows.arrow"
    with pa.ipc.open_file(pa.BufferReader(path.read_bytes())) as reader:
        table = reader.read_all()
    options, changed = make(table)
    with pa.ipc.new_file(path, changed.schema, options=options) as writer:
        writer.write_table(changed)


def _link(folder, name):
    secret = folder.parent / f"secret-{folder.name}-{name}"
    shutil.move(folder / name, secret)
    (folder / name).symlink_to(secret)


def _first(said):
    return said["cameras"][0]


DAMAGE = {
    "empty": lambda f: (f / MANIFEST).write_text(""),
    "no-object": lambda f: (f / MANIFEST).write_text("[[[]]]"),
    "deep": lambda f: (f / MANIFEST).write_text("[" * 100_000),
    "no-cameras": lambda f: _edit(f, lambda said: said.update(cameras=[])),
    "fps": lambda f: _edit(f, lambda said: said.update(fps=1e-300)),
    "other-fps": lambda f: _edit(f, lambda said: said.update(fps=7)),
    "nan": lambda f: _edit(f, lambda said: said.update(fps=float("nan"))),
    "key": lambda f: _edit(f, lambda said: _first(said).update(key="../x")),
    "files": lambda f: _edit(f, lambda said: _first(said).update(files="../../../secret")),
    "rows": lambda f: _edit(f, lambda said: said["note"].update(rows="../../../rows.arrow")),
    "rows-absolute": lambda f: _edit(f, lambda said: said["note"].update(rows="/etc/passwd")),
    "codec": lambda f: _edit(f, lambda said: _first(said)["settings"].update(codec="ansi")),
    "kind": lambda f: _edit(f, lambda said: _first(said).update(kind="text")),
    "size": lambda f: _edit(f, lambda said: _first(said).update(height=60_000, width=60_000)),
    "bool": lambda f: _edit(f, lambda said: _first(said).update(height=True)),
    "frames": lambda f: _edit(f, lambda said: _first(said).update(put=10**12, places=[0])),
    "place": lambda f: _edit(f, lambda said: _first(said).update(places=[0, 1, 10**15])),
    "place-huge": lambda f: _edit(f, lambda said: _first(said).update(places=[0, 1, 2**70])),
    "place-below": lambda f: _edit(f, lambda said: _first(said).update(places=[0, 1, -1])),
    "place-twice": lambda f: _edit(f, lambda said: _first(said).update(places=[0, 1, 1])),
    "safe": lambda f: _edit(f, lambda said: _first(said).update(safe=3, places=[])),
    "raw-short": lambda f: os.truncate(f / "camera-0.raw", 100),
    "raw-gone": lambda f: (f / "camera-0.raw").unlink(),
    "raw-link": lambda f: _link(f, "camera-0.raw"),
    "raw-pipe": lambda f: ((f / "camera-0.raw").unlink(), os.mkfifo(f / "camera-0.raw")),
    "manifest-link": lambda f: _link(f, MANIFEST),
    "rows-gone": lambda f: (f / "rows.arrow").unlink(),
    "rows-short": lambda f: os.truncate(f / "rows.arrow", 300),
    "rows-endless": lambda f: os.truncate(f / "rows.arrow", 1 << 40),
    "rows-link": lambda f: _link(f, "rows.arrow"),
    "rows-text": lambda f: (f / "rows.arrow").write_text("ARROW1\0\0" + "x" * 5000),
    "rows-inflated": lambda f: _arrow(
        f, lambda table: (pa.ipc.IpcWriteOptions(compression="zstd"), table)
    ),
    "rows-fewer": lambda f: _arrow(f, lambda table: (None, table.slice(1))),
    "rows-other": lambda f: _arrow(f, lambda table: (None, table.drop_columns(["action"]))),
    "rows-type": lambda f: _arrow(
        f, lambda table: (None, table.set_column(0, "task", pa.array([1, 2, 3])))
    ),
}


def test_damaged_ones_hide_no_others(pending, watched):
    root = pending()
    damaged = {}
    for name, damage in DAMAGE.items():
        folder = leave_persisted(root, frames=3, episode=8)
        damage(folder)
        damaged[folder] = name
    leave_persisted(root, frames=1, episode=4)

    def read():
        with pytest.warns(DemoreelWarning, match="episode-000003.*demoreel finish"):
            dataset = demoreel.open(root)
        assert whole(dataset) == [*STAMPS, (4, 0)]
        planned = demoreel.finish(root, dry_run=True)
        assert len(planned.episodes) == 3
        assert [damaged[each.folder] for each in planned.kept if each.why] == list(DAMAGE)
        report = demoreel.check(root)
        codes = [finding.code for finding in report.findings]
        assert codes.count("episode-waiting-damaged") == len(DAMAGE)
        assert report.looked_at[str(root)]["episodes"] == 5

    watched(read)


@pytest.mark.parametrize(
    "name",
    ["raw-short", *(pytest.param(n, marks=pytest.mark.soak) for n in ("codec", "rows-gone"))],
)
def test_finish_keeps_a_damaged_one_and_commits_the_others(pending, name, capsys):
    root = pending()
    folder = root / WORKDIR / "episode-000001"
    DAMAGE[name](folder)
    before = snapshot(folder)
    assert run(["finish", str(root)]) == 1
    assert f"kept unchanged: {folder}" in capsys.readouterr().out
    assert snapshot(folder) == before
    with pytest.warns(DemoreelWarning, match="cannot be read"):
        recorder = demoreel.resume(root)
    assert recorder.num_episodes == 3
    recorder.finalize()
    assert snapshot(folder) == before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DemoreelWarning)
        assert whole(demoreel.open(root)) == STAMPS[:7] + STAMPS[10:]


def test_settings_that_no_encoder_may_have_keep_the_episode(pending):
    root = pending(codec="h264", gop="x" * 9)
    assert whole(demoreel.open(root)) == STAMPS
    done = demoreel.finish(root)
    assert len(done.kept) == 2
    assert done.episodes == ()
    assert whole(demoreel.open(root)) == STAMPS


def test_one_that_leaves_its_number_to_the_next_is_not_taken_for_it(tmp_path):
    """Both have as many frames, and no numbers that would tell them apart."""
    root = make_dataset(tmp_path / "data", episodes=[2], cameras=1)
    leave_persisted(root, frames=3, episode=0, gop="none")  # readable, and never committed
    leave_persisted(root, frames=3, episode=0)
    opened = demoreel.open(root)
    sent = pickle.dumps(opened)
    assert len(opened) == 8
    assert len(demoreel.finish(root).kept) == 1
    for read in (lambda: opened[4], lambda: pickle.loads(sent)):
        with pytest.raises(DatasetChangedError, match="another order"):
            read()


@pytest.mark.parametrize("differ", [True, False])
def test_a_worker_compares_what_it_was_sent_before_a_commit(pending, differ):
    root = pending()
    sent = pickle.dumps(demoreel.open(root))
    if differ:  # another tool's episode of the same length takes the number
        for folder in (root / WORKDIR).iterdir():
            shutil.rmtree(folder)
        leave_persisted(root, frames=3, task="pour", episode=7)
        leave_persisted(root, frames=2, task="do it", episode=3)
    demoreel.finish(root)
    if differ:
        with pytest.raises(DatasetChangedError, match="other numbers"):
            pickle.loads(sent)
    else:
        assert whole(pickle.loads(sent)) == STAMPS


def test_another_manifest_of_the_same_files_is_another_video(pending):
    root = pending()
    assert whole(demoreel.open(root)) == STAMPS
    folder = root / WORKDIR / "episode-000001"
    _edit(folder, lambda said: [camera.update(places=[2, 1, 0]) for camera in said["cameras"]])
    assert whole(demoreel.open(root)) == [*STAMPS[:7], (2, 2), (2, 1), (2, 0), *STAMPS[10:]]


@pytest.mark.parametrize("name", [MANIFEST, "rows.arrow"])
def test_a_shortage_is_no_damage(pending, monkeypatch, name):
    root, real = pending(), Path.read_bytes

    def read_bytes(path):
        if path.name == name:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    for read in (demoreel.open, demoreel.check, demoreel.finish):
        with pytest.raises(ShortageError, match="open no more files"):
            read(root)


def test_counts_that_are_not_of_the_frames_are_not_committed(pending):
    root = pending()
    np.save(root / WORKDIR / "episode-000001" / "camera-0.counts.npy", np.ones((3, 256), int))
    done = demoreel.finish(root)
    assert "counts" in done.kept[0].why.lower()


@pytest.mark.parametrize("part", [".demoreel", ".demoreel/encoding", WORKDIR / "episode-000001"])
def test_links_in_the_place_of_folders_are_not_followed(pending, watched, tmp_path, part):
    root = pending()
    shutil.move(root / part, tmp_path / "elsewhere")
    (root / part).symlink_to(tmp_path / "elsewhere")

    def read():
        with pytest.warns(DemoreelWarning, match="is a link"):
            dataset = demoreel.open(root)
        assert len(dataset.episodes) in (2, 3)

    watched(read)


def test_layouts_that_nobody_records_to(fixtures, copy_of):
    root = copy_of("kitchen_lance_frames")
    count = len(demoreel.open(root).episodes)
    leave_persisted(root, frames=2)
    with pytest.warns(DemoreelWarning, match="lance-frames"):
        assert len(demoreel.open(root).episodes) == count
    assert len(demoreel.finish(root).kept) == 1


# Commits that a kill has left half in place


@pytest.fixture
def half(committed, tmp_path):
    """A dataset with a commit of which the first of two steps was taken."""
    root = tmp_path / "dataset"
    shutil.copytree(committed / "v3.0", root)
    (root / ".demoreel").mkdir()
    with WriterLock(root), transaction(root) as changes:
        info = json.loads((root / "meta" / "info.json").read_text())
        changes.new("meta/note.txt").write_text("new")
        changes.new("meta/info.json").write_text(json.dumps(info))
        changes.record()
        (changes.folder / "0000.txt").rename(root / "meta" / "note.txt")
    return root


def test_half_a_commit_is_named_and_not_finished_by_reading(half, watched, capsys):
    def read():
        for work in (demoreel.open, demoreel.cut, open_reader):
            with pytest.raises(UnfinishedError, match="demoreel finish"):
                work(half)
        for arguments in (["info", half], ["sql", half, "select 1"], ["episodes", half]):
            assert run([str(argument) for argument in arguments]) == 1
            assert f"demoreel finish {half}" in capsys.readouterr().err
        assert "commit-pending" in {f.code for f in demoreel.check(half).findings}
        assert demoreel.finish(half, dry_run=True).completed

    watched(read)
    assert demoreel.finish(half).completed
    assert (half / "meta" / "note.txt").read_text() == "new"
    assert not (half / ".demoreel").exists()
    assert len(demoreel.open(half)) == 7


def test_a_commit_of_a_living_writer_is_waited_for(half):
    from demoreel.storage.commit.consistent import consistent_read

    with WriterLock(half), pytest.raises(DatasetBusyError, match="stands still"):
        consistent_read(half, lambda: None, patience_s=0.05)


def test_a_folder_that_is_being_replaced(committed, tmp_path, watched):
    root = tmp_path / "dataset"
    beside = root.with_name(".dataset.replace")
    beside.mkdir()
    shutil.copytree(committed / "v3.0", beside / "old")
    shutil.copytree(committed / "v3.0", beside / "new")
    status = os.stat(beside / "new")
    note = {"new": [status.st_dev, status.st_ino], "keep": "dataset_old"}
    (beside / "begun.json").write_text(json.dumps(note))

    def read():
        with pytest.raises(UnfinishedError, match="demoreel finish"):
            demoreel.open(root)

    watched(read)
    demoreel.finish(root)
    assert len(demoreel.open(root)) == 7


def test_folders_that_nobody_may_write(committed):
    """As a user without rights: reading asks for no lock, no folder and no file."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    folder = Path(tempfile.mkdtemp(prefix="demoreel-read-only-"))
    try:
        folder.chmod(0o755)
        root = folder / "dataset"
        shutil.copytree(committed / "v3.0", root)
        leave_persisted(root, frames=3, task="pour", episode=2)
        leave_persisted(root, frames=2, task="do it", episode=3)
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        assert whole(demoreel.open(root)) == STAMPS  # all that is imported late is there now
        before = snapshot(folder)
        child = os.fork()
        if not child:
            status = 1
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                status = 0 if whole(demoreel.open(root)) == STAMPS else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert snapshot(folder) == before
    finally:
        shutil.rmtree(folder)


def test_folders_that_not_everyone_may_list(committed):
    """Where saved episodes may be that this user cannot see, that is said."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    folder = Path(tempfile.mkdtemp(prefix="demoreel-private-"))
    try:
        folder.chmod(0o755)
        root = folder / "dataset"
        shutil.copytree(committed / "v3.0", root)
        leave_persisted(root, frames=3, episode=2)
        assert len(demoreel.open(root).episodes) == 3  # all that is imported late is there now
        (root / WORKDIR).chmod(0o700)
        child = os.fork()
        if not child:
            status = 1
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                with pytest.warns(DemoreelWarning, match="Permission denied"):
                    status = 0 if len(demoreel.open(root).episodes) == 2 else 2
                with pytest.raises(UnfinishedError):
                    refuse_waiting(root, "cut")
            except BaseException:
                status = 3
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("call", ["lstat", "listdir"])
def test_a_disk_that_does_not_say_what_is_saved_has_nothing_deleted(pending, monkeypatch, call):
    root, real = pending(), getattr(os, call)
    before = snapshot(root / WORKDIR)

    def fail(path, *args, **kwargs):
        if str(path).endswith((f"000001/{MANIFEST}", "encoding")):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        clear_workdir(root / WORKDIR)
    assert snapshot(root / WORKDIR) == before


def test_one_that_is_damaged_after_opening_is_an_error_that_says_where(pending):
    root = pending()
    dataset = demoreel.open(root)
    (root / WORKDIR / "episode-000001" / "camera-0.raw").unlink()
    with pytest.raises(DemoreelError) as caught:
        _ = dataset[8]
    assert caught.value.where["episode"] == 2
    assert "demoreel finish" in str(caught.value)
    assert tuple(read_stamp(dataset[11][CAM])) == (3, 1)


def test_a_copy_in_a_store_says_that_some_wait(pending, s3, tmp_path, monkeypatch):
    for name, value in {**s3.environment, "DEMOREEL_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    root = pending()
    uri = s3.upload(root, "pending/copy")
    for path in (root / ".demoreel").rglob("*.json"):  # as a sync of all files leaves them
        s3.put(f"pending/copy/{path.relative_to(root).as_posix()}", path.read_bytes())
    target = tmp_path / "target"
    for work in (
        lambda: demoreel.open(uri),
        lambda: demoreel.check(uri),
        lambda: demoreel.diff(uri, root),
        lambda: demoreel.pull(uri, target),
        lambda: demoreel.convert(uri, target, to="v2.1"),
        lambda: demoreel.repair(uri, target),
        lambda: demoreel.cut(uri),
    ):
        with pytest.raises(UnfinishedError, match="demoreel finish"):
            work()
    assert not target.exists()
    shutil.rmtree(root / ".demoreel")
    assert len(demoreel.open(s3.upload(root, "pending/whole"))) == 7

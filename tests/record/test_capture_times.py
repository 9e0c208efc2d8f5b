"""Capture times: beside the data, with every episode wherever it goes, and never another's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import ArgumentError, OutOfRangeError, UnknownKeyError
from demoreel.model import DEFAULT_FEATURES
from demoreel.model.clocks import CAPTURE_TIME
from demoreel.record import create, resume

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
NAMES = ["height", "width", "channels"]
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (2,), "names": None},
    "action": {"dtype": "float64", "shape": (2,), "names": None},
    "done": {"dtype": "bool", "shape": (1,), "names": None},
    FRONT: {"dtype": "video", "shape": (48, 64, 3), "names": NAMES},
    WRIST: {"dtype": "image", "shape": (48, 64, 3), "names": NAMES},
}
FILES = "meta/demoreel/capture_times"
LAYOUTS = ["v3.0", "lance-video", "lance-native"]
LENGTHS = (5, 5, 7)


def times_of(episode, length=None, *, offset=0):
    first = 1_700_000_000_000_000_000 + episode * 60_000_000_000 + offset
    return [first + number * 100_000_000 for number in range(length or LENGTHS[episode])]


EVERY = [times_of(episode) for episode in range(3)]


def frame(episode, number):
    return {
        "observation.state": np.array([episode, number], np.float32),
        "action": np.array([number, 0.5]),
        "done": number == 4,
        FRONT: np.full((48, 64, 3), 40 + number, np.uint8),
        WRIST: np.full((48, 64, 3), 60 + number, np.uint8),
        "task": "pick",
    }


def add(recorder, episode, length=None, *, clocks=True):
    for number, time in enumerate(times_of(episode, length)):
        given = {f"{CAPTURE_TIME}.{WRIST}": time + 7} if number and clocks else {}
        recorder.add_frame({**frame(episode, number), **given}, captured_at=time)
    return recorder.save_episode()


def record(root, episodes=range(3), **options):
    options = {"fps": 10, "features": FEATURES, "vcodec": "h264", **options}
    with create(root, **options) as recorder:
        for episode in episodes:
            add(recorder, episode, clocks=options.get("capture_times") != "none")
    return root


def told(root, **options):
    ds = demoreel.open(root, **options)
    found = [ds.capture_times(int(number)) for number in ds.episodes.episode_index]
    return [None if times is None else times.tolist() for times in found]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    made = {}

    def of(layout="v3.0", **options):
        key = (layout, *options.items())
        if key not in made:
            folder = tmp_path_factory.mktemp("times") / "arm"
            made[key] = record(folder, layout=layout, **options)
        return made[key]

    return of


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_recording_has_the_declared_features_and_those_of_the_format(recorded, layout):
    root = recorded(layout)
    ds = demoreel.open(root)
    assert set(ds.features) == {*FEATURES, *DEFAULT_FEATURES}
    assert told(root) == EVERY
    assert ds.capture_times(1).dtype == np.int64
    assert ds.capture_times(1, WRIST).tolist() == [-1, *times_of(1, offset=7)[1:]]
    assert ds.capture_times(1, FRONT) is None
    assert [path.name for path in sorted((root / FILES).rglob("*.parquet"))] == ["file-000.parquet"]
    with pytest.raises(OutOfRangeError):
        ds.capture_times(3)
    with pytest.raises(UnknownKeyError, match="camera"):
        ds.capture_times(0, "front")
    assert demoreel.check(root).worst in (None, "hint")


def test_where_they_are_kept_is_the_callers_choice(recorded, tmp_path):
    column = recorded(capture_times="column", cameras_with_clocks=(WRIST,))
    assert told(column) == EVERY
    ds = demoreel.open(column)
    assert ds.features[CAPTURE_TIME].dtype == "int64"
    assert ds.capture_times(0, WRIST).tolist() == [-1, *times_of(0, offset=7)[1:]]
    assert not (column / FILES).exists()
    for number, nothing in enumerate(("none", False)):
        root = tmp_path / str(number)
        features = {"x": FEATURES["observation.state"]}
        with create(root, fps=10, features=features, capture_times=nothing, task="t") as recorder:
            with pytest.raises(UnknownKeyError):
                recorder.add_frame({"x": [0, 0], CAPTURE_TIME: 5})
            recorder.add_frame({"x": [0, 0]})
            recorder.save_episode()
        assert told(root) == [None]
    with pytest.raises(ArgumentError, match="capture_times"):
        create(tmp_path / "odd", fps=10, features=FEATURES, capture_times="aside")


def test_a_frame_may_say_its_time(tmp_path):
    features = {"x": FEATURES["observation.state"]}
    with create(tmp_path / "ds", fps=10, features=features, task="t") as recorder:
        recorder.add_frame({"x": [0, 0], CAPTURE_TIME: 1000})
        with pytest.raises(ArgumentError, match="nanoseconds"):
            recorder.add_frame({"x": [0, 0], CAPTURE_TIME: "now"})
        with pytest.raises(UnknownKeyError):
            recorder.add_frame({"x": [0, 0], f"{CAPTURE_TIME}.nowhere": 5})
        recorder.save_episode()
    assert told(tmp_path / "ds") == [[1000]]


@pytest.mark.parametrize("where", ["beside", "column"])
def test_recording_goes_on_where_they_are(recorded, tmp_path, where):
    root = shutil.copytree(recorded(capture_times=where), tmp_path / "ds")
    with resume(root, features=FEATURES) as recorder:
        add(recorder, 3, 2)
    assert told(root) == [*EVERY, times_of(3, 2)]
    assert (CAPTURE_TIME in demoreel.open(root).features) == (where == "column")


def test_they_are_there_while_the_episode_waits_and_after_a_kill(tmp_path):
    root = tmp_path / "ds"
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_capture_times import FEATURES, add, create
from pathlib import Path
recorder = create(Path({str(root)!r}), fps=10, features=FEATURES, vcodec="h264")
add(recorder, 0)
for process in recorder.encoder_processes.values():
    os.kill(process, signal.SIGSTOP)
assert add(recorder, 1, 9).pending
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert told(root) == [EVERY[0], times_of(1, 9)]
    assert demoreel.open(root).capture_times(1, WRIST)[1] == times_of(1, offset=7)[1]
    assert len(demoreel.finish(root).episodes) == 1
    assert told(root) == [EVERY[0], times_of(1, 9)]


def test_merging_small_files_keeps_them(tmp_path):
    features = {"x": FEATURES["observation.state"]}
    with create(tmp_path / "ds", fps=10, features=features, task="t") as recorder:
        for episode in range(20):
            for time in times_of(episode, 2):
                recorder.add_frame({"x": [episode, 0]}, captured_at=time)
            recorder.save_episode()
    assert told(tmp_path / "ds") == [times_of(episode, 2) for episode in range(20)]
    assert len(list((tmp_path / "ds" / FILES).rglob("*.parquet"))) == 1


CUTS = {
    "delete": (lambda cut: cut.delete([0]), EVERY[1:]),
    "reorder": (lambda cut: cut.select(order_by="length desc"), [EVERY[2], *EVERY[:2]]),
    "trim": (lambda cut: cut.trim(1, start=2, stop=4), [EVERY[0], EVERY[1][2:4], EVERY[2]]),
    "twice": (lambda cut: cut.merge(cut), EVERY * 2),
    "split": (lambda cut: cut.split({"a": [2], "b": [0]})["a"], EVERY[2:]),
    "rename": (lambda cut: cut.rename({"action": "act", FRONT: "top"}), EVERY),
    "remove": (lambda cut: cut.remove("action", WRIST), EVERY),
    "removed": (lambda cut: cut.remove("observation.state", "action", "done"), EVERY),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name",
    [
        n if n in ("trim", "twice", "rename") else pytest.param(n, marks=pytest.mark.soak)
        for n in CUTS
    ],
)
def test_they_follow_a_cut(recorded, tmp_path, layout, name):
    change, expected = CUTS[name]
    change(demoreel.cut(recorded(layout))).render(tmp_path / "cut", layout=layout)
    assert told(tmp_path / "cut") == expected
    if len(expected) > 1:
        demoreel.cut(tmp_path / "cut").delete([0]).render(tmp_path / "again")
        assert told(tmp_path / "again") == expected[1:]
    wrist = demoreel.open(tmp_path / "cut").features.get(WRIST)
    if wrist is not None:
        found = demoreel.open(tmp_path / "cut").capture_times(0, WRIST)
        assert found[1:].tolist() == [time + 7 for time in expected[0][1:]]


def test_a_slower_result_has_those_of_its_frames(recorded, tmp_path):
    demoreel.cut(recorded()).render(tmp_path / "slow", fps=5)
    assert told(tmp_path / "slow") == [times[::2] for times in EVERY]


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_versions_have_their_own(recorded, tmp_path, layout):
    root = shutil.copytree(recorded(layout), tmp_path / "arm")
    before = demoreel.versions(root)[-1].number
    demoreel.cut(root).delete([1]).render_in_place()
    assert told(root) == [EVERY[0], EVERY[2]]
    assert told(root, version=before) == EVERY
    demoreel.checkout(root, before)
    assert told(root) == EVERY


TARGETS = ["v2.1", "v3.0", "lance-video", "lance-native", "lance-frames"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("to", TARGETS)
def test_they_follow_a_conversion(recorded, tmp_path, layout, to):
    if to != layout:
        demoreel.convert(recorded(layout), tmp_path / "made", to=to)
        assert told(tmp_path / "made") == EVERY


@pytest.mark.parametrize("features", ["strict", "common", "union"])
@pytest.mark.parametrize("first", ["beside", "column", "none"])
def test_datasets_with_and_without_the_column_are_merged(recorded, tmp_path, features, first):
    others = {"beside": "column", "column": "beside", "none": "column"}
    roots = [recorded(capture_times=where) for where in (first, others[first])]
    cut = demoreel.cut(roots[0]).merge(roots[1], features=features)
    done = cut.render(tmp_path / "merged")
    known = [[None] * 3 if where == "none" else EVERY for where in (first, others[first])]
    assert told(tmp_path / "merged") == known[0] + known[1]
    assert CAPTURE_TIME not in demoreel.open(tmp_path / "merged").features
    assert [said for said in done.dropped if CAPTURE_TIME in said] == [
        f"{CAPTURE_TIME}: as a column, which not all datasets have; its times are beside the data"
    ]


def test_a_column_that_all_have_stays_and_one_that_is_removed_is_gone(recorded, tmp_path):
    column = recorded(capture_times="column")
    demoreel.cut(column).merge(column).render(tmp_path / "merged")
    assert demoreel.open(tmp_path / "merged")[0][CAPTURE_TIME] == EVERY[0][0]
    clocks = {"clock": [WRIST] * 6}  # for which there is no column
    assert pq.read_table(tmp_path / "merged" / FILES, columns=["clock"]).to_pydict() == clocks
    demoreel.cut(column).remove(CAPTURE_TIME).render(tmp_path / "without")
    assert told(tmp_path / "without") == [None] * 3


def test_repair_keeps_them(recorded, tmp_path):
    root = shutil.copytree(recorded(), tmp_path / "broken")
    shutil.rmtree(root / "meta" / "episodes")
    demoreel.repair(root, tmp_path / "whole")
    assert told(tmp_path / "whole") == EVERY


def test_those_of_another_episode_are_never_given(recorded, tmp_path):
    """Another program renumbers episodes, and leaves demoreel's files as they are."""
    root = shutil.copytree(recorded(), tmp_path / "swapped")
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    rows = [*range(5, 10), *range(5), *range(10, 17)]  # episodes 0 and 1 are of one length
    swapped = table.take(rows)
    for name in ("episode_index", "index", "frame_index", "timestamp"):
        place = table.schema.get_field_index(name)
        swapped = swapped.set_column(place, table.field(place), table.column(name))
    pq.write_table(swapped, path)
    assert told(root) == [None, None, EVERY[2]]
    demoreel.cut(root).render(tmp_path / "cut", verify=False)
    assert told(tmp_path / "cut") == [None, None, EVERY[2]]
    demoreel.cut(root).trim(0, start=1).render(tmp_path / "trimmed", verify=False)
    assert told(tmp_path / "trimmed") == [None, None, EVERY[2]]


def test_without_a_column_that_tells_the_episode_there_are_none(recorded, tmp_path):
    """Another program has removed the numbers, and may have renumbered the episodes."""
    root = shutil.copytree(recorded(), tmp_path / "without")
    info = json.loads((root / "meta/info.json").read_text())
    numbers = {k for k, f in demoreel.open(root).features.items() if f.is_numeric}
    for key in numbers - DEFAULT_FEATURES.keys():
        del info["features"][key]
    (root / "meta/info.json").write_text(json.dumps(info))
    assert told(root) == [None] * 3
    demoreel.cut(root).render(tmp_path / "cut")
    assert told(tmp_path / "cut") == [None] * 3


@pytest.mark.parametrize("damage", ["cut off", "other columns", "no file"])
def test_files_that_cannot_be_read_are_as_good_as_none(recorded, tmp_path, damage):
    root = shutil.copytree(recorded(), tmp_path / "damaged")
    path = root / FILES / "chunk-000" / "file-000.parquet"
    if damage == "cut off":
        os.truncate(path, path.stat().st_size // 2)
    elif damage == "other columns":
        pq.write_table(pq.read_table(path).drop_columns("times"), path)
    else:
        path.unlink()
        os.mkfifo(path)
    assert told(root) == [None] * 3
    assert len(demoreel.open(root)[:]["index"]) == 17
    if damage != "no file":
        demoreel.cut(root).delete([0]).render(tmp_path / "cut")
        assert told(tmp_path / "cut") == [None] * 2


def test_a_gap_beside_the_data_is_found(tmp_path):
    features = {"observation.state": FEATURES["observation.state"]}
    with create(tmp_path / "ds", fps=10, features=features, task="t") as recorder:
        for episode in range(2):
            for number, time in enumerate(times_of(episode, 20)):
                late = 900_000_000 if episode and number >= 12 else 0
                state = [np.sin(number), episode]
                recorder.add_frame({"observation.state": state}, captured_at=time + late)
            recorder.save_episode()
    found = [f for f in demoreel.check(tmp_path / "ds").findings if f.code == "capture-gap"]
    assert [(finding.where.episode, finding.where.frame) for finding in found] == [(1, 12)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_they_are_read_from_a_store(recorded, s3, proxy, tmp_path, layout):
    uri = s3.upload(recorded(layout), f"times/{layout}/arm")
    assert told(uri) == EVERY
    demoreel.cut(uri).delete([0]).render(tmp_path / "cut")
    assert told(tmp_path / "cut") == EVERY[1:]

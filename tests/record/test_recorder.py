"""Recording: what was added is what is read, and what was saved is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import demoreel
from demoreel.errors import ArgumentError, DemoreelWarning, MetadataError, TargetExistsError
from demoreel.media.encode import encoder_problem
from demoreel.media.settings import VideoSettings
from demoreel.model import DepthCode
from demoreel.model.depth import depth_table, encode_depth
from demoreel.record import create, resume
from demoreel.storage.commit.journal import roll_forward
from demoreel.testing.stamp import Stamp, read_stamp, stamp

FRONT, WRIST, DEEP = "observation.images.front", "observation.images.wrist", "observation.depth"
NAMES = ["height", "width", "channels"]
STATE = {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]}
CAMERA = {"dtype": "video", "shape": (48, 64, 3), "names": NAMES}
EVERYTHING = {
    "observation.state": STATE,
    "action": STATE,
    "touch": {"dtype": "float64", "shape": (2, 2), "names": None},
    "done": {"dtype": "bool", "shape": (1,), "names": None},
    "phase": {"dtype": "int64", "shape": (1,), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
    "language_events": {"dtype": "language", "shape": (1,), "names": None},
    FRONT: CAMERA,
    WRIST: {"dtype": "image", "shape": (48, 64, 3), "names": NAMES},
    DEEP: {"dtype": "video", "shape": (48, 64, 1), "names": NAMES, "info": {"is_depth_map": True}},
}
SIMPLE = {"observation.state": STATE, FRONT: CAMERA}


def image(episode, number):
    made = np.full((48, 64, 3), 90, np.uint8)
    stamp(made, episode, number)
    return made


def depth(episode, number):
    return np.add.outer(np.arange(48), np.arange(64)).astype(np.uint16) * 7 + episode * 100 + number


def simple(episode, number):
    return {
        "observation.state": np.array([episode, number, 0.5], np.float32),
        FRONT: image(episode, number),
        "task": "pick",
    }


def everything(episode, number):
    return {
        **simple(episode, number),
        "action": np.array([number, episode, 0.25], np.float32),
        "touch": np.full((2, 2), number / 3),
        "done": number % 2 == 0,
        "phase": number,
        "note": f"nötiz {episode}/{number}",
        "language_events": [
            {"role": "user", "content": f"go {number}", "style": "interjection", "camera": None}
        ],
        WRIST: image(episode, number),
        DEEP: depth(episode, number),
        "task": "pick" if number < 2 else "place",
    }


def record(recorder, episode, frames, make=simple):
    for number in range(frames):
        assert recorder.add_frame(make(episode, number))
    return recorder.save_episode()


def check(root, lengths, make=simple, committed=None):
    ds = demoreel.open(root)
    assert ds.episodes.length.tolist() == lengths
    assert (ds.info.total_episodes, ds.info.total_frames) == (len(lengths), sum(lengths))
    info = json.loads((root / "meta" / "info.json").read_text())
    there = lengths[:committed]
    assert (info["total_episodes"], info["total_frames"]) == (len(there), sum(there))
    items = ds[0 : len(ds)]
    assert items["index"].tolist() == list(range(sum(lengths)))
    row = 0
    for episode, length in enumerate(lengths):
        for number in range(length):
            made = make(episode, number)
            assert items["observation.state"][row].tolist() == made["observation.state"].tolist()
            assert read_stamp(items[FRONT][row]) == Stamp(episode, number)
            assert items["frame_index"][row] == number
            assert items["episode_index"][row] == episode
            assert items["timestamp"][row] == np.float32(number / ds.fps)
            row += 1
    return ds


@pytest.fixture
def root(tmp_path):
    return tmp_path / "ds"


def test_every_kind_of_feature_comes_back(root):
    with create(root, fps=10, features=EVERYTHING, robot_type="toy", vcodec="h264") as recorder:
        record(recorder, 0, 5, everything)
        record(recorder, 1, 3, everything)
    ds = check(root, [5, 3], everything)
    code = DepthCode()
    for episode, number, item in [(0, 3, ds[3]), (1, 2, ds[7])]:
        made = everything(episode, number)
        assert item["touch"].tolist() == made["touch"].tolist()
        assert item["done"] == made["done"]
        assert item["phase"] == made["phase"]
        assert item["note"] == made["note"]
        assert item["language_events"][0]["content"] == f"go {number}"
        assert item["task"] == made["task"]
        assert np.array_equal(item[WRIST], made[WRIST].transpose(2, 0, 1))
        codes = encode_depth(made[DEEP], code)
        assert np.array_equal(item[DEEP][0], depth_table(code)[codes])


def metres(episode, number):
    made = depth(episode, number) / np.float32(333)
    made[0, :2] = np.nan, 70
    return made.astype(np.float32)


@pytest.mark.parametrize("layout", ["v3.0", "lance-video", "lance-native"])
def test_images_of_depth_keep_their_values_and_say_their_unit(root, layout):
    features = {
        f"{kind}.{dtype}": {**EVERYTHING[DEEP], "dtype": kind}
        for kind in ("image", "video")
        for dtype in ("uint16", "float32")
    }

    def frame(episode, number):
        values = {"uint16": depth(episode, number), "float32": metres(episode, number)}
        return {**{key: values[key.partition(".")[2]] for key in features}, "task": "look"}

    with create(root, fps=10, features=features, layout=layout) as recorder:
        record(recorder, 0, 2, frame)
    with resume(root) as recorder:
        record(recorder, 1, 2, frame)
    for unit, factor in (("mm", 1), ("m", 0.001)):
        ds = demoreel.open(root, depth_unit=unit)
        units = {"uint16": "mm", "float32": "m"}
        for key in features:
            assert ds.info.features[key].info["depth_unit"] == units[key.partition(".")[2]]
        for row, (episode, number) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
            item = ds[row]
            whole = depth(episode, number) * factor
            assert np.allclose(item["image.uint16"][0], whole, rtol=1e-6, atol=0)
            exact = metres(episode, number) * 1000 * factor
            assert np.allclose(item["image.float32"][0], exact, rtol=1e-6, equal_nan=True)
    stats = demoreel.open(root).stats
    known = np.array([metres(e, n) for e in (0, 1) for n in (0, 1)])
    known = known[np.isfinite(known)].clip(0, 65.535)
    assert np.isclose(stats["image.float32"]["mean"].item(), known.mean(), atol=0.0005)
    assert np.isclose(stats["image.float32"]["max"].item(), 65.535)
    assert stats["video.float32"]["max"].item() == 10.0
    assert abs(stats["video.uint16"]["max"].item() - 871) <= 2


def test_depth_that_changes_its_dtype_stays_in_its_unit(root):
    features = {DEEP: {**EVERYTHING[DEEP], "dtype": "image"}}
    with create(root, fps=10, features=features) as recorder:
        for value in (np.full((48, 64), 1.5, np.float32), np.full((48, 64), 250, np.uint16)):
            recorder.add_frame({DEEP: value, "task": "look"})
        recorder.save_episode()
    ds = demoreel.open(root)
    assert [ds[row][DEEP].max() for row in (0, 1)] == [1500, 250]


def test_a_range_of_depth_may_be_declared(root):
    said = {"is_depth_map": True, "video.depth_max": 20.0, "video.use_log": False}
    with create(root, fps=10, features={DEEP: {**EVERYTHING[DEEP], "info": said}}) as recorder:
        recorder.add_frame({DEEP: np.full((48, 64), 15.0, np.float32), "task": "look"})
        recorder.save_episode()
    with resume(root) as recorder:
        recorder.add_frame({DEEP: np.full((48, 64), 15000, np.uint16), "task": "look"})
        recorder.save_episode()
    ds = demoreel.open(root)
    assert all(abs(ds[row][DEEP] - 15000).max() < 3 for row in (0, 1))
    assert ds.info.features[DEEP].info["depth_unit"] == "m"


@pytest.mark.parametrize("codec", ["h264", "av1", "hevc"])
def test_the_shortest_episodes_are_saved(root, codec):
    with create(root, fps=30, features=SIMPLE, vcodec=codec) as recorder:
        for episode, frames in enumerate((1, 2, 1)):
            record(recorder, episode, frames)
    check(root, [1, 2, 1])


def test_a_saved_episode_is_seen_by_others_before_the_end(root):
    recorder = create(root, fps=30, features=SIMPLE, vcodec="h264")
    code = f"import demoreel; ds = demoreel.open({str(root)!r}); print(len(ds), ds[-1]['index'])"
    for episode in range(3):
        record(recorder, episode, 4)
        recorder.add_frame(simple(episode + 1, 0))  # already in the next one
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        total = 4 * (episode + 1)
        assert told.stdout.split() == [str(total), str(total - 1)], told.stderr
        recorder.discard_episode()
    recorder.finalize()
    check(root, [4, 4, 4])


def test_what_is_discarded_is_gone(root):
    with create(root, fps=30, features=SIMPLE, vcodec="h264") as recorder:
        record(recorder, 0, 3)
        for number in range(5):
            recorder.add_frame(simple(9, number))
        assert recorder.pending_frames == 5
        assert recorder.discard_episode() == 5
        record(recorder, 1, 4)
        recorder.add_frame(simple(2, 0))
    check(root, [3, 4])


def test_a_frame_that_does_not_fit_leaves_the_episode_as_it_was(root):
    with create(root, fps=30, features=SIMPLE, vcodec="h264") as recorder:
        recorder.add_frame(simple(0, 0))
        with pytest.raises(ArgumentError, match="front"):
            recorder.add_frame({**simple(0, 1), FRONT: np.zeros((4, 4, 3), np.uint8)})
        with pytest.raises(ArgumentError, match=r"observation\.state"):
            recorder.add_frame({**simple(0, 1), "observation.state": [1, 2, np.nan]})
        recorder.add_frame(simple(0, 1))
        assert recorder.save_episode().frames == 2
    check(root, [2])


def test_recording_goes_on_where_it_ended(root):
    with create(root, fps=30, features=SIMPLE, vcodec="h264") as recorder:
        record(recorder, 0, 3)
    for episode in (1, 2):
        with resume(root, features=SIMPLE, fps=30) as recorder:
            assert recorder.num_episodes == episode
            record(recorder, episode, 2 + episode)
    check(root, [3, 3, 4])


OTHERWISE = [
    ({"fps": 31}, "fps is 30 there, 31 here"),
    ({"features": {"observation.state": STATE}}, "front' is there, not here"),
    ({"features": {**SIMPLE, "more": STATE}}, "more' is here, not there"),
    ({"features": {**SIMPLE, "observation.state": {**STATE, "dtype": "float64"}}}, "float64"),
    ({"features": {**SIMPLE, FRONT: {**CAMERA, "shape": (96, 64, 3)}}}, r"\(96, 64, 3\)"),
    ({"vcodec": "av1"}, "recorded as h264, not av1"),
]


def test_resuming_differently_is_refused_before_the_first_frame(root):
    with create(root, fps=30, features=SIMPLE, vcodec="h264") as recorder:
        record(recorder, 0, 2)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    for options, says in OTHERWISE:
        with pytest.raises(ArgumentError, match=says):
            resume(root, **options)
    after = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    assert {p: t for p, t in after.items() if ".demoreel" not in p.parts} == before
    with resume(root) as recorder:  # and nothing is locked
        record(recorder, 1, 2)
    check(root, [2, 2])


NOTED = [
    ("video.extra_options", {"x264-params": "dump-yuv={victim}"}),
    ("video.extra_options", {"x264-params": "psy=1:stats={victim}"}),
    ("video.extra_options", "x264-params=dump-yuv={victim}"),
    ("video.preset", "superfast:dump-yuv={victim}"),
    ("video.pix_fmt", "{victim}"),
    ("video.codec", {"h264": "{victim}"}),
    ("video.g", "2"),
    ("video.crf", 1e300),
]


def test_encoder_options_in_metadata_are_checked(root, tmp_path):
    with create(root, fps=30, features=SIMPLE, vcodec="h264") as recorder:
        record(recorder, 0, 2)
    victim = tmp_path / "bashrc"
    victim.write_text("mine")
    info = root / "meta" / "info.json"
    good = info.read_text()
    for name, value in NOTED:
        said = json.loads(good)
        hostile = json.loads(json.dumps(value).replace("{victim}", str(victim)))
        said["features"][FRONT]["info"][name] = hostile
        info.write_text(json.dumps(said))
        with pytest.raises(MetadataError, match=r"(?s)front.*info\.json.*video="):
            resume(root)
    assert victim.read_text() == "mine"
    with resume(root, video=VideoSettings(codec="h264", preset="ultrafast")) as recorder:
        assert recorder.num_episodes == 1


def test_a_folder_that_holds_something_is_left_alone(root):
    root.mkdir()
    (root / "mine.txt").write_text("mine")
    with pytest.raises(TargetExistsError, match="resume"):
        create(root, fps=30, features=SIMPLE)
    assert [path.name for path in root.iterdir()] == ["mine.txt"]


def test_what_cannot_be_encoded_leaves_nothing_behind(root):
    with pytest.raises(demoreel.errors.DemoreelError, match=r"(?i)codec|encode"):
        create(root, fps=30, features=SIMPLE, vcodec="no such codec")
    odd = {**SIMPLE, FRONT: {**CAMERA, "shape": (47, 63, 3)}}
    with pytest.raises(demoreel.errors.DemoreelError, match=r"47|63"):
        create(root, fps=30, features=odd, vcodec="h264")
    assert not root.exists()


@pytest.mark.parametrize("name", ["h264_nvenc", "hevc_nvenc", "h264_vaapi", "h264_qsv"])
def test_an_encoder_that_is_not_here_is_refused_before_anything_is_written(root, monkeypatch, name):
    problem = f"FFmpeg has no encoder {name!r} here."
    monkeypatch.setattr("demoreel.media.encode.encoder_problem", lambda _: problem)
    with pytest.raises(ArgumentError, match=f"no encoder '{name}'") as caught:
        create(root, fps=30, features=SIMPLE, vcodec=name)
    assert "vcodec='auto'" in str(caught.value)
    assert not root.exists()


def test_names_of_encoders(root):
    assert encoder_problem("libx264") is None
    assert "FFmpeg has no encoder 'h264_nothing'" in encoder_problem("h264_nothing")
    with pytest.raises(ArgumentError, match="did you mean 'h264_nvenc'"):
        create(root, fps=30, features=SIMPLE, vcodec="h264_nvenk")
    with create(root, fps=30, features=SIMPLE, vcodec="libx264") as recorder:
        record(recorder, 0, 2)
    assert demoreel.open(root).features[FRONT].info["video.codec"] == "h264"
    with pytest.raises(ArgumentError, match="recorded as h264, not hevc_nvenc"):
        resume(root, vcodec="hevc_nvenc")


@pytest.mark.parametrize(
    ("codec", "stored"), [("av1", "yuv420p"), ("hevc", "yuv420p"), ("h264", "yuv444p")]
)
def test_yuv444p_falls_back_where_lerobots_format_has_none(root, codec, stored):
    settings = VideoSettings(codec=codec, pix_fmt="yuv444p")
    warns = pytest.warns(DemoreelWarning, match="yuv420p") if stored == "yuv420p" else nullcontext()
    with warns:
        recorder = create(root, fps=30, features=SIMPLE, video=settings)
    with recorder:
        record(recorder, 0, 2)
    ds = check(root, [2])
    assert ds.features[FRONT].info["video.pix_fmt"] == stored


def test_an_episode_of_no_frames_is_not_saved(root):
    with create(root, fps=30, features=SIMPLE, vcodec="h264") as recorder:
        with pytest.raises(ArgumentError, match="no frames"):
            recorder.save_episode()
        record(recorder, 0, 1)
    check(root, [1])


def test_a_stall_is_in_the_data_and_in_the_report(root):
    ms = 1_000_000
    times = [1_700_000_000_000 * ms + number * 20 * ms for number in range(10)]
    times[6:] = [time + 50 * ms for time in times[6:]]
    with create(root, fps=50, features=SIMPLE, vcodec="h264") as recorder:
        for number, when in enumerate(times):
            recorder.add_frame(simple(0, number), captured_at=when)
        report = recorder.save_episode()
    assert [(gap.frame, round(gap.seconds, 6)) for gap in report.gaps] == [(6, 0.07)]
    assert report.late_frames == 1
    ds = demoreel.open(root)
    assert ds.capture_times(0).tolist() == times
    assert np.allclose(ds[0:10]["timestamp"], np.arange(10) / 50)


def test_statistics_are_those_of_all_that_was_recorded(root):
    with create(root, fps=10, features=EVERYTHING, vcodec="h264") as recorder:
        for episode, frames in enumerate((5, 2, 4)):
            record(recorder, episode, frames, everything)
    frames = [(e, n) for e, count in enumerate((5, 2, 4)) for n in range(count)]
    stats = demoreel.open(root).stats
    states = np.array([everything(*f)["observation.state"] for f in frames], np.float64)
    for name, value in (("min", states.min(0)), ("max", states.max(0)), ("mean", states.mean(0))):
        assert np.allclose(stats["observation.state"][name], value)
    assert np.allclose(stats["observation.state"]["std"], states.std(0))
    assert stats["observation.state"]["count"].tolist() == [11]
    assert np.allclose(stats["observation.state"]["q50"], np.quantile(states, 0.5, axis=0))
    for key in (FRONT, WRIST):
        pixels = np.array([everything(*f)[key] for f in frames]) / 255
        assert stats[key]["mean"].shape == (3, 1, 1)
        assert np.allclose(stats[key]["mean"].ravel(), pixels.mean((0, 1, 2)))
        assert np.allclose(stats[key]["std"].ravel(), pixels.std((0, 1, 2)))
        assert np.allclose(stats[key]["q90"].ravel(), np.quantile(pixels, 0.9, axis=(0, 1, 2)))
    deep = np.array([everything(*f)[DEEP] for f in frames], np.float64)
    assert np.allclose(stats[DEEP]["mean"].ravel(), deep.mean(), rtol=2e-3)
    assert np.allclose(stats[DEEP]["max"].ravel(), deep.max(), rtol=5e-3)


def test_what_is_finalized_records_no_more(root):
    recorder = create(root, fps=30, features=SIMPLE, vcodec="h264")
    record(recorder, 0, 2)
    recorder.finalize()
    recorder.finalize()
    with pytest.raises(ArgumentError, match=r"demoreel\.resume"):
        recorder.add_frame(simple(1, 0))


def test_two_recorders_of_one_dataset_are_one_too_many(root):
    with create(root, fps=30, features=SIMPLE, vcodec="h264") as recorder:
        record(recorder, 0, 2)
        with pytest.raises(demoreel.errors.DemoreelError, match=r"(?i)record|writ|lock"):
            resume(root)
        record(recorder, 1, 2)
    check(root, [2, 2])


def test_many_small_files_are_merged_at_the_end(root):
    with create(root, fps=30, features=SIMPLE, vcodec="h264") as recorder:
        for episode in range(7):
            record(recorder, episode, 2)
    check(root, [2] * 7)
    assert len(list(root.glob("data/*/*.parquet"))) == 1
    assert len(list(root.glob("videos/*/*/*.mp4"))) == 1
    assert len(list(root.glob("meta/episodes/*/*.parquet"))) == 1


@pytest.mark.parametrize("episodes", [1, 9])
def test_files_begin_at_number_000(root, episodes):
    with create(root, fps=30, features=SIMPLE, vcodec="h264") as recorder:
        for episode in range(episodes):
            record(recorder, episode, 2)
    first = [
        "data/chunk-000/file-000.parquet",
        "meta/demoreel/capture_times/chunk-000/file-000.parquet",
        "meta/demoreel/histograms/chunk-000/file-000.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        f"videos/{FRONT}/chunk-000/file-000.mp4",
    ]
    numbered = sorted(path.relative_to(root).as_posix() for path in root.rglob("file-*"))
    assert numbered == first
    with resume(root) as recorder:
        record(recorder, episodes, 2)
        record(recorder, episodes + 1, 3)
    check(root, [2] * (episodes + 1) + [3])
    assert {name for name in first if not (root / name).exists()} == set()


def stop_encoders(recorder):
    for process in recorder._encoders.encoder_processes.values():
        os.kill(process, signal.SIGSTOP)


def test_an_episode_whose_encoders_are_behind_is_saved_and_read_at_once(root):
    with create(root, fps=10, features=SIMPLE, vcodec="h264") as recorder:
        record(recorder, 0, 2)
        stop_encoders(recorder)
        reports = [record(recorder, episode, 8) for episode in (1, 2)]
        assert [(r.episode_index, r.pending) for r in reports] == [(1, True), (2, True)]
        assert recorder.pending_episodes == 2
        assert (recorder.num_episodes, recorder.num_frames) == (3, 18)
        said = recorder.info
        assert (said.total_episodes, said.total_frames, said.total_tasks) == (3, 18, 1)
        assert said.splits == {"train": "0:3"}
        check(root, [2, 8, 8], committed=1)
        for process in recorder._encoders.encoder_processes.values():
            os.kill(process, signal.SIGCONT)
    check(root, [2, 8, 8])


def test_depth_that_waits_from_an_earlier_version_has_its_own_unit(root):
    """Earlier versions stated no unit; what is recorded next must not state it for them."""
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_recorder import DEEP, SIMPLE, EVERYTHING, create, simple, stop_encoders
from pathlib import Path
import numpy as np
features = {{**SIMPLE, DEEP: {{**EVERYTHING[DEEP], "dtype": "image"}}}}
recorder = create(Path({str(root)!r}), fps=10, features=features, vcodec="h264")
stop_encoders(recorder)
for number in range(9):
    recorder.add_frame({{**simple(0, number), DEEP: np.full((48, 64), 1500, np.uint16)}})
assert recorder.save_episode().pending
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # The kill may have come before the commit of info.json was settled; its record has a checksum.
    roll_forward(root)
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    del info["features"][DEEP]["info"]["depth_unit"]
    path.write_text(json.dumps(info))
    with resume(root) as recorder:
        recorder.add_frame({**simple(1, 0), DEEP: np.full((48, 64), 2.5, np.float32)})
        recorder.save_episode()
    ds = demoreel.open(root)
    assert [ds[row][DEEP].max() for row in (0, 9)] == [1500, 2500]
    assert ds.info.features[DEEP].info["depth_unit"] == "mm"


@pytest.mark.soak
def test_what_was_saved_behind_survives_a_kill(root):
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_recorder import EVERYTHING, create, everything, record, stop_encoders
from pathlib import Path
recorder = create(Path({str(root)!r}), fps=10, features=EVERYTHING, vcodec="h264")
record(recorder, 0, 3, everything)
stop_encoders(recorder)
assert record(recorder, 1, 9, everything).pending
assert record(recorder, 2, 7, everything).pending
recorder.add_frame(everything(3, 0))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    check(root, [3, 9, 7], everything, committed=1)
    assert len(demoreel.finish(root).episodes) == 2
    ds = check(root, [3, 9, 7], everything)
    assert np.array_equal(ds[5][WRIST], everything(1, 2)[WRIST].transpose(2, 0, 1))
    assert ds[6]["note"] == everything(1, 3)["note"]
    assert demoreel.open(root).stats[WRIST]["count"].tolist() == [19]
    with resume(root) as recorder:
        record(recorder, 3, 2, everything)
    check(root, [3, 9, 7, 2], everything)

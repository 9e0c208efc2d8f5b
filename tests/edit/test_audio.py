"""Audio beside the frames of a dataset: it comes along, in time, or somebody is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import av
import numpy as np
import pytest

import demoreel
from demoreel.cli import main
from demoreel.errors import ArgumentError
from demoreel.testing import make_dataset
from support.defects.tools import add_audio, edit_info

CAMERA = "observation.images.cam0"
LENGTHS = [30, 24, 36]
CLICK = 0.2
"""Seconds after an episode's first frame at which its click is heard."""

STATED = {"has_audio": True, "audio.codec": "aac", "audio.sample_rate": 48000}


def loud(path: Path | str, *, fps: int = 30, rate: int = 48000) -> Path:
    """Give every video of a dataset audio: a click in every episode."""
    root = Path(path)
    for camera, name, begins in clips(root):
        add_audio(root / name, [begin + CLICK for begin in begins], rate=rate)
        stated = {**STATED, "audio.sample_rate": rate}
        edit_info(root, lambda info, c=camera, s=stated: info["features"][c]["info"].update(s))
    return root


def clips(root: Path) -> list[tuple[str, str, list[float]]]:
    """Return for each video its camera, its name, and the seconds at which episodes begin in it."""
    dataset = demoreel.open(root)
    reader, found = dataset._reader, {}
    for camera in reader.info.video_keys:
        for position in range(len(reader.episodes)):
            clip = reader.clip(position, camera)
            name = Path(clip.video.name).relative_to(root).as_posix()
            begin = float(clip.video.index.seconds[clip.first])
            found.setdefault((camera, name), []).append(begin)
    return [(camera, name, begins) for (camera, name), begins in found.items()]


def clicks_in(file) -> list[float]:
    """Return the seconds at which FFmpeg hears clicks."""
    with av.open(file) as container:
        if not container.streams.audio:
            return []
        parts = [
            (float(f.pts * f.time_base), f.to_ndarray()[0], f.sample_rate)
            for f in container.decode(container.streams.audio[0])
        ]
    loud = np.concatenate([at + np.flatnonzero(s > 0.4) / rate for at, s, rate in parts])
    return loud[np.concatenate([[True], np.diff(loud) > 0.02])].tolist() if len(loud) else []


def heard(root: Path | str, camera: str = CAMERA) -> list[list[float]]:
    """Return for each episode the seconds after its first frame at which a click is heard."""
    import io

    reader = demoreel.open(root)._reader
    found, known = [], {}
    for position in range(len(reader.episodes)):
        clip = reader.clip(position, camera)
        video = clip.video
        if video.name not in known:
            known[video.name] = clicks_in(io.BytesIO(video.file.read(0, video.file.size)))
        begin = float(video.index.seconds[clip.first])
        end = begin + int(reader.episodes.length[position]) / reader.info.fps
        found.append([c - begin for c in known[video.name] if begin - 0.005 <= c < end])
    return found


def said(root: Path | str, camera: str = CAMERA) -> dict:
    info = json.loads((Path(root) / "meta" / "info.json").read_text())
    return info["features"][camera]["info"]


def is_right(root: Path | str, episodes: int) -> None:
    found = heard(root)
    assert [len(clicks) for clicks in found] == [1] * episodes
    assert np.allclose(np.ravel(found), CLICK, atol=0.003)
    assert said(root)["has_audio"] is True
    assert said(root)["audio.codec"] == "aac"
    assert demoreel.check(root).worst in (None, "hint")


def make(path: Path, layout: str = "v3.0", **options) -> Path:
    given = {"episodes": LENGTHS, "cameras": {CAMERA: (32, 32)}, "gop": 6, "layout": layout}
    return make_dataset(path, **{**given, **options})


@pytest.fixture(scope="session")
def audible(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("audible")
    return {name: loud(make(folder / name, name)) for name in ("v3.0", "v2.1")}


@pytest.mark.parametrize(
    ("source", "to"),
    [("v2.1", "v3.0"), ("v3.0", "v2.1"), ("v3.0", "lance-video"), ("v2.1", "lance-native")],
)
def test_a_conversion_keeps_audio(audible, tmp_path, source, to):
    report = demoreel.convert(audible[source], tmp_path / "new", to=to)
    assert report.dropped == ()
    is_right(tmp_path / "new", 3)
    if to.startswith("lance"):
        demoreel.convert(tmp_path / "new", tmp_path / "back", to="v3.0")
        is_right(tmp_path / "back", 3)


@pytest.mark.parametrize("source", ["v3.0", "v2.1"])
@pytest.mark.parametrize("layout", ["v3.0", "v2.1", "lance-video"])
def test_a_cut_keeps_audio(audible, tmp_path, source, layout):
    made = demoreel.cut(audible[source]).delete([1]).trim(2, 3)
    exact = layout == "v2.1"
    done = made.render(tmp_path / "new", layout=layout, exact=exact)
    assert done.dropped == ()
    first, second = heard(tmp_path / "new")
    assert np.allclose([*first, *second], [CLICK, CLICK - 0.1], atol=0.003)
    assert said(tmp_path / "new")["has_audio"] is True


def test_frames_that_are_encoded_anew_keep_their_audio(audible, tmp_path):
    made = demoreel.cut(audible["v3.0"]).delete([0])
    made.render(tmp_path / "new", vcodec="h264", fps=15)
    is_right(tmp_path / "new", 2)


def test_audio_stays_with_its_frames_where_clips_get_shorter(audible, tmp_path):
    """At twice the rate, an episode of n frames has 2n - 1: a little of its audio has no place."""
    demoreel.cut(audible["v3.0"]).render(tmp_path / "new", vcodec="h264", fps=60)
    is_right(tmp_path / "new", 3)


def test_episodes_with_and_without_audio_stay_in_time(audible, tmp_path):
    silent = make(tmp_path / "silent")
    made = demoreel.cut(silent).merge(audible["v3.0"], silent)
    made.render(tmp_path / "new")
    found = heard(tmp_path / "new")
    assert [len(clicks) for clicks in found] == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert np.allclose([click for clicks in found for click in clicks], CLICK, atol=0.003)
    assert said(tmp_path / "new") == said(tmp_path / "new") | STATED
    assert not [f for f in demoreel.check(tmp_path / "new").findings if "audio" in f.code]


def test_audio_of_different_kinds_gets_videos_of_its_own(audible, tmp_path):
    other = loud(make(tmp_path / "other"), rate=44100)
    done = demoreel.cut(audible["v3.0"]).merge(other).render(tmp_path / "new")
    found = heard(tmp_path / "new")
    assert [len(clicks) for clicks in found] == [1] * 6
    assert np.allclose(np.ravel(found), CLICK, atol=0.003)
    assert any("audio.sample_rate" in what for what in done.dropped)
    assert "audio.sample_rate" not in said(tmp_path / "new")
    assert said(tmp_path / "new")["audio.codec"] == "aac"


def test_audio_is_dropped_when_that_is_wanted_and_info_says_so(audible, tmp_path):
    done = demoreel.cut(audible["v3.0"]).delete([0]).render(tmp_path / "new", drop_audio=True)
    assert any(CAMERA in what and "audio" in what for what in done.dropped)
    assert heard(tmp_path / "new") == [[], []]
    assert said(tmp_path / "new")["has_audio"] is False
    assert not any(name.startswith("audio.") for name in said(tmp_path / "new"))
    assert demoreel.check(tmp_path / "new").worst in (None, "hint")


def test_images_without_audio_must_be_asked_for(audible, tmp_path):
    with pytest.raises(ArgumentError, match=CAMERA) as error:
        demoreel.convert(audible["v3.0"], tmp_path / "new", to="lance-frames")
    assert "drop_audio=True" in str(error.value)
    assert not (tmp_path / "new").exists()
    report = demoreel.convert(audible["v3.0"], tmp_path / "new", to="lance-frames", drop_audio=True)
    assert any(CAMERA in what for what in report.dropped)
    assert said(tmp_path / "new")["has_audio"] is False


def test_layouts_that_copy_videos_whole_do_not_drop_audio(audible, tmp_path):
    with pytest.raises(ArgumentError, match="as they are"):
        demoreel.convert(audible["v3.0"], tmp_path / "new", to="lance-video", drop_audio=True)


@pytest.mark.parametrize("verb", ["cut", "convert", "repair"])
def test_audio_that_cannot_be_copied_is_refused(tmp_path, verb):
    """Two audio tracks: here, one whose table is broken."""
    root = loud(make(tmp_path / "source", "v2.1"))
    _, name, _ = clips(root)[0]
    data = (root / name).read_bytes()
    at = data.rindex(b"stsz")
    (root / name).write_bytes(data[: at + 12] + b"\xff" * 4 + data[at + 16 :])
    target = tmp_path / "new"

    def do(**options):
        if verb == "cut":
            return demoreel.cut(root).render(target, **options)
        if verb == "convert":
            return demoreel.convert(root, target, to="v3.0", **options)
        return demoreel.repair(root, target, **options)

    with pytest.raises(ArgumentError, match=CAMERA) as error:
        do()
    assert "drop_audio=True" in str(error.value)
    assert not target.exists()
    done = do(drop_audio=True)
    assert any("audio" in what for what in done.dropped)
    assert heard(target) == [[], [], []]
    assert said(target)["has_audio"] is False


def test_repair_keeps_audio(audible, tmp_path):
    shutil.copytree(audible["v3.0"], tmp_path / "broken")
    edit_info(tmp_path / "broken", lambda info: info.update(total_frames=7))
    demoreel.repair(tmp_path / "broken", tmp_path / "new")
    is_right(tmp_path / "new", 3)


def test_repair_sets_right_what_info_says_of_audio(audible, tmp_path):
    silent = make(tmp_path / "silent")
    edit_info(silent, lambda info: info["features"][CAMERA]["info"].update(STATED))
    assert "audio-missing" in {f.code for f in demoreel.check(silent).findings}
    done = demoreel.repair(silent, tmp_path / "new")
    assert any("has_audio" in what for what in done.changes)
    assert said(tmp_path / "new")["has_audio"] is False
    assert not any(name.startswith("audio.") for name in said(tmp_path / "new"))
    shutil.copytree(audible["v3.0"], tmp_path / "denied")
    denied = {"has_audio": False}
    edit_info(tmp_path / "denied", lambda info: info["features"][CAMERA]["info"].update(denied))
    assert "audio-undeclared" in {f.code for f in demoreel.check(tmp_path / "denied").findings}
    demoreel.repair(tmp_path / "denied", tmp_path / "admitted")
    is_right(tmp_path / "admitted", 3)


def test_other_tracks_are_named(audible, tmp_path):
    shutil.copytree(audible["v3.0"], tmp_path / "source")
    _, name, _ = clips(tmp_path / "source")[0]
    path = tmp_path / "source" / name
    path.write_bytes(path.read_bytes().replace(b"soun", b"tmcd"))
    done = demoreel.cut(tmp_path / "source").delete([0]).render(tmp_path / "new")
    assert f"{CAMERA}: a timecode track, of 1 video" in done.dropped


def test_the_command_says_what_is_dropped(audible, tmp_path, capsys):
    arguments = ["cut", "delete", str(audible["v3.0"]), "-e", "0", "--drop-audio"]
    assert main([*arguments, str(tmp_path / "a"), "--dry-run"]) == 0
    assert "to be dropped" in capsys.readouterr().out
    assert main([*arguments, str(tmp_path / "a")]) == 0
    assert "dropped: " in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "b"), "--json"]) == 0
    assert any(CAMERA in what for what in json.loads(capsys.readouterr().out)["dropped"])

"""Defects of the videos that show without decoding."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.defects.registry import defect
from support.defects.tools import (
    EPISODES,
    FRONT_VIDEO,
    add,
    add_audio,
    cut_off,
    edit_column,
    edit_info,
    film,
    put,
    remux,
)
from support.moving import make_anew

_FRONT = "observation.images.front"
_FROM, _TO = f"videos/{_FRONT}/from_timestamp", f"videos/{_FRONT}/to_timestamp"
_V2_VIDEO = f"videos/chunk-000/{_FRONT}/episode_000000.mp4"


@defect("video-missing")
def video_missing(root: Path) -> None:
    (root / FRONT_VIDEO).rename(root / "videos" / "aside.bin")


@defect("video-missing", on="v2")
def video_of_an_episode_missing(root: Path) -> None:
    (root / _V2_VIDEO).unlink()


@defect("video-empty")
def video_of_no_bytes(root: Path) -> None:
    (root / FRONT_VIDEO).write_bytes(b"")


@defect("video-unfinished")
def video_without_its_end(root: Path) -> None:
    cut_off(root / FRONT_VIDEO, keep=0.5)


@defect("video-truncated")
def video_cut_off(root: Path) -> None:
    remux(root / FRONT_VIDEO, index_first=True)
    cut_off(root / FRONT_VIDEO, keep=0.9)


@defect("video-unreadable")
def video_of_noise(root: Path) -> None:
    (root / FRONT_VIDEO).write_bytes(b"this is no video" * 64)


@defect("keyframes-far", on="v3-film")
def keyframes_of_films(root: Path) -> None:
    make_anew(root, lengths=(40, 300), films=True, gop=200)


@defect("video-codec")
def codec_declared_wrong(root: Path) -> None:
    edit_info(root, lambda info: info["features"][_FRONT]["info"].update({"video.codec": "av1"}))


@defect("video-pix-fmt")
def pixel_format_declared_wrong(root: Path) -> None:
    wrong = {"video.pix_fmt": "yuv444p"}
    edit_info(root, lambda info: info["features"][_FRONT]["info"].update(wrong))


@defect("video-size", also=("camera-declared-twice",))
def size_declared_wrong(root: Path) -> None:
    edit_info(root, lambda info: info["features"][_FRONT].update(shape=[48, 64, 3]))


@defect("video-size")
def video_of_another_size(root: Path) -> None:
    film(root / FRONT_VIDEO, 36, size=(32, 48))


@defect("video-fps", on="v2")
def video_of_another_rate(root: Path) -> None:
    film(root / _V2_VIDEO, 12, fps=15)


@defect("video-uneven-clock", on="v3-files")
def video_with_a_pause(root: Path) -> None:
    remux(root / FRONT_VIDEO, retime=lambda _, frame: frame + 3 * (frame > 5))


@defect("video-short")
def video_too_short(root: Path) -> None:
    film(root / FRONT_VIDEO, 34)


@defect("video-short", on="v2")
def video_of_an_episode_too_short(root: Path) -> None:
    film(root / _V2_VIDEO, 11)


@defect("video-long")
def video_too_long(root: Path) -> None:
    film(root / FRONT_VIDEO, 40)


@defect("video-long", on="v2")
def video_of_an_episode_too_long(root: Path) -> None:
    film(root / _V2_VIDEO, 15)


@defect("video-gap")
def frames_between_episodes(root: Path) -> None:
    film(root / FRONT_VIDEO, 41)
    for name in (_FROM, _TO):
        edit_column(root / EPISODES, name, add(5 / 30, slice(1, None)))


@defect("video-orphan")
def video_not_in_metadata(root: Path) -> None:
    shutil.copy(root / FRONT_VIDEO, (root / FRONT_VIDEO).with_name("file-007.mp4"))


@defect("audio-missing")
def audio_that_is_not_there(root: Path) -> None:
    edit_info(root, lambda info: info["features"][_FRONT]["info"].update({"has_audio": True}))


@defect("audio-missing", on="lance-video")
def audio_that_is_not_in_the_table(root: Path) -> None:
    audio_that_is_not_there(root)


@defect("audio-undeclared")
def audio_that_is_denied(root: Path) -> None:
    add_audio(root / FRONT_VIDEO)
    edit_info(root, lambda info: info["features"][_FRONT]["info"].update({"has_audio": False}))


@defect("audio-short")
def audio_that_ends_early(root: Path) -> None:
    add_audio(root / FRONT_VIDEO, seconds=0.05)
    edit_info(root, lambda info: info["features"][_FRONT]["info"].update({"has_audio": True}))


@defect("clip-past-end")
def episode_behind_the_end(root: Path) -> None:
    for name in (_FROM, _TO):
        edit_column(root / EPISODES, name, add(100.0, slice(2, 3)))


@defect("clip-overlap")
def episodes_share_a_frame(root: Path) -> None:
    for name in (_FROM, _TO):
        edit_column(root / EPISODES, name, add(-1 / 30, slice(1, None)))


@defect("clip-inside")
def episode_in_the_middle_of_another(root: Path) -> None:
    for name in (_FROM, _TO):
        edit_column(root / EPISODES, name, add(-6 / 30, slice(2, 3)))


@defect("clip-between-frames")
def episode_between_frames(root: Path) -> None:
    for name in (_FROM, _TO):
        edit_column(root / EPISODES, name, add(0.5 / 30, slice(1, None)))


@defect("clip-ambiguous", also=("video-uneven-clock", "clip-between-frames"))
def clock_and_lengths_disagree(root: Path) -> None:
    """The video pauses for two seconds inside an episode; the seconds do not know of it."""
    film(root / FRONT_VIDEO, 60)
    remux(root / FRONT_VIDEO, retime=lambda _, frame: frame + 60 * (frame >= 6))


@defect("clip-length")
def seconds_of_another_length(root: Path) -> None:
    edit_column(root / EPISODES, _TO, add(-4 / 30, slice(1, 2)))


@defect("clip-end")
def end_off_by_a_frame(root: Path) -> None:
    edit_column(root / EPISODES, _TO, add(-1 / 30, slice(0, None)))


@defect("clip-drift")
def seconds_that_drift(root: Path) -> None:
    edit_column(root / EPISODES, _FROM, add(0.0008, slice(1, None)))
    edit_column(root / EPISODES, _TO, add(0.0008, slice(0, None)))


@defect("clip-value")
def seconds_not_a_number(root: Path) -> None:
    edit_column(root / EPISODES, _FROM, put(1, float("nan")))


@defect("clip-value")
def seconds_backwards(root: Path) -> None:
    edit_column(root / EPISODES, _TO, put(1, 0.0))


@defect("video-missing", also=("video-long",))
def video_file_index_wrong(root: Path) -> None:
    edit_column(root / EPISODES, f"videos/{_FRONT}/file_index", put(2, 5))

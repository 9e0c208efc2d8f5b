"""Checks of the videos by their packet tables: no frame is decoded."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from demoreel.check.catalogue import CODES
from demoreel.check.clips import check_clips
from demoreel.check.codes import code_for
from demoreel.check.look import Look, report_missing
from demoreel.check.rows import cores
from demoreel.errors import VideoError, count
from demoreel.media.audio import tracks_of
from demoreel.media.video import Codec, Video, open_video
from demoreel.model import Feature

OpenVideo = Callable[[str, np.ndarray], Video | None]
"""Opens a video by its name, for the episodes at these positions; None if it cannot be opened."""

_ALIASES = {
    "libdav1d": "av1", "libaom": "av1", "libaom-av1": "av1", "libsvtav1": "av1", "av01": "av1",
    "libx264": "h264", "avc1": "h264", "avc": "h264", "h264_nvenc": "h264",
    "libx265": "hevc", "h265": "hevc", "hvc1": "hevc", "hev1": "hevc", "hevc_nvenc": "hevc",
    "libvpx-vp9": "vp9", "vp09": "vp9", "mp4v": "mpeg4",
}  # fmt: skip

_PIXELS_A_SECOND = {"h264": 4e8, "hevc": 2.5e8, "av1": 2.5e8, "vp9": 2.5e8}
_SLOW = 2e8
_CHROMA = ("grey", "4:2:0", "4:2:2", "4:4:4")
_DECLARED = re.compile(r"(?:yuvj?(420|422|444)p|(gray))(9|10|12|14|16)?(?:le|be)?")
_SUBSAMPLING = {"420": 1, "422": 2, "444": 3}
_NV12 = {"nv12": (1, 8), "nv21": (1, 8), "p010le": (1, 10), "gbrp": (3, 8)}
_PLAIN_H264 = (66, 77, 88)  # baseline, main and extended: 8 bits of 4:2:0


def check_videos(look: Look) -> None:
    """Check that every video is there, whole, as declared, and holds its episodes' frames.

    Cost: one or two small reads a video; a full read of those that are no ordinary mp4.
    """
    if look.info is None or look.layout is None or look.is_lance or look.episodes is None:
        return
    named: set[str] = set()
    count = 0
    for camera in look.video_cameras:
        files = list(look.video_files(camera))
        named.update(name for name, _ in files)
        if not files:
            look.misplaced.add(camera)  # nothing says which video is whose, which is a finding
        missing = {name: places for name, places in files if look.files.get(name, -1) < 0}
        if missing and camera not in look.misplaced:
            report_missing(look, "video-missing", "video", missing, len(files), camera=camera)
        count += check_camera(look, camera, files, _opener(look, camera))
    look.facts["videos"] = count
    if look.misplaced - {None} or not look.episodes.is_whole:
        return
    named.update(name for names in look.added.values() for name in names)
    for name, size in look.files.items():
        if name.endswith(".mp4") and name not in named:
            look.found("video-orphan", f"It has {size} bytes.", file=name)


def check_camera(
    look: Look, camera: str, files: list[tuple[str, np.ndarray]], opened: OpenVideo
) -> int:
    """Check all videos of one camera, some at a time; return how many could be opened."""
    assert look.info is not None
    feature = look.info.features[camera]
    declared = feature.info.get("video.fps")
    found_before = look.findings.counts["video-fps"]

    def check_one(item: tuple[str, np.ndarray]) -> _Seen | None:
        name, positions = item
        video = opened(name, positions)
        if video is None:
            return None
        _check_as_declared(look, feature, name, video)
        check_clips(look, camera, name, positions, video)
        return _Seen(name, _check_audio(look, feature, name, video), *_keyframes(video))

    with ThreadPoolExecutor(cores()) as pool:
        seen = [found for found in pool.map(check_one, files) if found is not None]
    declares_other = isinstance(declared, int | float) and not _fits(look, declared)
    if declares_other and look.findings.counts["video-fps"] == found_before:
        look.found(  # else it is what its videos have
            "video-fps",
            f"info.json says {declared:g} fps of the camera, {look.info.fps:g} of the dataset.",
            camera=camera,
        )
    if feature.info.get("has_audio") is True and seen and not any(one.is_heard for one in seen):
        look.found("audio-missing", f"None of {len(seen)} has an audio track.", camera=camera)
    _check_keyframes(look, feature, seen)
    return len(seen)


class _Seen(NamedTuple):
    """What a video tells the checks of its camera.

    Attributes:
        name: The video.
        is_heard: Whether it has audio.
        apart: The most frames from keyframe to keyframe.
        decoded: Frames that are decoded for a random one, on average.
        rate: Such frames that a core decodes in a second, roughly.
    """

    name: str
    is_heard: bool
    apart: int
    decoded: float
    rate: float


def _keyframes(video: Video) -> tuple[int, float, float]:
    start, codec = video.index.start_of, video.index.codec
    packets = np.arange(len(start))
    apart = np.diff(np.append(np.flatnonzero(start == packets), len(packets)))
    pixels = max(1, codec.height * codec.width)
    rate = _PIXELS_A_SECOND.get(_plain(codec.name), _SLOW) / pixels
    needed = float((packets - start + 1).mean()) if len(packets) else 0.0
    return int(apart.max(initial=0)), needed, rate


def _check_keyframes(look: Look, feature: Feature, seen: list[_Seen]) -> None:
    """Report a camera of which every random frame costs many; depth is not encoded anew."""
    least = look.thresholds["keyframe_frames"]
    far = [one for one in seen if one.decoded > least / 2]
    if not far or feature.is_depth:
        return
    worst = max(far, key=lambda one: one.decoded)
    layout = {"v2.0": "v2.1", "v3.0": None}.get(str(look.layout), look.layout)
    assert look.episodes is not None
    command = (CODES["keyframes-far"].command or "").replace(
        "0:N", f"0:{look.episodes.index[-1] + 1}"
    )
    look.found(
        "keyframes-far",
        f"They are up to {worst.apart} frames apart in {len(far)} of {count(len(seen), 'video')}: "
        f"a random frame takes {worst.decoded:.0f} decoded ones, roughly "
        f"{_few(worst.rate / worst.decoded)} samples a second on a core. With a keyframe every 2 "
        f"frames it is {_few(worst.rate / 1.5)}.",
        camera=feature.key,
        file=worst.name,
        command=command + (f" --layout {layout}" if layout else ""),
    )


def _few(number: float) -> str:
    """Return a number of which only the size is known: two digits of it."""
    return f"{float(f'{number:.2g}'):,.0f}"


def _check_audio(look: Look, feature: Feature, name: str, video: Video) -> bool:
    where: dict[str, Any] = {"camera": feature.key, "file": name}
    try:
        tracks = tracks_of(video)
    except VideoError as error:
        look.found("video-unreadable", error.what, **where)
        return False
    if not tracks.has_audio:
        return False
    if feature.info.get("has_audio") is False:
        look.found("audio-undeclared", "It has an audio track.", **where)
    if tracks.audio is not None and len(video.index.seconds):
        end = float(video.index.seconds[-1])
        if end - tracks.audio.seconds > look.thresholds["audio_short_s"]:
            look.found(
                "audio-short",
                f"Audio ends at {tracks.audio.seconds:.1f} s; the last frame is at {end:.1f} s.",
                **where,
            )
    return True


def _opener(look: Look, camera: str) -> OpenVideo:
    def opened(name: str, positions: np.ndarray) -> Video | None:
        assert look.episodes is not None
        where = {"camera": camera, "file": name, "episode": look.episodes.index[positions[0]]}
        size = look.files.get(name)
        if size is None or size < 0 or name in look.pointers:
            return None  # reported, all of them together
        if size == 0:
            look.found(
                "video-empty", f"It should hold {count(len(positions), 'episode')}.", **where
            )
            return None
        try:
            return open_video(look.root / name)
        except VideoError as error:
            look.found(code_for(error, "video-unreadable"), error.what, **where)
            return None

    return opened


def _check_as_declared(look: Look, feature: Feature, name: str, video: Video) -> None:
    codec = video.index.codec
    where: dict[str, Any] = {"camera": feature.key, "file": name}
    height, width, _ = feature.image_shape
    if (codec.height, codec.width) != (height, width):
        look.found(
            "video-size",
            f"Its frames are {codec.height} x {codec.width}; declared are {height} x {width}.",
            **where,
        )
    said, stored = feature.info.get("video.codec"), _plain(codec.name)
    if isinstance(said, str) and _plain(said) != stored:
        look.found("video-codec", f"It is {stored}; declared is {said[:40]}.", **where)
    pix_fmt = feature.info.get("video.pix_fmt")
    wanted = declared_format(pix_fmt) if isinstance(pix_fmt, str) else None
    found = stored_format(codec)
    if wanted is not None and found is not None and wanted != found:
        look.found("video-pix-fmt", f"It has {found}; declared is {pix_fmt}, {wanted}.", **where)
    _check_clock(look, feature.key, name, video.index.seconds)


def _plain(name: str) -> str:
    return _ALIASES.get(name.lower(), name.lower())


def _check_clock(look: Look, camera: str, name: str, seconds: np.ndarray) -> None:
    assert look.info is not None
    if len(seconds) < 2:
        return
    steps = np.diff(seconds)
    step = float(np.median(steps))
    rate = 1 / step if step > 0 else float("inf")
    if not _fits(look, rate):
        look.found(
            "video-fps",
            f"It runs at {rate:.5g} fps; the dataset's rate is {look.info.fps:g}.",
            camera=camera,
            file=name,
        )
        return
    uneven = np.flatnonzero(np.abs(steps - step) > look.thresholds["clock_slack"] * step)
    if len(uneven):
        at = int(uneven[0])
        many = f" {len(uneven):,} frames are such." if len(uneven) > 1 else ""
        look.found(
            "video-uneven-clock",
            f"Frame {at + 1} comes {steps[at] * 1000:.1f} ms after the one before; "
            f"{step * 1000:.1f} ms is usual.{many}",
            camera=camera,
            file=name,
            frame=at + 1,
        )


def _fits(look: Look, rate: float) -> bool:
    """Whether a video's rate is the dataset's, or (but for v2) a multiple of it.

    Of a video that was filmed at a multiple, every so many frames belong to the episode.
    """
    assert look.info is not None
    times = rate / look.info.fps
    nearest = 1 if look.is_v2 else max(1, round(min(times, 1e6)))
    return abs(times / nearest - 1) <= look.thresholds["fps_slack"]


def is_codec(said: str, stored: str) -> bool:
    """Whether a declared codec is the stored one, whatever its encoder or its box is called."""
    return _plain(said) == _plain(stored)


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """How colours are sampled, and how many bits they have."""

    chroma: int
    bits: int

    def __str__(self) -> str:
        return f"{_CHROMA[self.chroma]} of {self.bits} bits"


def declared_format(name: str) -> PixelFormat | None:
    """Return what a pixel format's name says; None for names that are not known here."""
    if name in _NV12:
        return PixelFormat(*_NV12[name])
    match = _DECLARED.fullmatch(name)
    if match is None:
        return None
    chroma = 0 if match[2] else _SUBSAMPLING[match[1]]
    return PixelFormat(chroma, int(match[3] or 8))


def stored_format(codec: Codec) -> PixelFormat | None:
    """Return what a codec's header says; None where it does not."""
    header = codec.extradata or b""
    try:
        if codec.name == "libdav1d":
            return _av1(header)
        if codec.name == "hevc" and header[0] == 1:
            return PixelFormat(header[16] & 3, (header[17] & 7) + 8)
        if codec.name == "h264" and header[0] == 1:
            return _h264(header)
    except IndexError:
        pass
    return None


def _av1(header: bytes) -> PixelFormat:
    flags = header[2]
    bits = (12 if flags & 0x20 else 10) if flags & 0x40 else 8
    if flags & 0x10:
        return PixelFormat(0, bits)
    across, down = flags & 0x08, flags & 0x04
    return PixelFormat(1 if down else 2 if across else 3, bits)


def _h264(header: bytes) -> PixelFormat | None:
    """Baseline to main are 8 bits of 4:2:0; higher profiles say so behind their parameter sets."""
    if header[1] in _PLAIN_H264:
        return PixelFormat(1, 8)
    at = 6
    for _ in range(header[5] & 31):
        at += 2 + int.from_bytes(header[at : at + 2], "big")
    count, at = header[at], at + 1
    for _ in range(count):
        at += 2 + int.from_bytes(header[at : at + 2], "big")
    return PixelFormat(header[at] & 3, (header[at + 1] & 7) + 8)

"""Every frame that is there, and which video it lies in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from demoreel.errors import DemoreelError, VideoError, refuse_shortage
from demoreel.media import mp4
from demoreel.media.audio import AudioSpan, spans_of_frames, tracks_of
from demoreel.media.mp4 import read_description
from demoreel.media.mp4_write import PacketRun, write_packets
from demoreel.media.video import Video, open_video
from demoreel.storage.local import LocalFile, open_file
from demoreel.storage.store import ReadsNow

_V3 = re.compile(r"(?:^|/)([^/]+)/chunk-(\d+)/file-(\d+)\.mp4$")
_V2 = re.compile(r"(?:^|/)chunk-(\d+)/([^/]+)/episode_(\d+)\.mp4$")

Place = tuple[int, int]
"""Chunk and number of a video, as its name says; of v2, 0 and the episode."""


@dataclass(frozen=True, slots=True)
class FoundVideo:
    """A video that opens.

    Attributes:
        name: Its path below the dataset's folder.
        path: Where it can be read: there, or what could be saved of it elsewhere.
        frames: How many it has.
        seconds: When each is shown.
    """

    name: str
    path: Path
    frames: int
    seconds: np.ndarray


@dataclass
class RepairVideos:
    """What was found.

    Attributes:
        of: The videos of each camera, by place.
        mended: What was done to get at frames.
        lost: What could not be read, and why.
    """

    of: dict[str, dict[Place, FoundVideo]]
    mended: list[str]
    lost: list[str]


def find_videos(
    root: Path, files: Mapping[str, int], cameras: Iterable[str], fps: float, scratch: Path
) -> RepairVideos:
    """Open every video of these cameras, wherever in the dataset it lies.

    Cost: reads the videos' tables of packets. What is saved of damaged ones goes to ``scratch``.
    """
    wanted = set(cameras)
    found = RepairVideos({camera: {} for camera in sorted(wanted)}, [], [])
    for name in sorted(files):
        known = _camera_and_place(name)
        if known is None or known[0] not in wanted:
            continue
        camera, place = known
        target = scratch / f"{len(found.mended)}.mp4"
        video = _opened(root / name, name, fps, target, found)
        if video is not None and place not in found.of[camera]:
            found.of[camera][place] = video
    return found


def cameras_on_disk(files: Iterable[str]) -> set[str]:
    """Return the names of cameras that have videos."""
    known = (_camera_and_place(name) for name in files)
    return {camera for camera, _ in (one for one in known if one is not None)}


def _camera_and_place(name: str) -> tuple[str, Place] | None:
    if match := _V3.search(name):
        return match[1], (int(match[2]), int(match[3]))
    if match := _V2.search(name):
        return match[2], (0, int(match[3]))
    return None


def _opened(
    path: Path, name: str, fps: float, target: Path, found: RepairVideos
) -> FoundVideo | None:
    try:
        video = open_video(path)
        return FoundVideo(name, path, video.index.frames, video.index.seconds)
    except DemoreelError as error:
        refuse_shortage(error)
        saved = _saved(path, fps, target)
        if saved is None:
            found.lost.append(f"{name}: {error.what}")
            return None
        video = open_video(target)
        kept = f"{saved} frames before its end was cut off were kept"
        if _has_audio(path) and not tracks_of(video).has_audio:
            kept += ", its audio was not"
        found.mended.append(f"{name}: {kept}")
        return FoundVideo(name, target, video.index.frames, video.index.seconds)


def _has_audio(path: Path) -> bool:
    try:
        found = mp4.read_tracks(_Longer(open_file(path)), name=str(path))
    except (VideoError, OSError):
        return False
    return found is not None and found.has_audio


class _Longer(ReadsNow):
    """A file that is cut off, as it was announced: what is missing is zeros."""

    size = 1 << 48

    def __init__(self, file: LocalFile) -> None:
        self._file = file

    @property
    def identity(self) -> tuple[object, ...]:
        """Changes when the bytes do."""
        return ("longer", *self._file.identity)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there; beyond the file's end there are none."""
        return self._file.read(offset, length)


def _saved(path: Path, fps: float, target: Path) -> int | None:
    """Write the packets that are whole, from the start to the first that is not, to another file.

    Possible where the table of packets comes first. Returns how many frames that are.
    """
    try:
        file = open_file(path)
        index = mp4.read_index(_Longer(file), name=str(path))
        if index is None:
            return None
        description = read_description(file, name=str(path))
        whole = index.offset + index.size <= file.size
        count = len(whole) if whole.all() else int(np.argmin(whole))
        if description is None or not count or index.has_leading:
            return None
        frames = index.frame_of[:count]
        shown = int((np.sort(frames[frames >= 0]) == np.arange((frames >= 0).sum())).sum())
        if shown != count:
            return None  # images are shown in another order; which are whole is not so simple
        video = Video(str(path), _Longer(file), index)
        run = PacketRun(video, np.arange(count))
        audio = _whole_audio(run, file.size, fps)
        write_packets(target, [run], description=description, fps=fps, audio=audio)
    except (VideoError, OSError) as error:
        refuse_shortage(error)
        return None
    return count


def _whole_audio(run: PacketRun, size: int, fps: float) -> list[AudioSpan]:
    """Return the audio beside some frames, up to its first packet behind the file's end."""
    audio = tracks_of(run.video).audio
    if audio is None or not len(audio.size):
        return []
    cut = audio.offset + audio.size > size
    end = float(audio.begin[np.argmax(cut)]) / audio.scale if cut.any() else audio.seconds
    spans = spans_of_frames(run.video, run.frames(), fps=fps, first=0)
    kept = (replace(span, end=min(span.end, end)) for span in spans if span.is_even)
    return [span for span in kept if span.end > span.begin]

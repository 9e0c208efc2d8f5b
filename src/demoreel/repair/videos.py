"""Every frame that is there, and which video it lies in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from demoreel.errors import DemoreelError, VideoError, refuse_shortage
from demoreel.media import mp4
from demoreel.media.audio import AudioSpan, spans_of_frames, tracks_of
from demoreel.media.mp4 import read_description
from demoreel.media.mp4_write import PacketRun, write_packets
from demoreel.media.video import Video, open_video
from demoreel.repair.report import Changes
from demoreel.storage.local import LocalFile, open_file
from demoreel.storage.store import ReadsNow

_CHUNK = re.compile(r"chunk-(\d+)")
_FILE = {True: re.compile(r"episode[-_](\d+)\.mp4"), False: re.compile(r"file[-_](\d+)\.mp4")}
_ROOTS = ("videos", "video")

_SAME_RATE = 0.01
_EVEN = 0.5  # of a frame

Place = tuple[int, int]
"""Chunk and number of a video, as its name says; of v2, the number is the episode's."""


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

    @property
    def rate(self) -> float | None:
        """Frames per second, by its own clock; None where that does not tell."""
        steps = np.diff(self.seconds)
        step = float(np.median(steps)) if len(steps) else 0.0
        return 1 / step if step > 0 else None

    def runs_at(self, fps: float) -> bool:
        """Whether every frame is shown for one frame's time at this rate."""
        steps = np.diff(self.seconds)
        return self.rate is None or bool(
            abs(self.rate / fps - 1) <= _SAME_RATE and (np.abs(steps * fps - 1) <= _EVEN).all()
        )


@dataclass
class RepairVideos:
    """What was found.

    Attributes:
        of: The videos of each camera, by place.
        changes: Takes what was done to get at frames.
        lost: What could not be read, and why.
        damaged: Where videos lie that could not be opened.
    """

    of: dict[str, dict[Place, FoundVideo]]
    changes: Changes
    lost: list[tuple[str, str]] = field(default_factory=list)
    damaged: dict[str, dict[Place, str]] = field(default_factory=dict)

    def episode_place(self, camera: str, place: Place) -> Place | None:
        """Return where the video of an episode of v2 lies, whose table lies at this place."""
        found = self.of[camera]
        if place in found:
            return place
        same = [other for other in found if other[1] == place[1]]
        return same[0] if len(same) == 1 else None


def find_videos(
    root: Path,
    files: Mapping[str, int],
    cameras: Iterable[str],
    scratch: Path,
    changes: Changes,
    *,
    is_v2: bool,
    fps: Callable[[RepairVideos], float],
) -> tuple[RepairVideos, float]:
    """Open every video of these cameras, wherever in the dataset it lies.

    Cost: reads the videos' tables of packets. What is saved of damaged ones goes to ``scratch``.

    Args:
        root: The dataset's folder.
        files: The files in it, by name, with their sizes.
        cameras: The cameras.
        scratch: A folder to write to.
        changes: Takes what was done to get at frames.
        is_v2: Whether videos have the names of v2.
        fps: Tells the dataset's rate, once the videos that are whole have been opened.

    Returns:
        The videos, and the rate.
    """
    found = RepairVideos({camera: {} for camera in sorted(set(cameras))}, changes)
    damaged: list[tuple[str, str, Place, DemoreelError]] = []
    for name, (camera, place) in sorted(named_videos(files, cameras, is_v2=is_v2).items()):
        if camera not in found.of:
            continue
        try:
            video = open_video(root / name)
        except DemoreelError as error:
            refuse_shortage(error)
            damaged.append((name, camera, place, error))
            continue
        opened = FoundVideo(name, root / name, video.index.frames, video.index.seconds)
        found.of[camera].setdefault(place, opened)
    rate = fps(found)
    for number, (name, camera, place, wrong) in enumerate(damaged):
        saved = _rescued(root / name, name, rate, scratch / f"{number}.mp4", found)
        if saved is not None:
            found.of[camera].setdefault(place, saved)
            continue
        found.lost.append((name, wrong.what))
        found.damaged.setdefault(camera, {})[place] = name
    return found, rate


def named_videos(
    files: Iterable[str], cameras: Iterable[str], *, is_v2: bool
) -> dict[str, tuple[str, Place]]:
    """Return whose videos these files are, by their paths, in whatever order the folders are.

    Where a camera has no folder of its own, one of its last name is taken for it; where there is
    one camera, so are videos in none.
    """
    own, loose = set(cameras), dict[str, tuple[list[str], Place]]()
    found: dict[str, tuple[str, Place]] = {}
    for name in files:
        *folders, file = name.split("/")
        match = _FILE[is_v2].fullmatch(file)
        chunks = [int(chunk[1]) for folder in folders if (chunk := _CHUNK.fullmatch(folder))]
        if match is None or not (chunks or is_v2):
            continue
        place = (chunks[-1] if chunks else 0, int(match[1]))
        others = [f for f in reversed(folders) if not _CHUNK.fullmatch(f)]
        camera = next((folder for folder in others if folder in own), None)
        if camera is None:
            loose[name] = [f for f in others if f not in _ROOTS], place
        else:
            found[name] = camera, place
    bare = own - {camera for camera, _ in found.values()}
    for name, (others, place) in loose.items():
        meant = [key for key in bare if not others or key.rpartition(".")[2] == others[0]]
        if len(meant) == 1 and (others or len(own) == 1):
            found[name] = meant[0], place
        elif others:
            found[name] = others[0], place
    return found


def _rescued(
    path: Path, name: str, fps: float, target: Path, found: RepairVideos
) -> FoundVideo | None:
    """Return what could be saved of a video that does not open."""
    saved = _saved(path, fps, target)
    if saved is None:
        return None
    video = open_video(target)
    kept = "{n} frames before its end was cut off were kept"
    if has_audio(path) and not tracks_of(video).has_audio:
        kept += ", its audio was not"
    found.changes.add(kept, name, amount=saved)
    return FoundVideo(name, target, video.index.frames, video.index.seconds)


def has_audio(path: Path) -> bool:
    """Whether a video has an audio track; it may be cut off."""
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

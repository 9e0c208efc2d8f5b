"""Which packets make which clip, and which video each goes to: planned before a byte is copied.

A clip may begin at any frame. Where that lies inside a group of pictures, the packets from its
keyframe on are carried with it; no episode names them, and the episode's own frames follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from demoreel.errors import FrameMismatchError, VideoError
from demoreel.layouts.base import Clip as Place
from demoreel.layouts.base import Reader
from demoreel.media.mp4 import Description, read_description
from demoreel.media.mp4_write import PacketRun, signature
from demoreel.media.packets import PacketIndex
from demoreel.media.splice import begins_anew, with_lead_in
from demoreel.media.video import Video
from demoreel.model import Info
from demoreel.storage.local import LocalFile

_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shot:
    """A clip as one camera sees it.

    Attributes:
        source: Number of its source.
        position: Where its episode stands there.
        start: Its first frame in the episode.
        stop: One past its last.
    """

    source: int
    position: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Run:
    """Packets ``first`` to ``stop`` - 1 of the video that the episode at ``position`` lies in."""

    source: int
    position: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class VideoOut:
    """One video to be written.

    Attributes:
        camera: Its camera.
        chunk: Its ``chunk_index``.
        file: Its ``file_index``.
        runs: What it is made of, in order.
        description: How its packets are described.
        frames: How many it will have.
        size: Bytes of its packets.
        seen: Size and time of each source video, to notice changes.
        episode: The first episode in it.
    """

    camera: str
    chunk: int
    file: int
    runs: tuple[Run, ...]
    description: Description
    frames: int
    size: int
    seen: tuple[tuple[object, ...], ...]
    episode: int

    def path(self, info: Info) -> str:
        """Return where it goes, relative to the dataset."""
        assert info.video_path is not None
        if info.version.startswith("v2"):
            chunk = self.episode // info.chunks_size
            return info.video_path.format(
                video_key=self.camera, episode_chunk=chunk, episode_index=self.episode
            )
        return info.video_path.format(
            video_key=self.camera, chunk_index=self.chunk, file_index=self.file
        )


@dataclass(slots=True)
class Footage:
    """One camera of the result: its videos, and where each clip lies in them.

    Attributes:
        videos: The videos to be written.
        chunk: ``chunk_index`` of each clip's video.
        file: ``file_index`` of each clip's video.
        first: The frame of that video that is each clip's first.
    """

    videos: list[VideoOut]
    chunk: np.ndarray
    file: np.ndarray
    first: np.ndarray


def packets_between(index: PacketIndex, first: int, stop: int) -> np.ndarray:
    """Return the packets of a run: all but those that lean on pictures before it."""
    packets = np.arange(first, stop, dtype=np.int32)
    return packets[index.start_of[packets] >= first] if index.has_leading else packets


def run_of(run: Run, reader: Reader, key: str) -> PacketRun:
    """Return a run with its video opened."""
    video = reader.clip(run.position, key).video
    return PacketRun(video, packets_between(video.index, run.first, run.stop))


def plan_camera(
    camera: str,
    shots: Sequence[Shot],
    readers: Sequence[Reader],
    keys: Sequence[str],
    info: Info,
) -> Footage:
    """Plan one camera's videos.

    Cost: reads the table of packets of every source video.

    Args:
        camera: The camera's key in the result.
        shots: Every clip, in order.
        readers: The sources.
        keys: The camera's key in each source.
        info: What the result will be; sizes of videos are kept to.

    Raises:
        VideoError: A video is missing or broken, or its packets cannot be copied into an mp4.
        FrameMismatchError: Metadata and video do not agree.
    """
    packer = _Packer(camera, info)
    for shot in shots:
        reader = readers[shot.source]
        place = reader.clip(shot.position, keys[shot.source])
        packer.add(shot, place, str(reader.root))
    return packer.finish(len(shots))


@dataclass(slots=True)
class _Open:
    """The video that is being filled."""

    chunk: int = 0
    file: int = 0
    kind: tuple[object, ...] = ()
    alone: bool = False  # its first packets do not begin anew (``media/splice.py``)
    description: Description | None = None
    runs: list[Run] = field(default_factory=list)
    videos: list[Video] = field(default_factory=list)
    bytes: int = 0
    clips: list[tuple[int, int, Shot, int]] = field(default_factory=list)

    def is_followed_by(self, video: Video, packet: int, frame: int) -> bool:
        """Whether packets from ``packet`` on go on where the last run ends, or are in it already.

        Its frames must not be another clip's: every frame of a video belongs to one episode.
        """
        if not self.runs or self.videos[-1].name != video.name:
            return False
        _, before, _, length = self.clips[-1]
        return self.runs[-1].first <= packet <= self.runs[-1].stop and frame >= before + length


class _Packer:
    def __init__(self, camera: str, info: Info) -> None:
        self._camera = camera
        self._limit = info.video_files_size_in_mb * _MB
        self._chunks_size = info.chunks_size
        self._one_each = info.version.startswith("v2")
        self._open = _Open()
        self._videos: list[VideoOut] = []
        self._kinds: dict[str, tuple[Description, tuple[object, ...]]] = {}
        self._places: list[tuple[int, int, int]] = []
        self._clips = 0

    def add(self, shot: Shot, place: Place, root: str) -> None:
        video, frame = place.video, place.first + shot.start
        length = shot.stop - shot.start
        bare, stop = _needed(video, frame, length, root, shot)
        anew = begins_anew(video, bare)
        first = bare if anew else with_lead_in(video.index, bare)
        description, kind = self._described(video)
        size = int(video.index.size[first:stop].sum())
        now = self._open
        goes_on = now.is_followed_by(video, bare, frame) and not self._one_each
        full = now.kind != kind or now.bytes + size > self._limit
        fits = goes_on or (anew and not now.alone and not self._one_each)
        if now.runs and (full or not fits):
            self._close()
            now, goes_on = self._open, False
        if not now.runs:
            now.kind, now.description, now.alone = kind, description, not anew
        if goes_on:
            last = now.runs[-1]
            stop = max(stop, last.stop)
            now.bytes += int(video.index.size[last.stop : stop].sum())
            now.runs[-1] = Run(last.source, last.position, last.first, stop)
        else:
            now.runs.append(Run(shot.source, shot.position, first, stop))
            now.videos.append(video)
            now.bytes += size
        now.clips.append((len(now.runs) - 1, frame, shot, length))

    def _described(self, video: Video) -> tuple[Description, tuple[object, ...]]:
        if video.name not in self._kinds:
            description = read_description(video.file, name=video.name)
            if description is None:
                raise VideoError(
                    "This video's packets cannot be copied as they are: it is no plain mp4.",
                    hint="bring it into one without loss: ffmpeg -i FILE -c copy NEW.mp4",
                    file=video.name,
                )
            self._kinds[video.name] = (description, signature(description))
        return self._kinds[video.name]

    def _close(self) -> None:
        now = self._open
        assert now.description is not None
        runs = [
            PacketRun(video, packets_between(video.index, run.first, run.stop))
            for run, video in zip(now.runs, now.videos, strict=True)
        ]
        before = np.concatenate([[0], np.cumsum([len(run.packets) for run in runs])]).tolist()
        shown = [run.shown() for run in runs]
        for number, frame, shot, length in now.clips:
            at = _first_shown(runs[number], shown[number], frame, length, shot)
            self._places.append((now.chunk, now.file, before[number] + at))
        out = VideoOut(
            camera=self._camera,
            chunk=now.chunk,
            file=now.file,
            runs=tuple(now.runs),
            description=now.description,
            frames=before[-1],
            size=int(sum(run.video.index.size[run.packets].sum() for run in runs)),
            seen=tuple(_seen(video) for video in now.videos),
            episode=len(self._places) - len(now.clips),
        )
        if self._one_each:
            _refuse_more_frames(out, now.clips[0][2], now.videos[0])
        self._videos.append(out)
        chunk, file = now.chunk, now.file + 1
        if file == self._chunks_size:
            chunk, file = chunk + 1, 0
        self._open = _Open(chunk, file)

    def finish(self, clips: int) -> Footage:
        self._close()
        assert len(self._places) == clips
        chunk, file, first = np.array(self._places, np.int64).T
        return Footage(self._videos, chunk, file, first)


def _needed(video: Video, frame: int, length: int, root: str, shot: Shot) -> tuple[int, int]:
    """Return the packets that the frames need: the first, and one past the last."""
    index = video.index
    frames = np.arange(frame, frame + length)
    packets = index.packet_of[frames]
    first = int(index.start_of[packets].min())
    if first < 0:
        raise FrameMismatchError(
            "The clip's first pictures lean on others that the video does not have.",
            hint="begin the clip a few frames later",
            dataset=root,
            file=video.name,
            frame=shot.start,
        )
    return first, int(packets.max()) + 1


def _first_shown(run: PacketRun, shown: np.ndarray, frame: int, length: int, shot: Shot) -> int:
    """Return which frame of a run is a clip's first; those after it must follow one by one."""
    packets = run.video.index.packet_of[frame : frame + length]
    places = np.searchsorted(run.packets, packets)
    found = places < len(run.packets)
    if not found.all() or not np.array_equal(run.packets[places], packets):
        raise VideoError("A clip's packets cannot be cut out.", file=run.video.name)
    order = shown[places]
    if not np.array_equal(order, order[0] + np.arange(length)):
        raise VideoError(
            "A clip's frames would not follow one another: the video hides frames between them.",
            hint="encode the video again",
            file=run.video.name,
            frame=shot.start,
        )
    return int(order[0])


def _refuse_more_frames(out: VideoOut, shot: Shot, video: Video) -> None:
    """Refuse a video that would hold more than its episode: there is no place to say so in v2."""
    more = out.frames - (shot.stop - shot.start)
    if more:
        raise FrameMismatchError(
            f"A clip cannot be cut out alone: its pictures need {more} more, and v2.1 shows all.",
            hint="begin and end it with a group of pictures, or write v3.0",
            episode=out.episode,
            camera=out.camera,
            frames=f"{shot.start} to {shot.stop - 1}",
            file=video.name,
        )


def _seen(video: Video) -> tuple[object, ...]:
    """Return what changes when a video does, and is the same on every machine that sees it."""
    changed = video.file.identity[3] if isinstance(video.file, LocalFile) else None
    return (video.file.size, changed, len(video.index.offset))


def videos_of(footage: Sequence[Footage]) -> Iterator[VideoOut]:
    """Yield all videos of all cameras."""
    for camera in footage:
        yield from camera.videos

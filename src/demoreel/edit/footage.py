"""What a result's videos are made of: packets that are copied, frames that are encoded.

A clip may begin at any frame. Where that lies inside a group of pictures, the packets from its
keyframe on are carried with it; no episode names them, and the episode's own frames follow. Or, if
it is to be exact, its frames up to the next keyframe are encoded anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from demoreel.edit.pace import Frames
from demoreel.layouts.base import Reader
from demoreel.media.mp4 import Description
from demoreel.media.mp4_write import PacketRun
from demoreel.media.packets import PacketIndex
from demoreel.media.settings import VideoSettings
from demoreel.model import Info


@dataclass(frozen=True, slots=True)
class Shot:
    """A clip as one camera sees it.

    Attributes:
        source: Number of its source.
        position: Where its episode stands there.
        frames: The frames of that episode.
    """

    source: int
    position: int
    frames: Frames


@dataclass(frozen=True, slots=True)
class Run:
    """Packets ``first`` to ``stop`` - 1 of the video that the episode at ``position`` lies in."""

    source: int
    position: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Take:
    """Frames that are encoded anew, and begin with a keyframe.

    Attributes:
        source: Number of their source.
        position: Where their episode stands there.
        frames: Frames of the video that it lies in; of the episode, if pictures lie in tables.
        settings: How they are encoded.
        alike: Whether they stand beside packets of their video, and must look like them.
    """

    source: int
    position: int
    frames: Frames
    settings: VideoSettings
    alike: bool = False


@dataclass(frozen=True, slots=True)
class Blank:
    """Black frames, of a camera that a source does not have.

    Attributes:
        count: How many.
        size: Height and width.
        settings: How they are encoded.
    """

    count: int
    size: tuple[int, int]
    settings: VideoSettings


Piece = Run | Take | Blank
"""A part of a video."""


@dataclass(frozen=True, slots=True)
class VideoOut:
    """One video to be written.

    Attributes:
        camera: Its camera.
        chunk: Its ``chunk_index``.
        file: Its ``file_index``.
        runs: What it is made of, in order.
        description: How its packets are described; None if all are encoded anew.
        frames: How many it will have.
        size: Bytes of its packets; about, where frames are encoded.
        seen: Size and time of each source video, to notice changes.
        episode: The first episode in it.
        fps: Frames per second of its clock.
    """

    camera: str
    chunk: int
    file: int
    runs: tuple[Piece, ...]
    description: Description | None
    frames: int
    size: int
    seen: tuple[tuple[object, ...], ...]
    episode: int
    fps: float

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

    @property
    def encoded(self) -> int:
        """Frames in it that are encoded anew."""
        return sum(len(piece.frames) for piece in self.runs if isinstance(piece, Take))

    @property
    def is_copied(self) -> bool:
        """Whether nothing in it has to be encoded."""
        return all(isinstance(piece, Run) for piece in self.runs)


@dataclass(slots=True)
class Footage:
    """One camera of the result: its videos, and where each clip lies in them.

    Attributes:
        videos: The videos to be written.
        chunk: ``chunk_index`` of each clip's video.
        file: ``file_index`` of each clip's video.
        first: The frame of that video that is each clip's first.
        rate: Frames per second of each clip's video.
        encoded: Of clips whose pictures are not all copied: which of their video's frames, counted
            from the clip's first, are encoded anew.
        blank: The clips that are black because their source has no such camera.
    """

    videos: list[VideoOut]
    chunk: np.ndarray
    file: np.ndarray
    first: np.ndarray
    rate: np.ndarray
    encoded: Mapping[int, Sequence[range]] = field(default_factory=dict)
    blank: frozenset[int] = frozenset()

    @property
    def begin(self) -> np.ndarray:
        """Second of its video at which each clip begins (``from_timestamp``)."""
        return np.asarray(self.first / self.rate)


def packets_between(index: PacketIndex, first: int, stop: int) -> np.ndarray:
    """Return the packets of a run: all but those that lean on pictures before it."""
    packets = np.arange(first, stop, dtype=np.int32)
    return packets[index.start_of[packets] >= first] if index.has_leading else packets


def run_of(run: Run, reader: Reader, key: str) -> PacketRun:
    """Return a run with its video opened."""
    video = reader.clip(run.position, key).video
    return PacketRun(video, packets_between(video.index, run.first, run.stop))


def videos_of(footage: Sequence[Footage]) -> Iterator[VideoOut]:
    """Yield all videos of all cameras."""
    for camera in footage:
        yield from camera.videos

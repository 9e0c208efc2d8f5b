"""The plan of a result's videos: packets that are copied, frames that are encoded.

A clip may begin at any frame. Where that is inside a GOP, the packets from its
keyframe on are carried with it; no episode names them, and the episode's own frames follow. Or, if
it is to be exact, its frames up to the next keyframe are re-encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from demoreel.edit.clips import Frames
from demoreel.layouts.base import Reader
from demoreel.media.audio import AudioSpan, spans_of_frames
from demoreel.media.mp4 import Description
from demoreel.media.mp4_write import PacketRun
from demoreel.media.settings import VideoSettings
from demoreel.media.video import Video
from demoreel.model import Info


@dataclass(frozen=True, slots=True)
class CameraClip:
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
class CopiedRun:
    """Packets ``first`` to ``stop`` - 1 of the video that the episode at ``position`` is in."""

    source: int
    position: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class PacketTake:
    """Frames that are re-encoded, and begin with a keyframe.

    Attributes:
        source: Number of their source.
        position: Where their episode stands there.
        frames: Frames of the video that it is in; of the episode, if frames are in tables.
        settings: How they are encoded.
        alike: Whether they stand beside packets of their video, and must look like them.
        size: Height and width that they are scaled to; None keeps theirs.
    """

    source: int
    position: int
    frames: Frames
    settings: VideoSettings
    alike: bool = False
    size: tuple[int, int] | None = None

    @property
    def count(self) -> int:
        """How many frames there are."""
        return len(self.frames)


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


Piece = CopiedRun | PacketTake | Blank
"""A part of a video."""


@dataclass(frozen=True, slots=True)
class VideoOut:
    """One video to be written.

    Attributes:
        camera: Its camera.
        chunk: Its ``chunk_index``.
        file: Its ``file_index``.
        runs: What it is made of, in order.
        description: How its packets are described; None if all are re-encoded.
        frames: How many it will have.
        size: Bytes of its packets; about, where frames are encoded.
        seen: Size and time of each source video, to notice changes.
        episode: The first episode in it.
        fps: Frames per second of its clock.
        audio: Whether the audio of its sources is copied, too.
        whole: Of a video that stays as it is in the only source, where ``episode`` is in it:
            whether its bytes are copied, or it is linked to. None if it is put together.
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
    audio: bool = False
    whole: Literal["copied", "linked"] | None = None

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
        """Frames in it that are re-encoded."""
        return sum(len(piece.frames) for piece in self.runs if isinstance(piece, PacketTake))

    @property
    def is_copied(self) -> bool:
        """Whether nothing in it has to be encoded."""
        return all(isinstance(piece, CopiedRun) for piece in self.runs)


@dataclass(slots=True)
class VideoPlan:
    """One camera of the result: its videos, and where each clip is in them.

    Attributes:
        videos: The videos to be written.
        chunk: ``chunk_index`` of each clip's video.
        file: ``file_index`` of each clip's video.
        first: The frame of that video that is each clip's first.
        rate: Frames per second of each clip's video.
        encoded: Of clips whose frames are not all copied: which of their video's frames, counted
            from the clip's first, are re-encoded.
        blank: The clips that are black because their source has no such camera.
        whole: The clips that are encoded as a whole because encoded frames cannot be in one file
            with packets of their video.
        dropped: What the sources' videos hold and the result's will not, in words.
    """

    videos: list[VideoOut]
    chunk: np.ndarray
    file: np.ndarray
    first: np.ndarray
    rate: np.ndarray
    encoded: Mapping[int, Sequence[range]] = field(default_factory=dict)
    blank: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    dropped: tuple[str, ...] = ()

    @property
    def has_audio(self) -> bool:
        """Whether a video of it will have audio."""
        return any(video.audio for video in self.videos)

    @property
    def begin(self) -> np.ndarray:
        """Second of its video at which each clip begins (``from_timestamp``)."""
        return np.asarray(self.first / self.rate)


def run_of(run: CopiedRun, reader: Reader, key: str) -> PacketRun:
    """Return a run with its video opened."""
    video = reader.clip(run.position, key).video
    return PacketRun(video, video.index.decoded_from(run.first, run.stop))


def frames_shown(piece: CopiedRun | PacketTake, video: Video) -> np.ndarray:
    """Return which frames of its video a piece shows, in order."""
    if isinstance(piece, PacketTake):
        return np.array(piece.frames, np.int64)
    return PacketRun(video, video.index.decoded_from(piece.first, piece.stop)).frames()


def audio_of(video: VideoOut, sources: Sequence[Video | None]) -> list[AudioSpan]:
    """Return the audio that goes with the pieces of a video.

    Args:
        video: The video.
        sources: The video that each piece is in; None where its frames are in none.
    """
    spans: list[AudioSpan] = []
    first = 0
    for piece, source in zip(video.runs, sources, strict=True):
        if isinstance(piece, Blank) or source is None:
            first += piece.count if not isinstance(piece, CopiedRun) else 0
            continue
        shown = frames_shown(piece, source)
        spans += spans_of_frames(source, shown, fps=video.fps, first=first)
        first += len(shown)
    return spans


def videos_of(cameras: Sequence[VideoPlan]) -> Iterator[VideoOut]:
    """Yield all videos of all cameras."""
    for camera in cameras:
        yield from camera.videos

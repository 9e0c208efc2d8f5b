"""One camera's episode while it is encoded; another encoder can continue at any frame."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from demoreel.errors import VideoError
from demoreel.layouts.persisted_files import PacketFile, packets_path, video_path
from demoreel.media.encode import VideoEncoder
from demoreel.media.remux import probe
from demoreel.record.encoding.ipc import EncodingProgress
from demoreel.record.encoding.plan import CameraPlan, FinishedVideo
from demoreel.stats.running import LevelCounts


class ProgressNote(Protocol):
    """Where it is noted how far encoding is: shared memory, or a manifest's words."""

    def progress(self) -> EncodingProgress:
        """Return how far encoding was."""

    def advance(self, episode: int, frames: int, stats: LevelCounts) -> None:
        """Note how far it is."""


class EpisodeEncoder:
    """Encodes an episode from the first frame that is not safe yet.

    Every frame is counted for the statistics when its packet is noted, and progress is noted
    with both, so that no frame is counted twice or left out whatever happens in between.

    Args:
        plan: The camera.
        fps: Frames per second.
        base: Path of the episode's files, less their endings; the folder must exist.
        episode: The episode's number.
        note: How far it is.
        threads: Most threads the codec may use.
    """

    def __init__(
        self,
        plan: CameraPlan,
        *,
        fps: float,
        base: Path,
        episode: int,
        note: ProgressNote,
        threads: int,
    ) -> None:
        self._note = note
        self._episode = episode
        before = note.progress()
        if before.episode == episode:
            self._safe, self._stats = before.frames, before.stats
        else:
            self._safe, self._stats = 0, LevelCounts()
            note.advance(episode, 0, self._stats)
        self._waiting: deque[np.ndarray] = deque()
        self._counted: deque[LevelCounts] = deque()  # ahead of their packets, in their order
        self._log = PacketFile(packets_path(base), keep=self._safe)
        try:
            self._video = VideoEncoder(
                video_path(base),
                fps=fps,
                width=plan.width,
                height=plan.height,
                settings=plan.settings,
                threads=threads,
                log=self._log,
            )
        except BaseException:
            self._log.close()
            raise

    @property
    def next_frame(self) -> int:
        """The frame that ``add`` takes next."""
        return self._video.frames

    @property
    def safe_frames(self) -> int:
        """How many frames have their packets in the file."""
        return self._safe

    def add(self, image: np.ndarray) -> None:
        """Encode the next frame; the frame must stay as it is until it is safe."""
        self._waiting.append(image)
        self._video.add(image)
        self._note_progress()

    def counts_with(self, images: Sequence[np.ndarray]) -> LevelCounts:
        """Return the counts of all frames, given those that ``add`` has yet to take.

        Counting comes before encoding then, and is not done again.
        """
        self._counted = deque(_counts_of(image) for image in (*self._waiting, *images))
        whole = LevelCounts()
        for part in (self._stats, *self._counted):
            whole.merge(part)
        return whole

    def finish(self) -> FinishedVideo:
        """Finish the video, and look whether it opens and has all of its frames."""
        frames = self._video.close(codec_later=True)
        self._note_progress()
        self._log.close()
        signature, found = probe(self._video.path)
        if found != frames:
            raise VideoError(
                f"{frames} frames were written, and {found} are in the video.",
                file=self._video.path,
            )
        return FinishedVideo(self._video.path, frames, self._stats, signature)

    def abort(self) -> None:
        """Stop. What is safe stays so. May be called after ``finish``, and twice."""
        self._video.abort()
        self._log.close()

    def _note_progress(self) -> None:
        if self._video.whole == self._safe:
            return
        while self._safe < self._video.whole:
            image = self._waiting.popleft()
            counts = self._counted.popleft() if self._counted else _counts_of(image)
            self._stats.merge(counts)
            self._safe += 1
        self._note.advance(self._episode, self._safe, self._stats)


class FixedProgress:
    """How far encoding was when it stopped; what is encoded after that is not noted.

    Should that end too, it begins again where it began.
    """

    def __init__(self, progress: EncodingProgress) -> None:
        self._progress = progress

    def progress(self) -> EncodingProgress:
        """Return it."""
        return self._progress

    def advance(self, episode: int, frames: int, stats: LevelCounts) -> None:
        """Note nothing."""


def finish_video(
    plan: CameraPlan,
    *,
    fps: float,
    base: Path,
    safe: int,
    stats: LevelCounts,
    images: Iterable[np.ndarray] = (),
    threads: int,
) -> FinishedVideo:
    """Finish a video in this process, from the packets of its first frames and the other images.

    Args:
        plan: The camera.
        fps: Frames per second.
        base: Path of the episode's files, less their endings.
        safe: How many frames have their packets in the file.
        stats: Their counts.
        images: The frames after them.
        threads: Most threads the codec may use.
    """
    note = FixedProgress(EncodingProgress(0, safe, stats))
    encoder = EpisodeEncoder(plan, fps=fps, base=base, episode=0, note=note, threads=threads)
    try:
        for image in images:
            encoder.add(image)
        return encoder.finish()
    except BaseException:
        encoder.abort()
        raise


def _counts_of(image: np.ndarray) -> LevelCounts:
    counts = LevelCounts()
    counts.add(image)
    return counts

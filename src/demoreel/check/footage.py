"""The videos of a camera that can be opened, and where their episodes lie in them.

What cannot be opened, and what cannot be told, is passed over: the checks of videos report it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from demoreel.check.look import Look
from demoreel.errors import DemoreelError
from demoreel.layouts.spans import resolve_spans
from demoreel.media.video import Video, open_video

_LARGEST = 1e9  # seconds


@dataclass(frozen=True, slots=True)
class Footage:
    """A video and its episodes.

    Attributes:
        name: Its path below the dataset's folder, or what stands for one.
        video: The video.
        positions: Where its episodes stand in ``look.episodes``.
        first: The video's frame that is each one's frame 0; -1 where that cannot be told.
        step: Frames of the video from one frame of an episode to the next.
    """

    name: str
    video: Video
    positions: np.ndarray
    first: np.ndarray
    step: int = 1


def footage_of(look: Look, camera: str) -> Iterator[Footage]:
    """Yield a camera's videos.

    Cost: one or two small reads a video that is not known yet.
    """
    for name, positions in look.video_files(camera):
        video = _opened(look, camera, name, positions)
        if video is not None:
            first, step = _places(look, camera, video, positions)
            yield Footage(name, video, positions, first, step)


def _opened(look: Look, camera: str, name: str, positions: np.ndarray) -> Video | None:
    if look.is_lance:
        return _in_table(look, camera, positions)
    try:
        return open_video(look.root / name) if look.files.get(name, 0) > 0 else None
    except (DemoreelError, OSError):
        return None


def _in_table(look: Look, camera: str, positions: np.ndarray) -> Video | None:
    """Return the video through the first of its episodes that a reader finds in it."""
    assert look.episodes is not None
    reader = look.reader
    for episode in look.episodes.index[positions].tolist() if reader is not None else ():
        assert reader is not None
        try:
            return reader.clip(reader.episodes.position_of(episode), camera).video
        except (DemoreelError, OSError):
            continue
    return None


def _places(look: Look, camera: str, video: Video, positions: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the first frame of each episode, and how far its frames are apart."""
    assert look.episodes is not None
    assert look.info is not None
    length = look.episodes.length[positions]
    if look.is_v2:
        return np.where(length == video.index.frames, 0, -1), 1
    first = np.full(len(positions), -1, np.int64)
    columns = look.episodes.columns
    begin = columns.get(f"videos/{camera}/from_timestamp")
    if begin is None:
        return first, 1
    begin = begin[positions]
    sane = np.flatnonzero(np.isfinite(begin) & (np.abs(begin) < _LARGEST))
    if len(sane) == 0:
        return first, 1
    spans = resolve_spans(
        length=length[sane],
        from_timestamp=begin[sane],
        to_timestamp=None,
        seconds=video.index.seconds,
        fps=look.info.fps,
    )
    first[sane] = spans.first
    return first, spans.step

"""Where episodes lie in their videos: the checks of it, and the answer for the checks of frames."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from demoreel.check.look import Look
from demoreel.errors import DemoreelError, MetadataError, refuse_shortage
from demoreel.layouts.spans import require_frames, resolve_spans
from demoreel.layouts.v3.reader import stated_unused
from demoreel.media.decode import begins_anew, with_lead_in
from demoreel.media.video import Video, open_video
from demoreel.storage.names import OLD_METADATA

_CLAIMED = re.compile(r"(\d+) frames are claimed")
_A_FEW_FRAMES = 2  # that overlap by rounding; more, and an episode starts in another
_FLOAT_SLACK = 2.0**-23
_LARGEST = 1e9  # seconds


def check_clips(look: Look, camera: str, name: str, positions: np.ndarray, video: Video) -> None:
    """Check that a video holds exactly the frames of its episodes, and the metadata say where."""
    if look.is_v2:
        _check_whole(look, camera, name, int(positions[0]), video.index.frames)
        return
    assert look.episodes is not None
    columns = look.episodes.columns
    begin = columns.get(f"videos/{camera}/from_timestamp")
    end = columns.get(f"videos/{camera}/to_timestamp")
    if begin is None or end is None:
        return
    _Clips(look, camera, name, positions, video, begin[positions], end[positions]).check()


def _check_whole(look: Look, camera: str, name: str, position: int, frames: int) -> None:
    """In v2 a video is an episode."""
    assert look.episodes is not None
    length, episode = (int(a[position]) for a in (look.episodes.length, look.episodes.index))
    require_frames(frames, length, note=look.note, camera=camera, file=name, episode=episode)


class _Clips:
    """The episodes of one video, whose rate may be a multiple of the dataset's rate."""

    def __init__(
        self,
        look: Look,
        camera: str,
        name: str,
        positions: np.ndarray,
        video: Video,
        begin: np.ndarray,
        end: np.ndarray,
    ) -> None:
        assert look.episodes is not None
        assert look.info is not None
        self._look = look
        self._listed, self._are_all_listed = len(positions), look.episodes.is_whole
        self._where: dict[str, Any] = {"camera": camera, "file": name}
        self._episode = look.episodes.index[positions]
        self._length = look.episodes.length[positions]
        self._begin, self._end = begin, end
        self._video = video
        self._seconds = video.index.seconds
        self._fps = look.info.fps
        self._step = 1

    def check(self) -> None:
        """Report what is wrong with any of them."""
        self._leave_out_nonsense()
        if len(self._begin) == 0:
            return
        if len(self._seconds) == 0:
            self._found("video-short", 0, "It has no frames.")
            return
        self._leave_out_past_the_end()
        first = self._resolved()
        placed = np.flatnonzero(first >= 0)
        self._check_ends(placed)
        self._check_drift(placed, first)
        if len(placed) == self._listed and self._are_all_listed:
            self._check_unclaimed(first)

    def _found(self, code: str, place: int, what: str, **more: Any) -> None:
        self._look.found(code, what, episode=self._episode[place], **self._where, **more)

    def _keep(self, kept: np.ndarray) -> None:
        self._begin, self._end = self._begin[kept], self._end[kept]
        self._episode, self._length = self._episode[kept], self._length[kept]

    def _leave_out_nonsense(self) -> None:
        sane = np.isfinite(self._begin) & np.isfinite(self._end)
        sane &= (np.abs(self._begin) < _LARGEST) & (np.abs(self._end) < _LARGEST)
        sane &= (self._begin > -1 / self._fps) & (self._end > self._begin)
        for place in np.flatnonzero(~sane).tolist():
            self._found(
                "clip-value",
                place,
                f"It runs from {self._begin[place]:g} s to {self._end[place]:g} s.",
            )
        self._keep(sane)

    def _leave_out_past_the_end(self) -> None:
        last = float(self._seconds[-1]) + 0.5 / self._fps
        past = (self._begin > last) & (self._begin * self._fps > len(self._seconds) - 0.5)
        for place in np.flatnonzero(past).tolist():
            self._found(
                "clip-past-end",
                place,
                f"It begins at {self._begin[place]:.3f} s; the video's last frame, number "
                f"{len(self._seconds) - 1}, is at {self._seconds[-1]:.3f} s.",
            )
        self._keep(~past)

    def _resolved(self) -> np.ndarray:
        """Return each episode's first frame; -1 where it cannot be told, which is a finding."""
        if len(self._begin) == 0:
            return np.zeros(0, np.int64)
        order = np.argsort(self._begin, kind="stable")
        first = np.zeros(len(order), np.int64)
        first[order] = np.concatenate([[0], np.cumsum(self._length[order])[:-1]])
        if self._is_plain(first):
            return first
        spans = resolve_spans(
            length=self._length,
            from_timestamp=self._begin,
            to_timestamp=self._end,
            seconds=self._seconds,
            fps=self._fps,
        )
        for place, problem in sorted(spans.problem.items()):
            self._found(_code_of(problem), place, f"{problem[0].upper()}{problem[1:]}.")
        self._step = spans.step
        return spans.first

    def _is_plain(self, first: np.ndarray) -> bool:
        """Whether the episodes follow one another and the clock agrees: nearly all videos."""
        if int(self._length.sum()) > len(self._seconds):
            return False
        quarter = 0.25 / self._fps
        near = np.abs(self._seconds[first] - self._seconds[0] - self._begin) <= quarter
        span = np.abs(self._end - self._begin - self._length / self._fps) <= 1.5 / self._fps
        return bool(near.all() and span.all())

    def _check_ends(self, placed: np.ndarray) -> None:
        frames = (self._end[placed] - self._begin[placed]) * self._fps
        off = placed[np.abs(frames - self._length[placed]) > 0.5]
        for place in off.tolist():
            said = round(float((self._end[place] - self._begin[place]) * self._fps))
            self._found(
                "clip-end",
                place,
                f"It is {self._length[place]} frames long, and {said} by its seconds.",
            )

    def _check_drift(self, placed: np.ndarray, first: np.ndarray) -> None:
        """Compare the seconds with the video's clock, which begins at 0 or with its first frame."""
        there, begin = self._seconds[first[placed]], self._begin[placed]
        away = np.minimum(np.abs(there - begin), np.abs(there - self._seconds[0] - begin))
        wandered = placed[away > self._look.thresholds["drift_s"] + _FLOAT_SLACK * np.abs(begin)]
        for place in wandered.tolist():
            self._found(
                "clip-drift",
                place,
                f"It begins at {self._begin[place]:.6f} s; its first frame, number {first[place]}, "
                f"is at {self._seconds[first[place]]:.6f} s.",
            )

    def _check_unclaimed(self, first: np.ndarray) -> None:
        """Report frames that no episode claims, and none needs to be decoded."""
        if len(first) == 0 or (self._look.root / OLD_METADATA).is_dir():
            return  # what an edit in place leaves belongs to the versions before it
        free = ~self._needed(first)
        order = np.argsort(first, kind="stable")
        begins, stops = first[order], (first + self._length * self._step)[order]
        before = np.concatenate([[0], stops[:-1]])
        for place, (stop, begin) in enumerate(zip(before.tolist(), begins.tolist(), strict=True)):
            gap = int(free[stop:begin].sum())
            if gap >= self._step:
                self._found(
                    "video-gap",
                    int(order[place]),
                    f"{gap} frames before it belong to no episode.",
                    frame=stop,
                )
        left = int(free[int(stops[-1]) :].sum())
        if left >= self._step and left != self._stated_unused():
            self._found(
                "video-long",
                int(order[-1]),
                f"It has {len(self._seconds)} frames; its episodes need {stops[-1]}.",
                frame=stops[-1],
            )

    def _stated_unused(self) -> object:
        try:
            return stated_unused(self._look.root / "meta").get(str(self._where["file"]))
        except MetadataError:
            return None

    def _needed(self, first: np.ndarray) -> np.ndarray:
        """Return for each frame whether it lies among the packets that some episode needs.

        A cut carries the packets from a clip's keyframe on, and those that lie between its own.
        """
        index = self._video.index
        edges = np.zeros(len(index.start_of) + 1, np.int64)
        for begin, length in zip(first.tolist(), self._length.tolist(), strict=True):
            own = index.packet_of[begin : begin + length * self._step]
            low = max(0, int(index.start_of[own].min()))
            low = low if begins_anew(self._video, low) else with_lead_in(index, low)
            edges[low] += 1
            edges[int(own.max()) + 1] -= 1
        needed = np.cumsum(edges[:-1]) > 0
        return np.asarray(needed[index.packet_of])


def _code_of(problem: str) -> str:
    claimed = _CLAIMED.search(problem)
    if claimed is not None:
        return "clip-overlap" if int(claimed[1]) <= _A_FEW_FRAMES else "clip-inside"
    if "falls between frames" in problem:
        return "clip-between-frames"
    if "by the video's clock" in problem:
        return "clip-ambiguous"
    if "rows" in problem:
        return "clip-length"
    return "clip-past-end" if "lies past" in problem else "video-short"


@dataclass(frozen=True, slots=True)
class LocatedVideo:
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


def located_videos(look: Look, camera: str) -> Iterator[LocatedVideo]:
    """Yield a camera's videos.

    Cost: one or two small reads a video that is not known yet.
    """
    for name, positions in look.video_files(camera):
        video = _opened(look, camera, name, positions)
        if video is not None:
            first, step = _places(look, camera, video, positions)
            yield LocatedVideo(name, video, positions, first, step)


def _opened(look: Look, camera: str, name: str, positions: np.ndarray) -> Video | None:
    if look.is_lance:
        return _in_table(look, camera, positions)
    try:
        return open_video(look.root / name) if look.files.get(name, 0) > 0 else None
    except (DemoreelError, OSError) as error:
        refuse_shortage(error)
        return None


def _in_table(look: Look, camera: str, positions: np.ndarray) -> Video | None:
    """Return the video through the first of its episodes that a reader finds in it."""
    assert look.episodes is not None
    reader = look.reader
    for episode in look.episodes.index[positions].tolist() if reader is not None else ():
        assert reader is not None
        try:
            return reader.clip(reader.episodes.position_of(episode), camera).video
        except (DemoreelError, OSError) as error:
            refuse_shortage(error)
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

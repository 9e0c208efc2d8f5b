"""Finds the frames of each episode in a shared video.

Metadata gives each episode a ``from_timestamp`` in float seconds; the table gives its length; the
video has packets. Three witnesses, and floats drift. Seconds are translated into frame numbers
here, once per file, by two readings:

- **by length**: episodes follow one another; each begins where the lengths before it end;
- **by clock**: an episode begins at the frame whose presentation time is its ``from_timestamp``.

Where they agree, or one is ruled out by the others, the answer is sure. Where not, the episode
gets a problem in words, and reading it is an error. A neighbour's image is never an answer.

A video may have been recorded at a multiple of the dataset's rate. Then every so many of its frames
belong to an episode, and both readings must hold for each of them: counted from the first, and by
the clock.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from demoreel.errors import FrameMismatchError
from demoreel.model.problems import Note, Problem, refuse

_STEP_SLACK = 1e-3  # containers round durations to milliseconds: that much per episode
_FLOAT_SLACK = 2.0**-23  # metadata may have passed through 32-bit floats
_ON_A_FRAME = 0.25  # of a frame's duration
_SAME_RATE = 0.01  # that two rates may differ; whether frames are on time is looked at too


def require_frames(
    frames: int,
    rows: int,
    *,
    of: str = "video",
    shared: bool = False,
    hint: str | None = None,
    note: Note = refuse,
    **where: object,
) -> None:
    """Require that there is one frame for every row: the check of all that reads or writes a video.

    Episodes that share a video are located by ``resolve_spans`` first.

    Args:
        frames: How many frames there are.
        rows: How many there should be.
        of: What has the frames: a ``video``, or a ``camera`` before there is one.
        shared: Whether the rows are those of several episodes.
        hint: What to do about it.
        note: Takes the problem.
        **where: Where it is, for the error.
    """
    if frames != rows:
        owner = "its episodes have" if shared else "the episode has"
        error = FrameMismatchError(
            f"The {of} has {frames} frames; {owner} {rows} rows: which frame belongs to which row "
            "cannot be told.",
            hint=hint,
            **where,
        )
        place = {"frame": min(frames, rows)}
        code = "video-short" if frames < rows else "video-long"
        note(Problem(code, error, where=place))


@dataclass(slots=True)
class Spans:
    """Where episodes are in one video.

    Attributes:
        first: First frame of each episode; -1 where ``problem`` has an entry.
        problem: What is wrong, by place in the input arrays.
        step: Frames of the video from one frame of an episode to the next.
    """

    first: np.ndarray
    problem: dict[int, str] = field(default_factory=dict)
    step: int = 1


def resolve_spans(
    *,
    length: np.ndarray,
    from_timestamp: np.ndarray,
    to_timestamp: np.ndarray | None,
    seconds: np.ndarray,
    fps: float,
) -> Spans:
    """Translate the episodes of one video into frame numbers.

    Args:
        length: Rows of each episode.
        from_timestamp: Where each begins, in seconds.
        to_timestamp: Where each ends, if the metadata says so.
        seconds: Presentation time of each of the video's frames.
        fps: The dataset's frame rate.
    """
    spans = Spans(first=np.full(len(length), -1, dtype=np.int64))
    if len(seconds) == 0:
        spans.problem = dict.fromkeys(range(len(length)), "the video has no frames")
        return spans
    clock = _Clock(seconds, fps, _origin(from_timestamp, seconds))
    order = np.argsort(from_timestamp, kind="stable").tolist()
    fills_the_file = int(length.sum()) == len(seconds)
    spans.step = 1 if fills_the_file else _step(seconds, fps)
    if spans.step > 1:
        for place in order:
            begin = float(from_timestamp[place]) + clock.origin
            end = None if to_timestamp is None else float(to_timestamp[place]) + clock.origin
            found, wrong = _every_so_many(clock, spans.step, int(length[place]), begin, end)
            spans.first[place] = found
            if wrong:
                spans.problem[place] = wrong
        return _checked(spans, order, length)
    chain = _Chain(next_first=0, next_second=float(seconds[0]), links=0)
    for place in order:
        begin = float(from_timestamp[place]) + clock.origin
        frames = int(length[place])
        first, problem = _first_frame(clock, chain, begin, fills_the_file)
        if first is None:
            spans.problem[place] = problem
            chain = _Chain(next_first=None, next_second=begin, links=0)
            continue
        linked = first == chain.next_first
        chain = _Chain(first + frames, begin + frames / fps, chain.links + 1 if linked else 1)
        spans.first[place] = first
        end = None if to_timestamp is None else float(to_timestamp[place]) + clock.origin
        too_long = _length_problem(clock, first, frames, begin, end)
        if too_long:
            spans.problem[place] = too_long
    return _checked(spans, order, length)


def unused_frames(spans: Spans, length: np.ndarray, packet_of: np.ndarray) -> int:
    """Return how many frames a video has after its last episode.

    Those do not count that a cut had to carry along: their packets are between the episodes' own.

    Args:
        spans: Where the episodes are; all of them must have been found.
        length: Rows of each episode.
        packet_of: For each frame of the video its packet, in the order of decoding.
    """
    last = int((spans.first + spans.step * (length - 1)).max())
    needed = int(packet_of[int(spans.first.min()) : last + 1].max())
    return int((packet_of[last + spans.step :] > needed).sum())


def _checked(spans: Spans, order: list[int], length: np.ndarray) -> Spans:
    _refuse_overlaps(spans, order, length)
    spans.first[list(spans.problem)] = -1
    return spans


def _step(seconds: np.ndarray, fps: float) -> int:
    """Return how many frames the video has for each of the dataset's; 1 where that is no number."""
    took = float(seconds[-1] - seconds[0])
    if took <= 0:
        return 1
    times = (len(seconds) - 1) / took / fps
    step = max(1, round(times))
    return step if abs(times / step - 1) <= _SAME_RATE else 1


def _every_so_many(
    clock: _Clock, step: int, frames: int, begin: float, end: float | None
) -> tuple[int, str | None]:
    """Return the first frame of an episode that has every ``step``-th frame, or what is wrong."""
    first = clock.nearest(begin)
    said = f"from_timestamp {begin - clock.origin:.6f} s"
    if not clock.is_on(first, begin):
        return -1, f"{said} falls between frames: the nearest is frame {first}"
    last = first + step * (frames - 1)
    if last >= len(clock.seconds):
        return -1, f"it needs frames {first} to {last}, the video has {len(clock.seconds)}"
    found = clock.seconds[first : last + 1 : step]
    wanted = begin + np.arange(frames) / clock.fps
    gap = 1 / (clock.fps * step)
    slack = np.minimum(_ON_A_FRAME * gap + _FLOAT_SLACK * np.abs(wanted), 0.49 * gap)
    if (np.abs(found - wanted) > slack).any():
        return -1, f"every {step}th frame from {first} on is not shown when the rows say"
    slack_at_end = 1.5 / clock.fps + _STEP_SLACK + _FLOAT_SLACK * abs(end or 0.0)
    if end is not None and abs((end - begin) - frames / clock.fps) > slack_at_end:
        claimed = round((end - begin) * clock.fps)
        return -1, f"from_timestamp to to_timestamp is {claimed} frames, but it has {frames} rows"
    return first, None


@dataclass(frozen=True, slots=True)
class _Clock:
    seconds: np.ndarray
    fps: float
    origin: float

    def nearest(self, second: float) -> int:
        after = int(np.searchsorted(self.seconds, second))
        if after == 0:
            return 0
        if after == len(self.seconds):
            return after - 1
        closer_before = second - self.seconds[after - 1] <= self.seconds[after] - second
        return after - 1 if closer_before else after

    def is_on(self, frame: int, second: float) -> bool:
        gaps = np.diff(self.seconds[max(0, frame - 1) : frame + 2])
        gap = float(gaps.min()) if len(gaps) else 1 / self.fps
        slack = min(_ON_A_FRAME * gap + _FLOAT_SLACK * abs(second), 0.49 * gap)
        return abs(float(self.seconds[frame]) - second) <= slack


@dataclass(frozen=True, slots=True)
class _Chain:
    """Where the next episode begins if it follows the last one; None after a problem."""

    next_first: int | None
    next_second: float
    links: int

    def is_followed_by(self, begin: float, fps: float) -> bool:
        slack = min(_STEP_SLACK + _FLOAT_SLACK * abs(begin), 0.49 / fps)
        return self.next_first is not None and abs(begin - self.next_second) <= slack

    def drift(self, begin: float, fps: float) -> float:
        """How far float seconds may have wandered from the frames by now."""
        return 0.5 / fps + self.links * (_STEP_SLACK + _FLOAT_SLACK * abs(begin))


def _origin(from_timestamp: np.ndarray, seconds: np.ndarray) -> float:
    """Return what to add to metadata seconds: writers count from 0 or from the first frame."""
    earliest = float(from_timestamp.min())
    counts_from_zero = abs(earliest) < abs(earliest - float(seconds[0]))
    return float(seconds[0]) if counts_from_zero else 0.0


def _first_frame(
    clock: _Clock, chain: _Chain, begin: float, fills_the_file: bool
) -> tuple[int | None, str]:
    by_clock = clock.nearest(begin)
    on_a_frame = clock.is_on(by_clock, begin)
    said = f"from_timestamp {begin - clock.origin:.6f} s"
    if chain.is_followed_by(begin, clock.fps):
        by_length = chain.next_first
        assert by_length is not None
        if by_length >= len(clock.seconds):
            return None, f"{said} is past the video's {len(clock.seconds)} frames"
        if by_length == by_clock and on_a_frame:
            return by_length, ""
        wandered = abs(float(clock.seconds[by_length]) - begin)
        if fills_the_file or wandered <= chain.drift(begin, clock.fps):
            return by_length, ""
        return None, (
            f"{said} is frame {by_clock} by the video's clock but frame {by_length} by the "
            "lengths of the episodes before it"
        )
    if on_a_frame:
        return by_clock, ""
    return None, (
        f"{said} falls between frames: the nearest is frame {by_clock} at "
        f"{clock.seconds[by_clock] - clock.origin:.6f} s, and the episode does not follow on "
        "the one before it"
    )


def _length_problem(
    clock: _Clock, first: int, frames: int, begin: float, end: float | None
) -> str | None:
    total = len(clock.seconds)
    stop = first + frames
    if stop > total:
        return f"it needs frames {first} to {stop - 1}, the video has {total}"
    if end is None:
        return None
    # Writers are known to be a frame off at the end; more than that is another story.
    slack = 1.5 / clock.fps + _STEP_SLACK + _FLOAT_SLACK * abs(end)
    by_rows = abs((end - begin) - frames / clock.fps) <= slack
    by_video = stop == total or abs(float(clock.seconds[stop]) - end) <= slack
    if by_rows or by_video:
        return None
    claimed = round((end - begin) * clock.fps)
    return f"from_timestamp to to_timestamp is {claimed} frames, the table has {frames} rows"


def _refuse_overlaps(spans: Spans, order: list[int], length: np.ndarray) -> None:
    placed = [place for place in order if spans.first[place] >= 0]
    for before, after in itertools.pairwise(placed):
        stop = int(spans.first[before] + spans.step * (length[before] - 1) + 1)
        if stop > spans.first[after]:
            said = (
                f"{stop - int(spans.first[after])} frames are claimed by two episodes: one ends "
                f"before frame {stop}, the next begins at frame {spans.first[after]}"
            )
            spans.problem.setdefault(before, said)
            spans.problem.setdefault(after, said)

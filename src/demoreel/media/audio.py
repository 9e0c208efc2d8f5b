"""Audio of videos: copies packets, and cuts them where the frames are cut.

A packet of audio (21 ms of AAC) rarely begins with a frame. In a result, each is heard exactly as
long after its frame as before: sample durations say so, and no error adds up over many clips. A
packet goes with the clip in which it begins; before the first one of a file, those that its decoder
needs are carried and skipped by an edit list. Where a clip has no audio, there is a gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from demoreel.errors import VideoError
from demoreel.media import mp4
from demoreel.media.mp4 import AudioTrack, Tracks
from demoreel.media.mp4_boxes import NARROW
from demoreel.media.video import Video

_LEAD_IN = 1  # packets whose end a decoder mixes with the beginning of the next
_SLACK = 0.02  # seconds that frames may be off an even clock; less than a packet
_IN_TIME = 0.002  # seconds that audio may be off its frames where spans are made one


@dataclass(frozen=True, slots=True)
class AudioSpan:
    """Audio that goes with some neighbouring frames.

    Attributes:
        video: The video that it is in.
        begin: Second of that video with which it begins.
        end: Second with which it ends.
        at: Second of the result with which it begins.
        is_even: Whether the frames are spaced as in the result; audio would drift otherwise.
    """

    video: Video
    begin: float
    end: float
    at: float
    is_even: bool = True

    def refuse_drift(self) -> None:
        """Refuse audio that would not stay with its frames."""
        if not self.is_even:
            raise VideoError(
                "The video's frames are shown at other times than the dataset's rate says, and "
                "audio would not stay with them.",
                file=self.video.name,
            )


@dataclass(frozen=True, slots=True)
class AudioPackets:
    """The audio of a result: packets in order, one track.

    Attributes:
        track: One of the tracks that they come from: its kind is that of all.
        source: For each packet, the number of its video.
        videos: The videos.
        offset: Where each packet is there.
        size: Its bytes.
        begin: The tick of the result at which it is heard; negative ones are skipped.
        length: Ticks until the next.
    """

    track: AudioTrack
    source: np.ndarray
    videos: Sequence[Video]
    offset: np.ndarray
    size: np.ndarray
    begin: np.ndarray
    length: np.ndarray


def tracks_of(video: Video) -> Tracks:
    """Return what a video's file holds besides its frames.

    Cost: one or two small reads of an mp4.
    """
    found = mp4.read_tracks(video.file, name=video.name)
    if found is None:
        from demoreel.media import remux  # heavy, and rarely needed

        return remux.read_tracks(video.name, video.file)
    return found


def spans_of_frames(
    video: Video, frames: np.ndarray, *, fps: float, first: int
) -> Iterator[AudioSpan]:
    """Yield the audio of frames that are shown one after the other.

    Args:
        video: The video that they are in.
        frames: Their numbers there; -1 are frames that it never shows. Where numbers fall back,
            or one is -1, another span begins.
        fps: Frames per second of the result.
        first: Which frame of the result the first of them is.
    """
    edges = np.flatnonzero((np.diff(frames) < 0) | (frames[1:] < 0) | (frames[:-1] < 0)) + 1
    coarsest = 1 / fps
    if len(video.index.seconds) > 1:
        coarsest = max(coarsest, float(np.median(np.diff(video.index.seconds))))
    for begin, stop in pairwise([0, *edges.tolist(), len(frames)]):
        if frames[begin] < 0:
            continue
        times = video.index.seconds[frames[begin:stop]]
        even = times[0] + np.arange(len(times)) / fps
        is_even = float(np.abs(times - even).max()) <= _SLACK + 0.5 * coarsest
        start = float(times[0])
        at = (first + begin) / fps
        yield AudioSpan(video, start, start + len(times) / fps, at, is_even)


def audio_packets(spans: Sequence[AudioSpan], *, seconds: float) -> AudioPackets | None:
    """Return the packets that make a result's audio; None if there is none.

    Cost: reads the tables of packets of the videos.
    """
    found = _Gathered()
    for span in _joined(spans):
        tracks = tracks_of(span.video)
        if tracks.problem:
            raise VideoError(f"The audio cannot be copied: {tracks.problem}.", file=span.video.name)
        if tracks.audio is not None:
            span.refuse_drift()
            found.add(span, tracks.audio)
    return found.finish(seconds)


def _joined(spans: Sequence[AudioSpan]) -> list[AudioSpan]:
    """Make one of spans that continue where the one before ends: no packet is between them."""
    joined: list[AudioSpan] = []
    for span in spans:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.video.name == span.video.name
            and abs(span.begin - last.end) < _SLACK
            and abs((span.at - span.begin) - (last.at - last.begin)) < _IN_TIME
        ):
            joined[-1] = replace(last, end=span.end, is_even=last.is_even and span.is_even)
        else:
            joined.append(span)
    return joined


class _Gathered:
    def __init__(self) -> None:
        self._track: AudioTrack | None = None
        self._videos: list[Video] = []
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._last = -(1 << 62)  # the tick of the last packet
        self._end = 0.0

    def add(self, span: AudioSpan, audio: AudioTrack) -> None:
        if self._track is not None and audio.kind != self._track.kind:
            raise VideoError("Audio of different kinds cannot be joined.", file=span.video.name)
        ticks = audio.scale
        begin, end = round(span.begin * ticks), round(span.end * ticks)
        shift = round(span.at * ticks) - begin
        first = int(np.searchsorted(audio.begin, begin, side="left"))
        if not self._parts:
            heard = int(np.searchsorted(audio.begin + audio.length, begin, side="right"))
            lead_in = _LEAD_IN if heard < len(audio.size) else 0
            first = max(0, min(first, heard) - lead_in)
        else:
            first = max(first, audio.first)
        stop = int(np.searchsorted(audio.begin, end, side="left"))
        times = audio.begin[first:stop] + shift
        late = int(np.searchsorted(times, self._last, side="right"))  # rounding, at a seam
        if first + late >= stop or stop <= audio.first:
            return
        chosen = slice(first + late, stop)
        source = np.full(stop - first - late, len(self._videos))
        self._videos.append(span.video)
        columns = (audio.offset[chosen], audio.size[chosen], times[late:], audio.length[chosen])
        self._parts.append((source, *columns))
        self._track = self._track or audio
        self._last = int(times[-1])
        self._end = span.at + span.end - span.begin

    def finish(self, seconds: float) -> AudioPackets | None:
        if self._track is None:
            return None
        source, offset, size, begin, length = (
            np.concatenate(column) for column in zip(*self._parts, strict=True)
        )
        length = np.append(np.diff(begin), length[-1])
        if seconds - self._end > _SLACK:  # the last frames have none: it is silent until the end
            length[-1] = max(int(length[-1]), round(seconds * self._track.scale) - int(begin[-1]))
        if int(length.max()) > NARROW:
            raise VideoError("A gap between two packets of audio is too long.")
        return AudioPackets(self._track, source, self._videos, offset, size, begin, length)

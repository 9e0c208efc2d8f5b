"""Compares the images of two datasets: bytes first, and pixels where bytes differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from demoreel.edit.compare import psnr
from demoreel.edit.diff.difference import DifferencePlace, ImageDifference
from demoreel.edit.diff.pairs import Pair, Side
from demoreel.layouts.columns import FEW_BYTES, image_steps
from demoreel.media.decode import DecodePool, packet_bytes
from demoreel.media.video import PacketIndex, Video, VideoClip
from demoreel.read.cameras import Camera

Pixels = Literal["none", "sample", "all"]
"""What is decoded where bytes differ: nothing (no image is looked at), a few frames, all."""

_SAMPLED = 8  # frames of an episode and camera
_ROWS_AT_ONCE = 64
_DECODED_BYTES = 64 << 20
_BYTES_AT_ONCE = 1 << 20


@dataclass(slots=True)
class _FoundFrames:
    """What was found with one camera so far."""

    decoded: int = 0
    frames: int = 0
    episodes: int = 0
    first: DifferencePlace | None = None
    largest: float | None = 0.0
    sum: float = 0.0
    values: int = 0
    psnr: float = math.inf


class Images:
    """Compares images and remembers where they differ."""

    def __init__(self, a: Side, b: Side, pixels: Pixels, tolerance: float) -> None:
        self._a = a
        self._b = b
        self._pixels = pixels
        self._tolerance = tolerance
        self._pool = DecodePool(None)
        mine, theirs = a.reader.info.features, b.reader.info.features
        self._cameras = {
            key: (
                Camera(a.reader, mine[key], None, "mm"),
                Camera(b.reader, theirs[key], None, "mm"),
            )
            for key in (a.reader.info.cameras if pixels != "none" else ())
            if key in b.reader.info.cameras and mine[key].is_depth == theirs[key].is_depth
        }
        self._found = {key: _FoundFrames() for key in self._cameras}

    @property
    def decoded(self) -> int:
        """Pairs of images that had to be decoded."""
        return sum(found.decoded for found in self._found.values())

    def found(self) -> Iterator[ImageDifference]:
        """Yield the cameras whose images differ."""
        for key, found in self._found.items():
            if found.first is None:
                continue
            depth = self._cameras[key][0].feature.is_depth
            known = found.largest is not None
            yield ImageDifference(
                camera=key,
                frames=found.frames,
                decoded=found.decoded,
                episodes=found.episodes,
                first=found.first,
                largest=found.largest,
                mean=found.sum / found.values if known and found.values else None,
                psnr=found.psnr if known and not depth else None,
            )

    def compare(self, pair: Pair) -> None:
        """Compare all cameras of a pair of episodes."""
        length = min(self._a.length(pair.a), self._b.length(pair.b))
        for key in self._cameras:
            before = self._found[key].frames
            frames = self._suspects(key, pair, length)
            if self._pixels == "sample" and len(frames) > _SAMPLED:
                frames = frames[np.linspace(0, len(frames) - 1, _SAMPLED).astype(np.int64)]
            for portion in self._portions(key, frames):
                self._decode(key, pair, portion)
            self._found[key].episodes += self._found[key].frames > before

    def _suspects(self, key: str, pair: Pair, length: int) -> np.ndarray:
        """Return the frames whose images may differ, because bytes do."""
        one, other = self._cameras[key]
        every = np.arange(length)
        if one.in_tables and other.in_tables:
            rows = self._a.start(pair.a) + every
            steps = image_steps(
                self._a.reader.encoded, rows, [key], _ROWS_AT_ONCE, most_bytes=FEW_BYTES
            )
            found = [self._other_bytes(key, pair, every[at:to]) for at, to in steps]
            return np.concatenate([every[:0], *found])
        if one.in_tables or other.in_tables:
            return every
        clip_a = self._a.reader.clip(self._a.position(pair.a), key)
        clip_b = self._b.reader.clip(self._b.position(pair.b), key)
        return np.asarray(every[_other_packets(clip_a, clip_b, length)])

    def _other_bytes(self, key: str, pair: Pair, frames: np.ndarray) -> np.ndarray:
        mine = self._a.reader.encoded(self._a.start(pair.a) + frames, key)
        theirs = self._b.reader.encoded(self._b.start(pair.b) + frames, key)
        differs = [one != other for one, other in zip(mine, theirs, strict=True)]
        return np.asarray(frames[np.array(differs, bool)])

    def _portions(self, key: str, frames: np.ndarray) -> Iterator[np.ndarray]:
        height, width, _ = self._cameras[key][0].feature.image_shape
        return _parts(frames, max(1, min(_ROWS_AT_ONCE, _DECODED_BYTES // (height * width * 3))))

    def _decode(self, key: str, pair: Pair, frames: np.ndarray) -> None:
        one, other = self._cameras[key]
        mine, jobs = one.plan(self._a.start(pair.a) + frames, np.empty)
        self._pool.run(jobs)
        theirs, jobs = other.plan(self._b.start(pair.b) + frames, np.empty)
        self._pool.run(jobs)
        found = self._found[key]
        found.decoded += len(frames)
        same_size = mine.shape == theirs.shape
        for place, frame in enumerate(frames.tolist()):
            if same_size and not self._differs(found, mine[place], theirs[place]):
                continue
            found.frames += 1
            if not same_size:
                found.largest = None
            if found.first is None:
                found.first = DifferencePlace(self._a.number(pair.a), self._b.number(pair.b), frame)

    def _differs(self, found: _FoundFrames, a: np.ndarray, b: np.ndarray) -> bool:
        found.values += a.size
        if np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            return False
        distance = np.abs(a.astype(np.float32) - b.astype(np.float32))
        distance = np.nan_to_num(distance, nan=np.inf)
        largest = float(distance.max())
        found.sum += float(distance.sum(dtype=np.float64))
        if largest <= self._tolerance:
            return False
        if found.largest is not None:
            found.largest = max(found.largest, largest)
        found.psnr = min(found.psnr, psnr(distance))
        return True


def _parts(frames: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (frames[at : at + size] for at in range(0, len(frames), size))


# ── Packets ───────────────────────────────────────────────────────────────────────────────────────


def _other_packets(a: VideoClip, b: VideoClip, length: int) -> np.ndarray:
    """Return, for each frame, whether the packets that it is decoded from differ."""
    one, other = a.video.index, b.video.index
    if one.codec != other.codec:
        return np.ones(length, bool)
    frames, their_frames = (clip.frames(np.arange(length)) for clip in (a, b))
    packets_a, packets_b = _packets(one, frames), _packets(other, their_frames)
    if not np.array_equal(_shown(one, packets_a, frames), _shown(other, packets_b, their_frames)):
        return np.ones(length, bool)
    differs = np.concatenate(
        [
            _other_bytes(a.video, b.video, packets_a[part], packets_b[part])
            for part in _spans(one.size[packets_a])
        ]
    )
    # A frame depends on all packets from its keyframe on.
    before = np.concatenate([[0], np.cumsum(differs)])
    begin = np.searchsorted(packets_a, np.maximum(one.starts(frames), packets_a[0]))
    end = np.searchsorted(packets_a, one.packet_of[frames], side="right")
    return np.asarray(before[end] > before[begin])


def _packets(index: PacketIndex, frames: np.ndarray) -> np.ndarray:
    """Return the packets that these frames are decoded from, in decoding order."""
    return index.decoded_from(
        int(index.starts(frames).min()), int(index.packet_of[frames].max()) + 1
    )


def _shown(index: PacketIndex, packets: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Return which of these frames each packet becomes; -1 for all others."""
    places = np.full(index.frames + 1, -1)
    places[frames] = np.arange(len(frames))
    return np.asarray(places[index.frame_of[packets]])  # of one that is never shown, the last


def _spans(sizes: np.ndarray) -> Iterator[slice]:
    """Cut packets into portions of about as many bytes as are read at once."""
    begin, total = 0, 0
    for place, size in enumerate(sizes.tolist()):
        if place > begin and total + size > _BYTES_AT_ONCE:
            yield slice(begin, place)
            begin, total = place, 0
        total += size
    yield slice(begin, len(sizes))


def _other_bytes(a: Video, b: Video, mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    pairs = zip(packet_bytes(a, mine), packet_bytes(b, theirs), strict=True)
    return np.array([one != other for one, other in pairs], bool)

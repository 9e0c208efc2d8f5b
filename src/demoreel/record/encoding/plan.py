"""Jobs of an encoder: what to encode, the result, and what is pending."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from demoreel.errors import ArgumentError
from demoreel.media.settings import VideoSettings
from demoreel.stats.running import LevelCounts

if TYPE_CHECKING:
    from demoreel.media.remux import Signature  # with PyAV


@dataclass(frozen=True, slots=True)
class CameraPlan:
    """One camera, and how its frames are encoded.

    Attributes:
        key: The camera's key in the dataset.
        height: Frame height in pixels.
        width: Frame width in pixels.
        kind: ``rgb`` frames are height x width x 3 of uint8, ``depth`` ones height x width of
            uint16: codes for a 12-bit video, or depths for a 16-bit one.
        settings: Codec and quality.
    """

    key: str
    height: int
    width: int
    kind: Literal["rgb", "depth"]
    settings: VideoSettings

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a frame."""
        return (self.height, self.width, 3) if self.kind == "rgb" else (self.height, self.width)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of a frame's values."""
        return np.dtype(np.uint8 if self.kind == "rgb" else np.uint16)

    @property
    def nbytes(self) -> int:
        """Bytes of a frame."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @property
    def levels(self) -> tuple[int, int]:
        """The shape of the frame's histogram: channels, levels."""
        return (3, 256) if self.kind == "rgb" else (1, 65536)

    def check(self, image: np.ndarray) -> None:
        """Raise ArgumentError unless ``image`` is one of this camera's."""
        if image.shape != self.shape or image.dtype != self.dtype:
            raise ArgumentError(
                f"A frame of shape {self.shape} and type {self.dtype} was expected, "
                f"not {image.shape} {image.dtype}.",
                camera=self.key,
            )


@dataclass(frozen=True, slots=True)
class FinishedVideo:
    """One camera's video of one episode.

    Attributes:
        path: The mp4 file, complete but not synced to disk; the caller moves it away.
        frames: How many frames it has: exactly as many as frames were put.
        stats: Statistics of every frame that was put, as exact counts that merge.
        signature: What the file says of itself; it was opened again to find out.
    """

    path: Path
    frames: int
    stats: LevelCounts
    signature: Signature


@dataclass(frozen=True, slots=True)
class Backlog:
    """What was put and is not encoded yet, over all cameras.

    Attributes:
        frames_in_memory: Frames that wait in shared memory.
        frames_on_disk: Frames that wait on disk.
        bytes_on_disk: What they take there.
        seconds_behind: How much of a recording the slowest camera has yet to encode.
    """

    frames_in_memory: int = 0
    frames_on_disk: int = 0
    bytes_on_disk: int = 0
    seconds_behind: float = 0.0

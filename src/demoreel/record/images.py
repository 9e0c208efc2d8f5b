"""Encodes images of image cameras beside the control loop: lossless PNG, buffered until saved.

An image that waits is in memory up to a limit, and in a file beyond it, so that the loop neither
waits for the encoder nor fills the memory.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demoreel.errors import EncoderBehindError
from demoreel.media.images import ImageCodec, encode_image
from demoreel.model.depth import whole_millimetres
from demoreel.record.encoding.spill import write_at
from demoreel.stats.running import LevelCounts
from demoreel.storage.commit.files import reason_of

_PNG = ImageCodec("png")


@dataclass(slots=True)
class _Waiting:
    """An image that is to be encoded: its pixels, or where they are in the file."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    pixels: np.ndarray | None
    offset: int = 0


class ImageWriters:
    """Encodes the images of image cameras on threads.

    Args:
        cameras: The cameras.
        workdir: Where pixels go that memory has no room for.
        memory_mb: How many pixels may wait in memory.
        threads: Threads that encode; None is one a core, at most four.
    """

    def __init__(
        self,
        cameras: Sequence[str],
        *,
        workdir: Path,
        memory_mb: int = 256,
        threads: int | None = None,
    ) -> None:
        self._cameras = tuple(cameras)
        self._limit = memory_mb << 20
        self._workdir = workdir
        self._threads = threads or min(4, os.cpu_count() or 1)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._held = 0
        self._spill: int | None = None
        self._end = 0
        self._encoded: dict[str, list[tuple[_Waiting, Future[bytes]]]]
        self._encoded = {key: [] for key in self._cameras}
        self._stats = {key: LevelCounts() for key in self._cameras}

    @property
    def waiting(self) -> int:
        """Images that are not encoded yet."""
        return sum(not done.done() for each in self._encoded.values() for _, done in each)

    def hold(self, images: Mapping[str, np.ndarray]) -> dict[str, _Waiting]:
        """Copy a frame's images; they are ``encode``d or ``let_go`` next."""
        held: dict[str, _Waiting] = {}
        try:
            for key, image in images.items():
                held[key] = self._held_or_spilled(image)
        except OSError as error:
            self.let_go(held)
            raise EncoderBehindError(
                f"Encoding is behind, memory is full, and the disk fails: {reason_of(error)}.",
                hint="free disk space, or give more memory_mb",
                camera=key,
            ) from error
        return held

    def let_go(self, held: Mapping[str, _Waiting]) -> None:
        """Forget images that were held: their frame is not recorded."""
        with self._lock:
            for task in held.values():
                if task.pixels is not None:
                    self._held -= task.pixels.nbytes

    def encode(self, held: Mapping[str, _Waiting]) -> None:
        """Encode images that were held, beside the caller."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="demoreel-png")
        for key, task in held.items():
            self._encoded[key].append((task, self._pool.submit(self._encode, key, task)))

    def _held_or_spilled(self, image: np.ndarray) -> _Waiting:
        with self._lock:
            fits = self._held + image.nbytes <= self._limit
            if fits:
                self._held += image.nbytes
        if fits:
            return _Waiting(image.shape, image.dtype, np.array(image))
        if self._spill is None:
            handle, name = tempfile.mkstemp(dir=self._workdir, prefix="images-")
            os.unlink(name)  # gone with this process, however it ends
            self._spill = handle
        offset = self._end
        write_at(self._spill, np.ascontiguousarray(image), offset)
        self._end += image.nbytes
        return _Waiting(image.shape, image.dtype, None, offset)

    def _encode(self, key: str, task: _Waiting) -> bytes:
        pixels = task.pixels
        if pixels is None:
            assert self._spill is not None
            size = int(np.prod(task.shape)) * task.dtype.itemsize
            data = os.pread(self._spill, size, task.offset)
            if len(data) < size:
                raise OSError(errno.EIO, "an image that waited on disk is cut short")
            pixels = np.frombuffer(data, task.dtype).reshape(task.shape)
        encoded = encode_image(pixels, _PNG)
        counted = whole_millimetres(pixels) if pixels.dtype.kind == "f" else pixels
        with self._lock:
            self._stats[key].add(counted)
            if task.pixels is not None:
                self._held -= pixels.nbytes
        task.pixels = None
        return encoded

    def finish_episode(self) -> tuple[dict[str, list[bytes]], Mapping[str, LevelCounts]]:
        """Wait for the encoders; return every image and its cameras' statistics."""
        images = {
            key: [self._result(key, *each) for each in waiting]
            for key, waiting in self._encoded.items()
        }
        stats = self._stats
        self._forget()
        return images, stats

    def _result(self, key: str, task: _Waiting, done: Future[bytes]) -> bytes:
        try:
            return done.result()
        except OSError:  # a disk that failed once may do well now
            return self._encode(key, task)

    def discard_episode(self) -> None:
        """Forget the images since the last episode."""
        for each in self._encoded.values():
            for _, done in each:
                done.cancel()
            for _, done in each:
                if not done.cancelled():
                    done.exception()
        self._forget()

    def _forget(self) -> None:
        if self._spill is not None:
            os.close(self._spill)
        self._begin()

    def close(self) -> None:
        """Stop the threads."""
        self.discard_episode()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

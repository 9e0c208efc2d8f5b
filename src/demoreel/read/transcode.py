"""From the frames of whole episodes, in videos or in tables, to encoded images, in order."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator
from functools import partial

import numpy as np

from demoreel.errors import ArgumentError, FrameMismatchError, PictureError
from demoreel.layouts.base import Reader
from demoreel.media.decode import Decoder
from demoreel.media.image_encode import ImageCodec, encode_image
from demoreel.media.images import decode_image, image_size
from demoreel.model import Feature
from demoreel.read.cameras import wrong_size
from demoreel.read.in_order import FrameRuns, ImageRun, VideoRun, in_order
from demoreel.read.pool import default_threads

MOST_ROWS = 256
"""Rows in a portion, at most."""

_BYTES_WAITING = 64 << 20


def encoded_images(
    reader: Reader,
    *,
    first: int,
    stop: int,
    codec: ImageCodec,
    threads: int | None = None,
) -> Generator[dict[str, list[bytes]]]:
    """Encode every camera's frames of the episodes at positions ``first`` to ``stop`` - 1.

    Cost: see ``FrameRuns``. At most 64 MiB of encoded images wait for the caller.

    Depth videos give their 12-bit codes as PNG of 16 bits, whatever the codec. Depth images in
    tables stay as they are: they are without loss already.

    Args:
        reader: The dataset's layout.
        first: Position of the first episode.
        stop: One past the position of the last.
        codec: How to encode; ``source`` keeps the bytes of images that lie in tables.
        threads: How many decode and encode; None is every core. There are at least as many as
            cameras.

    Returns:
        Portions of consecutive rows, at most 256: for each camera, as many encoded images. A
        dataset without cameras has none.

    Raises:
        ArgumentError: There are no such episodes, or the codec is ``source`` and a camera's
            frames lie in videos.
        VideoError: A video is missing, or a frame does not decode (while iterating, as below).
        PictureError: An image in a table does not decode.
    """
    if not 0 <= first <= stop <= len(reader.episodes):
        raise ArgumentError(
            f"There are no episodes at positions {first} to {stop}.",
            hint=f"the dataset has {len(reader.episodes)}",
            dataset=reader.root,
        )
    if threads is not None and threads < 1:
        raise ArgumentError(f"threads must be at least 1, not {threads}.")
    cameras = [reader.info.features[key] for key in reader.info.cameras]
    for camera in cameras:
        if codec.name == "source" and not reader.in_tables(camera.key):
            raise ArgumentError(
                "Video frames have no source image bytes to keep.",
                hint="choose jpeg, png or webp-lossless",
                dataset=reader.root,
                camera=camera.key,
            )
    return _portions(reader, cameras, first, stop, codec, threads or default_threads())


def _portions(
    reader: Reader, cameras: list[Feature], first: int, stop: int, codec: ImageCodec, threads: int
) -> Generator[dict[str, list[bytes]]]:
    if not cameras:
        return
    runs = FrameRuns(reader)
    # In the order of rows over all cameras: then the row that the caller waits for is always being
    # worked on, also when all other threads wait for the caller.
    merged = heapq.merge(*(runs.of(c, first, stop) for c in cameras), key=lambda run: run.row)
    jobs = ((run.camera.key, partial(_encoded, run, codec)) for run in merged)
    keys = [camera.key for camera in cameras]
    yield from in_order(jobs, keys, threads=threads, most=MOST_ROWS, room=_BYTES_WAITING, size=len)


def _encoded(run: VideoRun | ImageRun, codec: ImageCodec, decoder: Decoder) -> Iterator[bytes]:
    declared = run.camera.image_shape[:2]
    keep = codec.name == "source" or run.camera.is_depth

    def image(data: bytes) -> bytes:
        found = image_size(data)
        if found != declared:
            raise PictureError(wrong_size(found, declared))
        return data if keep else encode_image(decode_image(data, on_desk=True), codec)

    def frame(shown: np.ndarray) -> bytes:
        if shown.shape[:2] != declared:
            raise FrameMismatchError(wrong_size(shown.shape[:2], declared))
        return encode_image(shown, codec)

    return run.decode(decoder, image, frame)

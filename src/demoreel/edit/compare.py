"""Compares written data with its source: values, bytes, decoded frames.

Frames of videos that were re-encoded are compared in small, as 16 by 16 averages: what a codec
loses at any quality is hardly seen there, and another frame, a shifted or a broken one is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from demoreel.edit.video_plan import VideoPlan
from demoreel.errors import ConversionError
from demoreel.layouts.base import Column, Reader
from demoreel.media.colour import depth_codes
from demoreel.media.decode import DecodePool, Decoder, GopSpan
from demoreel.media.images import ImageCodec, decode_image
from demoreel.media.video import VideoClip as Place
from demoreel.read.cameras import Camera
from demoreel.storage.local import Comparer
from demoreel.storage.store import Bytes

_SAMPLED_EPISODES = 8
_LUMA = np.array([0.299, 0.587, 0.114])
_HINT = "nothing was kept; the disk or the memory may be at fault: try again"
_SIDE = 16
_LOWEST_PSNR = 22.0


def differs(what: str, **where: Any) -> ConversionError:
    """Return the error that says what is not the same."""
    return ConversionError(f"{what} between the source and what was written.", hint=_HINT, **where)


def unreadable(error: Exception, **where: Any) -> ConversionError:
    """Return the error that says that what was written cannot be read."""
    what = getattr(error, "what", str(error))
    return ConversionError(f"What was written cannot be read back: {what}", hint=_HINT, **where)


def compare_copy(source: Bytes, handle: int, begin: int) -> None:
    """Compare a file's copy with it, while the disk is still writing it out.

    Cost: reads both, at the speed of memory.
    """
    different = Comparer().first_difference(source, 0, handle, begin, source.size)
    if different is not None:
        raise differs("A video's bytes differ", file=getattr(source, "path", None), at=different)


def sampled(total: int) -> list[int]:
    """Return some numbers below ``total``: the first, the last, and a few between."""
    random = np.random.default_rng(0).integers(0, total, _SAMPLED_EPISODES - 2).tolist()
    return sorted({0, total - 1, *random})


def same_column(left: Column, right: Column) -> bool:
    """Whether two columns hold the same, bit for bit."""
    if not isinstance(left, np.ndarray) or not isinstance(right, np.ndarray):
        return bool(left == right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    # As bytes: not-a-number equals itself then, and minus zero is not zero.
    one, other = np.ascontiguousarray(left), np.ascontiguousarray(right)
    return bool(np.array_equal(one.view(np.uint8), other.view(np.uint8))) if one.size else True


def compare_frames(
    left: Reader,
    right: Reader,
    *,
    frames: int,
    codec: ImageCodec | None,
    check: Callable[[], None],
    encoded: Collection[str] = (),
) -> tuple[int, float | None]:
    """Compare a sample of decoded frames, in all cameras.

    Cost: decodes that many frames of both.

    Args:
        left: The source.
        right: What was made of it: the same frames, in the same order.
        frames: How many.
        codec: How images were encoded; None if they were not.
        check: Called now and then; may raise to stop.
        encoded: Cameras whose videos were re-encoded, perhaps scaled.

    Returns:
        How many images were compared, and the worst brightness PSNR where a codec is in the way.
    """
    total = left.episodes.total_frames
    random = np.random.default_rng(0).integers(0, total, max(0, frames - 2))
    chosen = np.unique([0, total - 1, *random.tolist()])
    worst: float | None = None
    pool = DecodePool(None)
    for camera in left.info.cameras:
        check()
        anew = camera in encoded and not left.info.features[camera].is_depth
        size = right.info.features[camera].image_shape[:2] if anew else None
        mine, theirs = (_decoded(reader, camera, chosen, pool, size) for reader in (left, right))
        lossy = anew or (codec is not None and codec.name == "jpeg")
        if not lossy or left.info.features[camera].is_depth:
            if not np.array_equal(mine, theirs, equal_nan=True):
                raise differs("A decoded frame differs", camera=camera, dataset=left.root)
            continue
        for row, image, twin in zip(chosen.tolist(), mine, theirs, strict=True):
            near = _luma_psnr(image, twin)
            worst = near if worst is None else min(worst, near)
            if anew:
                is_other = not _alike(image.transpose(1, 2, 0), twin.transpose(1, 2, 0))
            else:
                is_other = codec is not None and near < _lowest_psnr(codec.quality)
            if is_other:
                raise differs(
                    f"An image is too far from its source ({near:.1f} dB)",
                    camera=camera,
                    row=row,
                    dataset=left.root,
                )
    return len(chosen) * len(left.info.cameras), worst


def _decoded(
    reader: Reader,
    camera: str,
    rows: np.ndarray,
    pool: DecodePool,
    size: tuple[int, int] | None,
) -> np.ndarray:
    """Return the images of these rows, and nothing else of them."""
    out, jobs = Camera(reader, reader.info.features[camera], size, "mm").plan(rows, np.empty)
    pool.run(jobs)
    return out


def _luma_psnr(left: np.ndarray, right: np.ndarray) -> float:
    """Return how near two images' brightness is, in dB; JPEG may coarsen colours at will."""
    if left.shape != right.shape:
        return 0.0
    difference = np.tensordot(_LUMA, left.astype(np.float64) - right, axes=(0, 0))
    return min(99.0, psnr(difference))


def psnr(difference: np.ndarray) -> float:
    """Return the PSNR of images of 256 levels, in dB, from the differences of their pixels."""
    error = float(np.square(difference, dtype=np.float64).mean())
    return -10 * math.log10(error / 255**2) if error else math.inf


def _lowest_psnr(quality: int) -> float:
    """Return what JPEG of this quality reaches even on noise, with room to spare."""
    return 25.0 if quality >= 90 else 15.0 if quality >= 50 else 8.0


def is_encoded(of_camera: VideoPlan, clip: int, place: Place, frame: int) -> bool:
    """Whether a clip's frame was re-encoded, and is no copy."""
    return any(place.step * frame in frames for frames in of_camera.encoded.get(clip, ()))


def shows_the_same(
    mine: Place, frame: int, reader: Reader, position: int, key: str, their_frame: int
) -> bool:
    """Whether a frame of the result shows what a frame of a source's episode does.

    Depth must be the very same. Cost: decodes both.
    """
    own = _image(mine, frame)
    if reader.in_tables(key):
        row = int(reader.episodes.start[position]) + their_frame
        other = decode_image(reader.encoded(np.array([row]), key)[0])
    else:
        other = _image(reader.clip(position, key), their_frame)
    if own.dtype == np.uint16 or own.ndim != other.ndim:
        return bool(np.array_equal(own, other))
    return _alike(own, other)


def _alike(own: np.ndarray, other: np.ndarray) -> bool:
    """Whether two images look alike in small; one of them may be scaled."""
    parts = [min(_SIDE, *sides) for sides in zip(own.shape[:2], other.shape[:2], strict=True)]
    return psnr(_in_small(own, parts) - _in_small(other, parts)) >= _LOWEST_PSNR


def _image(place: Place, frame: int) -> np.ndarray:
    video = place.video
    wanted = int(place.frames(np.array(frame)))
    decoder = Decoder()
    span = GopSpan(video.index, video.file, video.name, (wanted,))
    for _, found in decoder.frames(span):
        if found.format.name.startswith("gray1"):
            return depth_codes(found).copy()
        return decoder.painter.packed(found).copy()
    raise AssertionError("a decoder gives what it is asked for, or an error")


def _in_small(image: np.ndarray, parts: Sequence[int]) -> np.ndarray:
    """Return averages of an image's parts: so many down, and so many across."""
    height, width = image.shape[:2]
    rows = np.linspace(0, height, parts[0] + 1).astype(int)[:-1]
    columns = np.linspace(0, width, parts[1] + 1).astype(int)[:-1]
    sums = np.add.reduceat(np.add.reduceat(image.astype(np.float64), rows), columns, axis=1)
    down = np.diff(np.append(rows, height))
    across = np.diff(np.append(columns, width))
    return np.asarray(sums / np.multiply.outer(down, across)[..., None])

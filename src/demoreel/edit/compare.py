"""Comparing what was written with what it was made of: values, bytes, decoded frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from demoreel.errors import ConversionError
from demoreel.layouts.base import Column, Reader
from demoreel.media.decode import DecodePool
from demoreel.media.images import ImageCodec
from demoreel.read.cameras import Camera
from demoreel.storage.local import Comparer
from demoreel.storage.store import Bytes

_SAMPLED_EPISODES = 8
_LUMA = np.array([0.299, 0.587, 0.114])
_HINT = "nothing was kept; the disk or the memory may be at fault: try again"


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
) -> tuple[int, float | None]:
    """Compare a sample of decoded frames, in all cameras.

    Cost: decodes that many frames of both.

    Args:
        left: The source.
        right: What was made of it: the same frames, in the same order.
        frames: How many.
        codec: How images were encoded; None if they were not.
        check: Called now and then; may raise to stop.

    Returns:
        How many images were compared, and the worst brightness PSNR where JPEG is in the way.
    """
    total = left.episodes.total_frames
    random = np.random.default_rng(0).integers(0, total, max(0, frames - 2))
    chosen = np.unique([0, total - 1, *random.tolist()])
    worst: float | None = None
    pool = DecodePool(None)
    for camera in left.info.cameras:
        check()
        mine, theirs = (_decoded(reader, camera, chosen, pool) for reader in (left, right))
        if codec is None or codec.name != "jpeg" or left.info.features[camera].is_depth:
            if not np.array_equal(mine, theirs, equal_nan=True):
                raise differs("A decoded frame differs", camera=camera, dataset=left.root)
            continue
        for row, image, twin in zip(chosen.tolist(), mine, theirs, strict=True):
            near = _luma_psnr(image, twin)
            worst = near if worst is None else min(worst, near)
            if near < _lowest_psnr(codec.quality):
                raise differs(
                    f"An image is too far from its source ({near:.1f} dB)",
                    camera=camera,
                    row=row,
                    dataset=left.root,
                )
    return len(chosen) * len(left.info.cameras), worst


def _decoded(reader: Reader, camera: str, rows: np.ndarray, pool: DecodePool) -> np.ndarray:
    """Return the images of these rows, and nothing else of them."""
    out, jobs = Camera(reader, reader.info.features[camera], None, "mm").plan(rows, np.empty)
    pool.run(jobs)
    return out


def _luma_psnr(left: np.ndarray, right: np.ndarray) -> float:
    """Return how near two images' brightness is, in dB; JPEG may coarsen colours at will."""
    if left.shape != right.shape:
        return 0.0
    difference = np.tensordot(_LUMA, left.astype(np.float64) - right, axes=(0, 0))
    error = float(np.mean(difference**2))
    return 99.0 if error == 0 else float(min(99.0, 10 * np.log10(255**2 / error)))


def _lowest_psnr(quality: int) -> float:
    """Return what JPEG of this quality reaches even on noise, with room to spare."""
    return 25.0 if quality >= 90 else 15.0 if quality >= 50 else 8.0

"""Single frames for a page: where the browser does not decode, and for thumbnails."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
from PIL import Image

from demoreel.errors import ArgumentError
from demoreel.read.dataset import Dataset

_SHARP = 92
_SMALL = 75
_WIDEST = 4096
_THUMBNAIL = 240  # pixels; wider images are looked at closely


def frame_image(
    dataset: Dataset, episode: int, camera: str, frame: int, width: int | None
) -> bytes:
    """Return a frame as JPEG, ``width`` pixels wide if it is wider; depth as grey."""
    if width is not None and not 0 < width <= _WIDEST:
        raise ArgumentError(f"A frame is not shown {width} pixels wide.")
    return jpeg_of(_decoded(dataset, episode, camera, frame), width)


def jpeg_of(image: np.ndarray, width: int | None = None) -> bytes:
    """Return an image as JPEG: (height, width, channels) in uint8, or depth in any number.

    Args:
        image: The image; depth is shown as grey from near to far.
        width: How wide, if it is wider; None is as it is.
    """
    if image.ndim == 2 and image.dtype != np.uint8:
        top = float(np.nanmax(image, initial=0)) or 1.0
        image = np.clip(np.nan_to_num(image) / top * 255, 0, 255).astype(np.uint8)
    elif image.shape[-1] == 1:
        image = image[..., 0]
    shown = Image.fromarray(np.ascontiguousarray(image))
    if width is not None and width < shown.width:
        height = max(1, round(shown.height * width / shown.width))
        shown = shown.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    buffer = io.BytesIO()
    small: Literal[True, False] = width is not None and width <= _THUMBNAIL
    shown.save(buffer, "JPEG", quality=_SMALL if small else _SHARP, subsampling=2 if small else 0)
    return buffer.getvalue()


def depth_values(dataset: Dataset, episode: int, camera: str, frame: int) -> tuple[bytes, int, int]:
    """Return a depth frame's millimetres as little-endian uint16, its height and its width.

    0 is "not measured"; what is farther than 65 m is 65,535.
    """
    image = _decoded(dataset, episode, camera, frame)
    values = np.clip(np.nan_to_num(image), 0, 65535).round().astype("<u2")
    return values.tobytes(), int(values.shape[0]), int(values.shape[1])


def _decoded(dataset: Dataset, episode: int, camera: str, frame: int) -> np.ndarray:
    return next(iter(dataset.episode(episode).frames(camera, frame, frame + 1)))

"""Encoded pictures (PNG, JPEG, TIFF, WebP) to arrays."""

from __future__ import annotations

import io
import threading

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

from demoreel.errors import PictureError

_JPEG = b"\xff\xd8\xff"
_desks = threading.local()
_UNREADABLE = (
    UnidentifiedImageError,
    Image.DecompressionBombError,
    OSError,
    ValueError,
    SyntaxError,
)


def decode_picture(
    data: bytes | None, *, size: tuple[int, int] | None = None, on_desk: bool = False
) -> np.ndarray:
    """Return an encoded picture as RGB (height, width, 3; uint8).

    Args:
        data: The encoded bytes.
        size: Height and width to scale to.
        on_desk: Decode into memory that the calling thread's next picture will use again: fresh
            memory costs half as much as decoding a JPEG.

    Raises:
        PictureError: The bytes are missing, cut off, or no picture.
    """
    if not data:
        raise PictureError("A picture is missing from its table.")
    try:
        shape = _plain_jpeg_shape(data) if size is None else None
        if shape is not None:
            memory = _desk(shape[0] * shape[1] * 3) if on_desk else None
            rgb: np.ndarray = simplejpeg.decode_jpeg(data, colorspace="RGB", buffer=memory)
            return rgb
        with Image.open(io.BytesIO(data)) as image:
            picture = image.convert("RGB") if image.mode != "RGB" else image
            if size is not None and picture.size != (size[1], size[0]):
                picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            return np.array(picture)
    except _UNREADABLE as error:
        raise PictureError(f"A picture does not decode ({error}).") from error


def _plain_jpeg_shape(data: bytes) -> tuple[int, int] | None:
    """Return a JPEG's size if libjpeg-turbo gives Pillow's pixels; of CMYK it makes others."""
    if data[:3] != _JPEG:
        return None
    height, width, colours = simplejpeg.decode_jpeg_header(data)[:3]
    return (height, width) if colours in ("YCbCr", "Gray", "RGB") else None


def _desk(size: int) -> np.ndarray:
    """Return the calling thread's memory, of at least ``size`` bytes."""
    memory: np.ndarray | None = getattr(_desks, "memory", None)
    if memory is None or len(memory) < size:
        memory = _desks.memory = np.empty(size, np.uint8)
    return memory


def decode_depth_picture(data: bytes | None, *, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return a depth picture's values (height, width; float32), in the unit they were stored in.

    Scaling takes the nearest value: a mean of near and far is a distance where nothing is.

    Raises:
        PictureError: The bytes are missing, cut off, or no picture.
    """
    if not data:
        raise PictureError("A depth picture is missing from its table.")
    try:
        with Image.open(io.BytesIO(data)) as image:
            if size is not None and image.size != (size[1], size[0]):
                return np.array(
                    image.resize((size[1], size[0]), Image.Resampling.NEAREST), np.float32
                )
            return np.array(image, dtype=np.float32)
    except _UNREADABLE as error:
        raise PictureError(f"A depth picture does not decode ({error}).") from error


def picture_size(data: bytes | None) -> tuple[int, int]:
    """Return an encoded picture's height and width, from its header alone.

    Raises:
        PictureError: The bytes are missing, cut off, or no picture.
    """
    if not data:
        raise PictureError("A picture is missing from its table.")
    try:
        if data[:3] == _JPEG:
            height, width = simplejpeg.decode_jpeg_header(data)[:2]
            return height, width
        with Image.open(io.BytesIO(data)) as image:
            return image.height, image.width
    except _UNREADABLE as error:
        raise PictureError(f"A picture does not decode ({error}).") from error

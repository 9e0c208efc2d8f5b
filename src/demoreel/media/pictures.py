"""Encoded pictures (PNG, JPEG, TIFF, WebP) to arrays."""

from __future__ import annotations

import io

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

from demoreel.errors import PictureError

_JPEG = b"\xff\xd8\xff"


def decode_picture(data: bytes | None, *, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return an encoded picture as RGB (height, width, 3; uint8).

    Args:
        data: The encoded bytes.
        size: Height and width to scale to.

    Raises:
        PictureError: The bytes are missing, cut off, or no picture.
    """
    if not data:
        raise PictureError("A picture is missing from its table.")
    try:
        if data[:3] == _JPEG and size is None:
            rgb: np.ndarray = simplejpeg.decode_jpeg(data, colorspace="RGB")
            return rgb
        with Image.open(io.BytesIO(data)) as image:
            picture = image.convert("RGB") if image.mode != "RGB" else image
            if size is not None and picture.size != (size[1], size[0]):
                picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            return np.array(picture)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise PictureError(f"A picture does not decode ({error}).") from error


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
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise PictureError(f"A depth picture does not decode ({error}).") from error

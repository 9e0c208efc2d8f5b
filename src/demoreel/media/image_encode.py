"""Arrays to encoded images: JPEG, PNG, WebP; depth always as PNG of 16 bits.

Measured on images of 480x640 from a robot's camera, one core:

=============  ==========  ===========
codec          encode      size
=============  ==========  ===========
jpeg 95        0.9 ms      62 kB
png            16 ms       299 kB
webp-lossless  16 ms       180 kB
=============  ==========  ===========

PNG's stronger levels make it a sixth smaller for four times the time; so do WebP's. The JPEG
encoder's "fast" transform is no faster on processors of today, so the exact one is used.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import simplejpeg
from PIL import Image

from demoreel.errors import ArgumentError

CodecName = Literal["jpeg", "png", "webp-lossless", "source"]
Subsampling = Literal[0, 1, 2]

_CHROMA = {0: "444", 1: "422", 2: "420"}
_PNG: dict[str, Any] = {"format": "PNG", "compress_level": 1}
_WEBP: dict[str, Any] = {"format": "WEBP", "lossless": True, "method": 0, "quality": 0}


@dataclass(frozen=True, slots=True)
class ImageCodec:
    """How images are encoded.

    Attributes:
        name: ``jpeg`` loses a little; ``png`` and ``webp-lossless`` lose nothing and cost some 15
            times the time and 3 to 5 times the space; ``source`` keeps the bytes of images that
            are encoded already.
        quality: Of JPEG, 1 to 100.
        subsampling: Of JPEG's colours: 0 keeps all (4:4:4), 1 halves them across (4:2:2), 2 across
            and down (4:2:0).

    Raises:
        ArgumentError: There is no such codec, quality or subsampling.
    """

    name: CodecName
    quality: int = 95
    subsampling: Subsampling = 2

    def __post_init__(self) -> None:
        if self.name not in get_args(CodecName):
            known = ", ".join(get_args(CodecName))
            raise ArgumentError(f"There is no image codec {self.name!r}.", hint=f"one of {known}")
        if not _is_whole(self.quality) or not 1 <= self.quality <= 100:
            raise ArgumentError(f"JPEG's quality goes from 1 to 100, not {self.quality!r}.")
        if not _is_whole(self.subsampling) or self.subsampling not in _CHROMA:
            raise ArgumentError(
                f"JPEG's subsampling must be 0, 1 or 2, not {self.subsampling!r}.",
                hint="0 is 4:4:4, 1 is 4:2:2, 2 is 4:2:0",
            )

    @property
    def is_lossless(self) -> bool:
        """Whether decoding gives the very same pixels."""
        return self.name != "jpeg"

    def __str__(self) -> str:
        if self.name != "jpeg":
            return self.name
        return f"jpeg quality {self.quality} subsampling {self.subsampling}"


def encode_image(image: np.ndarray, codec: ImageCodec) -> bytes:
    """Encode one image; releases the GIL for most of the work.

    Args:
        image: RGB (height, width, 3; uint8), or depth codes (height, width; uint16), which are
            always stored without loss as PNG of 16 bits.
        codec: How to encode colours.

    Raises:
        ArgumentError: The array is no such image, or is too large for the codec, or the codec is
            ``source``, which encodes nothing.
    """
    try:
        if image.dtype == np.uint16 and image.ndim == 2:
            return _pillow(image, _PNG)
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ArgumentError(
                f"An image is (height, width, 3) of uint8 or (height, width) of uint16, not "
                f"{image.shape} of {image.dtype}."
            )
        if codec.name == "jpeg":
            encoded: bytes = simplejpeg.encode_jpeg(
                np.ascontiguousarray(image),
                quality=codec.quality,
                colorsubsampling=_CHROMA[codec.subsampling],
                fastdct=False,
            )
            return encoded
        if codec.name == "png":
            return _pillow(image, _PNG)
        if codec.name == "webp-lossless":
            return _pillow(image, _WEBP)
    except (ValueError, OSError, SystemError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"An image of {image.shape} cannot be encoded as {codec.name} ({error}).",
            hint="JPEG goes to 65535 pixels a side, WebP to 16383; PNG knows no limit",
        ) from error
    raise ArgumentError(
        "The codec 'source' keeps bytes; it encodes nothing.", hint="use jpeg, png or webp-lossless"
    )


def _pillow(image: np.ndarray, options: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, **options)
    return buffer.getvalue()


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)

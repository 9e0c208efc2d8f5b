"""Decodes images (PNG, JPEG, TIFF, WebP) to arrays, and encodes arrays.

Encoding, measured on images of 480x640 from a robot's camera, one core:

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
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from demoreel.errors import ArgumentError, PictureError
from demoreel.model.limits import refuse_above
from demoreel.packages import load_late

if TYPE_CHECKING:
    import simplejpeg
    from PIL import Image
else:
    simplejpeg, Image = load_late("simplejpeg"), load_late("PIL.Image")

_JPEG = b"\xff\xd8\xff"
_SCAN = b"\xff\xda"  # never in a scan's own bytes
_MOST_SEGMENTS = 64  # before the first scan
_MOST_SCANS = 100  # encoders make about ten; each is a pass over all pixels, and may be 14 bytes
# Pillow has dozens of formats, among them some that start programs (EPS).
_FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF")
_desks = threading.local()

CodecName = Literal["jpeg", "png", "webp-lossless", "source"]
Subsampling = Literal[0, 1, 2]
_CHROMA = {0: "444", 1: "422", 2: "420"}
_PNG: dict[str, Any] = {"format": "PNG", "compress_level": 1}
_TIFF: dict[str, Any] = {"format": "TIFF", "compression": "raw"}
_WEBP: dict[str, Any] = {"format": "WEBP", "lossless": True, "method": 0, "quality": 0}


@cache
def _unreadable() -> tuple[type[BaseException], ...]:
    """Return what Pillow raises for files that it cannot read."""
    from PIL import UnidentifiedImageError

    bomb = Image.DecompressionBombError
    return (UnidentifiedImageError, bomb, MemoryError, OSError, ValueError, SyntaxError)


def decode_image(
    data: bytes | None,
    *,
    size: tuple[int, int] | None = None,
    on_desk: bool = False,
    declared: tuple[int, int] | None = None,
) -> np.ndarray:
    """Return an encoded image as RGB (height, width, 3; uint8).

    Args:
        data: The encoded bytes.
        size: Height and width to scale to.
        on_desk: Decode into memory that the calling thread's next image will use again: fresh
            memory costs half as much as decoding a JPEG.
        declared: Height and width that it must have.
    """
    with _readable(data) as encoded:
        shape = _plain_jpeg_shape(encoded) if size is None else None
        if shape is not None:
            _require_size(shape, declared)
            memory = _desk("RGB", shape[0] * shape[1] * 3) if on_desk else None
            rgb: np.ndarray = simplejpeg.decode_jpeg(encoded, colorspace="RGB", buffer=memory)
            return rgb
        with open_image(encoded) as image:
            _require_size((image.height, image.width), declared)
            return np.array(_as_rgb(image, size))


def paint_image(
    data: bytes | None,
    out: np.ndarray,
    *,
    scale: bool = False,
    declared: tuple[int, int] | None = None,
) -> None:
    """Decode an encoded image into planes of red, green and blue.

    Args:
        data: The encoded bytes.
        out: Where to (3, height, width; uint8).
        scale: Whether an image of another size is scaled.
        declared: Height and width that it must have before that.
    """
    size = out.shape[1], out.shape[2]
    with _readable(data) as encoded:
        shape = _plain_jpeg_shape(encoded)
        if shape is not None and (shape == size or not scale):
            _require_size(shape, declared or size)
            _require_size(shape, size)
            _split(_decode_words(encoded, shape), out)
            return
        with open_image(encoded) as image:
            _require_size((image.height, image.width), declared if scale else size)
            image = _as_rgb(image, size if scale else None)
            for plane, band in zip(out, "RGB", strict=True):
                plane[...] = np.frombuffer(image.tobytes("raw", band), np.uint8).reshape(size)


def _require_size(found: tuple[int, int], wanted: tuple[int, int] | None) -> None:
    if wanted is not None and found != wanted:
        raise PictureError(
            f"An image is {found[0]}x{found[1]} where {wanted[0]}x{wanted[1]} was declared."
        )


def _decode_words(data: bytes, shape: tuple[int, int]) -> np.ndarray:
    """Decode a JPEG into one word per pixel, red in its lowest byte, on the thread's desk."""
    memory = _desk("RGBX", shape[0] * shape[1] * 4)
    pixels: np.ndarray = simplejpeg.decode_jpeg(data, colorspace="RGBX", buffer=memory)
    return pixels.view("<u4")[..., 0]


def _split(words: np.ndarray, out: np.ndarray) -> None:
    """Split words into planes, and spoil them; every third byte would be twice as slow."""
    np.copyto(out[0], words, casting="unsafe")  # a cast keeps the lowest byte
    for plane in out[1:]:
        np.right_shift(words, 8, out=words)
        np.copyto(plane, words, casting="unsafe")


@contextmanager
def _readable(data: bytes | None) -> Iterator[bytes]:
    """Turn whatever decoders raise about these bytes into a ``PictureError``."""
    if not data:
        raise PictureError("An image is missing from its table.")
    try:
        yield data
    except _unreadable() as error:
        if isinstance(error, PictureError):
            raise
        raise PictureError(f"An image does not decode ({error}).") from error


def open_image(data: bytes) -> Image.Image:
    """Open an encoded image of one of the formats that datasets hold; nothing is decoded yet."""
    _refuse_scans(data)
    image = Image.open(io.BytesIO(data), formats=_FORMATS)
    _refuse_large(image.height, image.width)
    return image


def _refuse_scans(data: bytes) -> None:
    if data[:3] != _JPEG or _is_one_scan(data):
        return
    scans = data.count(_SCAN)
    if scans > _MOST_SCANS:
        raise PictureError(f"An image has {scans} scans; {_MOST_SCANS} at most were expected.")


def _is_one_scan(data: bytes) -> bool:
    """Whether the first scan of a JPEG has all of it: a second one is an error. Most are so."""
    at, components = 2, 0
    for _ in range(_MOST_SEGMENTS):
        head = data[at : at + 10]
        if len(head) < 10 or head[0] != 0xFF:
            return False
        if head[1] in (0xC0, 0xC1):  # sequential; of other kinds it stays 0
            components = head[9]
        elif head[1] == 0xDA:
            return head[4] == components
        at += 2 + int.from_bytes(head[2:4], "big")
    return False


def _refuse_large(height: int, width: int) -> None:
    what = f"An image says that it is {height} x {width}: pixels"
    refuse_above("IMAGE_PIXELS", height * width, what, PictureError)


def _as_rgb(image: Image.Image, size: tuple[int, int] | None) -> Image.Image:
    image = image.convert("RGB") if image.mode != "RGB" else image
    if size is not None and image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return image


def _plain_jpeg_shape(data: bytes) -> tuple[int, int] | None:
    """Return a JPEG's size if libjpeg-turbo gives Pillow's pixels; of CMYK it makes others."""
    if data[:3] != _JPEG:
        return None
    _refuse_scans(data)
    height, width, colours = simplejpeg.decode_jpeg_header(data)[:3]
    _refuse_large(height, width)
    return (height, width) if colours in ("YCbCr", "Gray", "RGB") else None


def _desk(use: str, size: int) -> np.ndarray:
    """Return the calling thread's memory for a use, of at least ``size`` bytes."""
    memory: np.ndarray | None = getattr(_desks, use, None)
    if memory is None or len(memory) < size:
        memory = np.empty(size, np.uint8)
        setattr(_desks, use, memory)
    return memory


def decode_depth_image(
    data: bytes | None,
    *,
    size: tuple[int, int] | None = None,
    declared: tuple[int, int] | None = None,
) -> np.ndarray:
    """Return a depth image's values (height, width; float32), in the unit they were stored in.

    Scaling takes the nearest value: a mean of near and far is a distance where nothing is.
    """
    if not data:
        raise PictureError("A depth image is missing from its table.")
    try:
        with open_image(data) as image:
            _require_size((image.height, image.width), declared)
            if size is not None and image.size != (size[1], size[0]):
                return np.array(
                    image.resize((size[1], size[0]), Image.Resampling.NEAREST), np.float32
                )
            return np.array(image, dtype=np.float32)
    except PictureError:
        raise
    except _unreadable() as error:
        raise PictureError(f"A depth image does not decode ({error}).") from error


def image_size(data: bytes | None) -> tuple[int, int]:
    """Return an encoded image's height and width, from its header alone."""
    with _readable(data) as encoded:
        if encoded[:3] == _JPEG:
            height, width = simplejpeg.decode_jpeg_header(encoded)[:2]
            return height, width
        with open_image(encoded) as image:
            return image.height, image.width


def has_colour(data: bytes | None) -> bool:
    """Whether an encoded image has red, green and blue, from its header alone."""
    with _readable(data) as encoded, open_image(encoded) as image:
        return image.mode in ("RGB", "RGBA", "P", "CMYK", "YCbCr")


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
        image: RGB (height, width, 3; uint8), or depth (height, width), which is always stored
            without loss: uint16 as PNG of 16 bits, float32 as TIFF.
        codec: How to encode colours.
    """
    try:
        if image.dtype == np.uint16 and image.ndim == 2:
            return _pillow(image, _PNG)
        if image.dtype == np.float32 and image.ndim == 2:
            return _pillow(image, _TIFF)
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ArgumentError(
                f"An image is (height, width, 3) of uint8, or (height, width) of uint16 or "
                f"float32, not {image.shape} of {image.dtype}."
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
            hint="JPEG goes to 65535 pixels a side, WebP to 16383; PNG has no limit",
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

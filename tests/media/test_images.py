"""Encoded images from tables: what Pillow sees, or a clear error."""

from __future__ import annotations

import io
import random
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from demoreel.errors import PictureError
from demoreel.media.images import (
    decode_depth_image,
    decode_image,
    image_size,
    paint_image,
)

FORMATS = ["PNG", "JPEG", "WEBP", "TIFF"]


def picture(height=33, width=47, seed=0):
    rng = np.random.default_rng(seed)
    coarse = np.kron(rng.integers(0, 256, (4, 4, 3)), np.ones((height // 4 + 1, width // 4 + 1, 1)))
    return np.clip(
        coarse[:height, :width] + rng.integers(-9, 10, (height, width, 3)), 0, 255
    ).astype(np.uint8)


def encoded(array, form="PNG", mode=None, **options):
    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    buffer = io.BytesIO()
    (image.convert(mode) if mode else image).save(buffer, form, **options)
    return buffer.getvalue()


def as_pillow(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def depths(height=20, width=30):
    return np.random.default_rng(2).integers(0, 65536, (height, width)).astype(np.uint16)


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))))
@settings(deadline=None)
def test_png_comes_back_bit_for_bit(array):
    found = decode_image(encoded(array))
    assert found.dtype == np.uint8
    assert np.array_equal(found, array)


@pytest.mark.parametrize(
    ("form", "mode"),
    [(form, mode) for form in FORMATS for mode in ("RGB", "L", "1")]
    + [(form, mode) for form in ("PNG", "WEBP", "TIFF") for mode in ("P", "RGBA", "LA")]
    + [("JPEG", "CMYK"), ("TIFF", "CMYK")],
)
def test_every_kind_of_image_is_what_pillow_sees(form, mode):
    data = encoded(picture(), form, mode)
    found = decode_image(data)
    assert found.shape == (33, 47, 3)
    assert np.array_equal(found, as_pillow(data))


@pytest.mark.parametrize("quality", [10, 75, 95])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_has_pillows_pixels(quality, subsampling, progressive):
    """lerobot reads them with Pillow; ours is the faster way to the same bytes."""
    options = {"quality": quality, "subsampling": subsampling, "progressive": progressive}
    data = encoded(picture(50, 61), "JPEG", **options)
    assert np.array_equal(decode_image(data), as_pillow(data))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("size", [(16, 24), (66, 94), (33, 47), (1, 1), (7, 200)])
def test_scaling(form, size):
    data = encoded(picture(), form)
    found = decode_image(data, size=size)
    expected = Image.open(io.BytesIO(data)).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    assert np.array_equal(found, np.asarray(expected))


def test_the_array_is_the_callers_own():
    found = decode_image(encoded(picture()))
    found[:] = 0
    assert found.flags.writeable


# Depth


def test_depth_keeps_its_numbers():
    found = decode_depth_image(encoded(depths()))
    assert found.dtype == np.float32
    assert np.array_equal(found, depths())
    metres = (depths() / 1000).astype(np.float32)
    assert np.array_equal(decode_depth_image(encoded(metres, "TIFF")), metres)


@given(st.integers(1, 60), st.integers(1, 60))
@settings(deadline=None, max_examples=40)
def test_scaled_depth_has_only_depths_that_were_there(height, width):
    found = decode_depth_image(encoded(depths()), size=(height, width))
    assert found.shape == (height, width)
    assert set(found.reshape(-1).tolist()) <= set(depths().reshape(-1).tolist())


# What is broken


@pytest.mark.parametrize("decode", [decode_image, decode_depth_image])
@pytest.mark.parametrize("data", [None, b""])
def test_a_missing_image(decode, data):
    with pytest.raises(PictureError, match="missing"):
        decode(data)


@pytest.mark.parametrize("decode", [decode_image, decode_depth_image])
@pytest.mark.parametrize("data", [b"\0", b"no image at all", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"])
def test_no_image(decode, data):
    with pytest.raises(PictureError, match="does not decode"):
        decode(data)


def test_formats_that_start_programs_are_refused():
    eps = io.BytesIO()
    Image.new("RGB", (8, 8)).save(eps, "EPS")
    for decode in (decode_image, decode_depth_image, image_size):
        with pytest.raises(PictureError):
            decode(eps.getvalue())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("size", [None, (16, 24)])
def test_cut_off(form, size):
    data = encoded(picture(), form)
    for share in (0.1, 0.5, 0.9, 0.98):
        with pytest.raises(PictureError, match="does not decode"):
            decode_image(data[: int(len(data) * share)], size=size)


def png_that_claims(width, height):
    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


@pytest.mark.parametrize("decode", [decode_image, decode_depth_image])
def test_an_image_that_claims_to_be_enormous(decode):
    """Pillow's guard against them raises an error that is no OSError and no ValueError."""
    with pytest.raises(PictureError, match="exceeds limit"):
        decode(png_that_claims(60_000, 60_000))


@pytest.mark.parametrize("decode", [decode_image, decode_depth_image])
def test_an_image_of_more_pixels_than_the_limit(decode, monkeypatch):
    monkeypatch.setenv("DEMOREEL_LIMIT_IMAGE_PIXELS", "1000")
    for form in ("PNG", "JPEG", "WEBP"):
        with pytest.raises(PictureError, match="the limit IMAGE_PIXELS"):
            decode(encoded(picture(), form))


def test_a_jpeg_of_endless_scans_is_refused_before_it_is_decoded():
    file = io.BytesIO()
    Image.fromarray(picture()).save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    last = whole.rindex(b"\xff\xda")
    endless = whole[:last] + whole[last:-2] * 200 + whole[-2:]
    for decode in (
        decode_image,
        decode_depth_image,
        lambda data: decode_image(data, size=(8, 8)),
        lambda data: paint_image(data, np.empty((3, 33, 47), np.uint8)),
    ):
        decode(whole)
        with pytest.raises(PictureError, match="scans"):
            decode(endless)


def test_a_jpeg_of_one_scan_has_no_more_of_them():
    whole = encoded(picture(), "JPEG")
    last = whole.rindex(b"\xff\xda")
    again = whole[:last] + whole[last:-2] * 200 + whole[-2:]
    with pytest.raises(PictureError, match="more than one scan"):
        decode_image(again)


def test_only_formats_of_a_list_are_opened():
    with pytest.raises(PictureError, match="does not decode"):
        decode_image(encoded(picture(), "PPM"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", [*FORMATS, "BMP", "GIF"])
def test_flipped_bytes_end_in_an_image_or_an_error(form):
    whole = encoded(picture(), form)
    rng = random.Random(form)
    seen = set()
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(min(len(data), rng.choice([64, 1 << 20])))] = rng.randrange(256)
        for decode in (
            decode_image,
            decode_depth_image,
            lambda encoded: decode_image(encoded, size=(9, 9)),
        ):
            try:
                decode(bytes(data))
                seen.add("picture")
            except PictureError:
                seen.add("error")
    assert seen == ({"error"} if form == "PNG" else {"picture", "error"})  # PNG has check sums


# Planes


@pytest.mark.parametrize(
    ("form", "mode"),
    [(form, mode) for form in FORMATS for mode in ("RGB", "L")]
    + [("PNG", "RGBA"), ("PNG", "P"), ("JPEG", "CMYK")],
)
@pytest.mark.parametrize("scale", [False, True])
def test_planes_are_the_same_image(form, mode, scale):
    data = encoded(picture(), form, mode)
    size = (20, 31) if scale else (33, 47)
    out = np.zeros((3, *size), np.uint8)
    paint_image(data, out, scale=scale)
    assert np.array_equal(out, decode_image(data, size=size).transpose(2, 0, 1))


@pytest.mark.parametrize("form", FORMATS)
def test_planes_in_any_memory(form):
    data = encoded(picture(), form)
    memory = np.zeros((33, 3, 50), np.uint8)
    out = memory.transpose(1, 0, 2)[..., :47]
    paint_image(data, out)
    assert np.array_equal(out, decode_image(data).transpose(2, 0, 1))
    assert (memory[..., 47:] == 0).all()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("size", [(32, 47), (47, 33), (66, 94)])
def test_an_image_of_another_size_is_an_error(form, size):
    out = np.zeros((3, *size), np.uint8)
    with pytest.raises(PictureError, match="was declared"):
        paint_image(encoded(picture(), form), out)
    assert (out == 0).all()


@pytest.mark.parametrize("data", [None, b"", b"\xff\xd8\xff", b"\xff\xd8\xffnothing", b"\x89PNG"])
def test_what_is_no_image_is_painted_nowhere(data):
    with pytest.raises(PictureError):
        paint_image(data, np.zeros((3, 4, 4), np.uint8))

"""Encoding images: bit for bit where nothing may be lost, near where JPEG is asked for."""

from __future__ import annotations

import io

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from demoreel.errors import ArgumentError
from demoreel.media.images import ImageCodec, decode_depth_image, decode_image, encode_image

sides = st.integers(1, 12)


@pytest.mark.parametrize("name", ["png", "webp-lossless"])
@given(array=hnp.arrays(np.uint8, st.tuples(sides, sides, st.just(3))))
def test_lossless_codecs_give_every_pixel_back(name, array):
    data = encode_image(array, ImageCodec(name))
    assert np.array_equal(decode_image(data), array)


@pytest.mark.parametrize("name", ["jpeg", "png", "webp-lossless", "source"])
@given(array=hnp.arrays(np.uint16, st.tuples(sides, sides), elements=st.integers(0, 65535)))
def test_depth_codes_are_kept_whatever_the_codec(name, array):
    data = encode_image(array, ImageCodec(name))
    assert data.startswith(b"\x89PNG")
    assert np.array_equal(decode_depth_image(data), array.astype(np.float32))


@given(
    quality=st.integers(1, 100),
    subsampling=st.sampled_from([0, 1, 2]),
    size=st.tuples(sides, sides),
)
def test_jpeg_is_what_was_asked_for(quality, subsampling, size):
    picture = np.full((*size, 3), (200, 90, 30), np.uint8)
    data = encode_image(picture, ImageCodec("jpeg", quality, subsampling))
    height, width, colours, chroma = simplejpeg.decode_jpeg_header(data)
    assert (height, width, colours) == (*size, "YCbCr")
    assert chroma == {0: "444", 1: "422", 2: "420"}[subsampling]
    if quality >= 90:
        assert np.abs(decode_image(data).astype(int) - picture).max() <= 6


def test_a_view_is_encoded_as_its_copy():
    picture = np.random.default_rng(0).integers(0, 256, (3, 20, 30), dtype=np.uint8)
    view = picture.transpose(1, 2, 0)
    for name in ("jpeg", "png", "webp-lossless"):
        codec = ImageCodec(name)
        assert encode_image(view, codec) == encode_image(np.ascontiguousarray(view), codec)


def test_better_quality_is_larger_and_nearer():
    ramp = np.add.outer(np.arange(64) * 3, np.arange(64))[..., None] * (1, 2, 3)
    picture = (ramp % 256).astype(np.uint8)
    sizes, errors = [], []
    for quality in (30, 95):
        data = encode_image(picture, ImageCodec("jpeg", quality, 0))
        sizes.append(len(data))
        errors.append(np.abs(decode_image(data).astype(int) - picture).mean())
    assert sizes[0] < sizes[1]
    assert errors[0] > errors[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("gif",),
        ("jpeg", 0),
        ("jpeg", 101),
        ("jpeg", 95.0),
        ("jpeg", True),
        ("jpeg", 95, 3),
        ("jpeg", 95, "420"),
        ("jpeg", 95, True),
    ],
)
def test_codecs_that_do_not_exist_are_refused(arguments):
    with pytest.raises(ArgumentError):
        ImageCodec(*arguments)


@pytest.mark.parametrize(
    "picture",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ],
    ids=["grey", "four channels", "floats", "empty"],
)
def test_other_arrays_are_refused(picture):
    with pytest.raises(ArgumentError):
        encode_image(picture, ImageCodec("jpeg"))


def test_source_encodes_nothing():
    with pytest.raises(ArgumentError, match="keeps bytes"):
        encode_image(np.zeros((4, 4, 3), np.uint8), ImageCodec("source"))


@pytest.mark.parametrize(("name", "width"), [("jpeg", 65_536), ("webp-lossless", 16_384)])
def test_an_image_too_large_for_its_codec_is_refused(name, width):
    with pytest.raises(ArgumentError, match="cannot be encoded"):
        encode_image(np.zeros((1, width, 3), np.uint8), ImageCodec(name))


def test_pillow_reads_them_all():
    picture = np.random.default_rng(1).integers(0, 256, (8, 9, 3), dtype=np.uint8)
    forms = {"jpeg": "JPEG", "png": "PNG", "webp-lossless": "WEBP"}
    for name, form in forms.items():
        with Image.open(io.BytesIO(encode_image(picture, ImageCodec(name)))) as image:
            assert (image.format, image.size) == (form, (9, 8))

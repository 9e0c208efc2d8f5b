"""Pictures painted by demoreel have the bytes that everyone else's have."""

from __future__ import annotations

import random

import av
import numpy as np
import pytest
from PIL import Image

from demoreel.media import colour
from demoreel.media.colour import Kind, Painter, depth_codes

FORMATS = [
    "yuv420p",
    "yuvj420p",
    "yuv422p",
    "yuv444p",
    "yuv420p10le",
    "yuv420p12le",
    "yuv444p12le",
    "gray",
    "gray12le",
    "nv12",
    "gbrp",
    "rgb24",
]
# Multiples of 8 and not, even and odd, tiny, and one that cameras have.
SIZES = [(48, 64), (47, 65), (48, 66), (47, 64), (48, 65), (33, 17), (2, 2), (1, 1), (120, 160)]


def noise(form, size, *, color_range=0, colorspace=2, seed=0):
    height, width = size
    rng = np.random.default_rng([seed, height, width])
    frame = av.VideoFrame(width, height, form)
    for plane in frame.planes:
        plane.update(rng.bytes(plane.buffer_size))
    frame.color_range, frame.colorspace = color_range, colorspace
    return frame


@pytest.fixture
def no_short_cut(monkeypatch):
    """As on machines where swscale's own functions are not to be found."""
    monkeypatch.setattr(colour, "_direct_is_exact", lambda kind: False)


def painted(frame, size=None, painter=None):
    out = np.empty((3, *(size or (frame.height, frame.width))), np.uint8)
    (painter or Painter()).paint(frame, out)
    return out.transpose(1, 2, 0)


@pytest.mark.parametrize("size", [*SIZES, (48, 80)], ids=str)
@pytest.mark.parametrize("form", FORMATS)
def test_paint_equals_rgb24(form, size):
    for color_range in (0, 1, 2):
        for space in (2, 1, 5, 6, 9):
            for seed in range(3):
                frame = noise(form, size, color_range=color_range, colorspace=space, seed=seed)
                found = painted(frame)
                assert np.array_equal(found, frame.to_ndarray(format="rgb24")), (color_range, space)


@pytest.mark.parametrize("size", [(17, 33), (33, 17), (35, 35), (31, 63), (64, 64)], ids=str)
@pytest.mark.parametrize("form", ["yuv420p", "yuvj420p", "yuv422p", "yuv444p"])
def test_rare_differences_are_not_missed(form, size):
    """Odd images differ by one in one pixel of hundreds, so one comparison may not see it."""
    for round_ in range(30):
        colour._planes_are_exact.cache_clear()
        colour._direct_is_exact.cache_clear()
        frame = noise(form, size, seed=round_)
        assert np.array_equal(painted(frame), frame.to_ndarray(format="rgb24"))


@pytest.mark.parametrize("form", ["yuv420p", "yuvj420p", "yuv422p", "yuv444p"])
def test_the_packed_way_is_right_too(form, monkeypatch, no_short_cut):
    monkeypatch.setattr(colour, "_planes_are_exact", lambda *key: False)
    monkeypatch.setattr(Painter, "_planes", None)
    frame = noise(form, (120, 160))
    assert np.array_equal(painted(frame), frame.to_ndarray(format="rgb24"))


@pytest.mark.parametrize("form", ["yuv420p", "yuvj420p"])
def test_planes_are_taken_only_where_they_agree(form, monkeypatch, no_short_cut):
    """On this machine's swscale: whatever the check says, it must be true of fresh noise."""
    for size in [*SIZES[:6], (480, 640), (480, 642), (240, 320)]:
        exact = colour._planes_are_exact(Kind(form, size[1], size[0], 0, 2))
        differ = []
        for seed in range(8):
            frame = noise(form, size, seed=seed)
            out = np.empty((3, *size), np.uint8)
            Painter()._planes(frame, out, *size)
            packed = frame.to_ndarray(format="rgb24")
            differ.append(not np.array_equal(out.transpose(1, 2, 0), packed))
        if exact:
            assert not any(differ), size
    calls = []
    planes = Painter._planes
    monkeypatch.setattr(Painter, "_planes", lambda *args: (calls.append(1), planes(*args)))
    painted(noise(form, (480, 640)))
    assert bool(calls) == colour._planes_are_exact(Kind(form, 640, 480, 0, 2))


def test_the_check_says_no_where_bytes_differ(monkeypatch, no_short_cut):
    """Were planes and packed pixels to part, the packed ones are taken."""
    planes = Painter._planes

    def a_little_off(self, frame, out, height, width):
        planes(self, frame, out, height, width)
        out[0, 5, 7] ^= 1

    monkeypatch.setattr(Painter, "_planes", a_little_off)
    colour._planes_are_exact.cache_clear()
    frame = noise("yuv420p", (120, 160))
    assert np.array_equal(painted(frame), frame.to_ndarray(format="rgb24"))
    colour._planes_are_exact.cache_clear()


def test_one_painter_for_cameras_of_every_kind():
    """Conversions are kept between frames; none may leak its colours into the next."""
    painter, rng = Painter(), random.Random(5)
    for seed in range(300):
        frame = noise(
            rng.choice(FORMATS),
            rng.choice([(48, 64), (47, 65), (120, 160)]),
            color_range=rng.choice([0, 1, 2]),
            colorspace=rng.choice([1, 2, 5, 9]),
            seed=seed,
        )
        assert np.array_equal(painted(frame, painter=painter), frame.to_ndarray(format="rgb24"))
    assert len(painter._reformatters) <= 16


def test_a_painted_array_may_be_part_of_a_batch():
    frame = noise("yuv420p", (48, 64))
    batch = np.zeros((4, 3, 48, 64), np.uint8)
    Painter().paint(frame, batch[2])
    assert np.array_equal(batch[2].transpose(1, 2, 0), frame.to_ndarray(format="rgb24"))
    assert not batch[[0, 1, 3]].any()


# Scaling


def smooth(form, size=(96, 128)):
    y, x = np.mgrid[: size[0], : size[1]]
    rgb = np.stack([x * 2, y * 2.5, (x + y)], axis=-1).clip(0, 255).astype(np.uint8)
    return av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format=form)


@pytest.mark.parametrize(
    "size",
    [(48, 64), (47, 65), (224, 224), (33, 17), (96, 127), (95, 128), (96, 64), (7, 9), (1, 1)],
    ids=str,
)
@pytest.mark.parametrize("form", FORMATS)
def test_scaling_is_like_pillows(form, size):
    frame = smooth(form)
    whole = Image.fromarray(frame.to_ndarray(format="rgb24"))
    expected = np.asarray(whole.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    difference = np.abs(painted(frame, size).astype(int) - expected)
    assert difference.max() <= 8
    assert difference.mean() <= 2


@pytest.mark.parametrize("size", [(48, 65), (47, 66), (96, 127), (31, 9)], ids=str)
def test_scaling_leaves_no_pixel_unwritten(size):
    """Whatever the memory held before, and the conversion's own buffers."""
    painter = Painter()
    for seed in range(5):
        painted(noise("yuv420p", (96, 128), seed=seed), size, painter)
    frame = smooth("yuv420p")
    assert np.array_equal(painted(frame, size, painter), painted(frame, size, Painter()))
    # An image of one grey stays so, to the last column.
    plain = av.VideoFrame.from_ndarray(np.full((96, 128, 3), 90, np.uint8), format="rgb24")
    grey = painted(plain.reformat(format="yuv420p"), size, painter)
    assert np.abs(grey.astype(int) - 90).max() <= 2


def test_scaling_noise_keeps_its_mean():
    frame = noise("yuv444p", (96, 128))
    whole = frame.to_ndarray(format="rgb24")
    small = painted(frame, (24, 32))
    expected = np.asarray(Image.fromarray(whole).resize((32, 24), Image.Resampling.BILINEAR))
    assert np.abs(small.astype(int) - expected).mean() < 12
    assert abs(float(small.mean()) - float(whole.mean())) < 2


# Depth


@pytest.mark.parametrize("size", [(48, 64), (47, 65), (3, 5), (1, 1), (33, 17)], ids=str)
@pytest.mark.parametrize("form", ["gray12le", "gray16le"])
def test_depth_codes_come_without_the_padding_of_rows(form, size):
    codes = np.random.default_rng(1).integers(0, 4096, size).astype(np.uint16)
    frame = av.VideoFrame.from_ndarray(codes, format=form)
    if size[1] % 32:
        assert frame.planes[0].line_size > 2 * size[1], "rows were to be padded"
    found = depth_codes(frame)
    assert found.dtype == np.uint16
    assert np.array_equal(found, codes)


@pytest.mark.parametrize("form", ["yuv420p12le", "yuv444p12le"])
def test_depth_codes_are_the_brightness(form):
    frame = noise(form, (48, 66))
    plane = frame.planes[0]
    rows = np.frombuffer(bytes(plane), "<u2").reshape(-1, plane.line_size // 2)
    assert np.array_equal(depth_codes(frame), rows[:48, :66])


def test_depth_codes_of_fewer_bits_are_brought_to_twelve():
    codes = np.arange(64 * 16, dtype=np.uint16).reshape(16, 64)
    found = depth_codes(av.VideoFrame.from_ndarray(codes, format="gray10le"))
    assert np.abs(found.astype(int) - codes.astype(int) * 4).max() <= 4


def test_depth_codes_outlive_their_frame():
    codes = np.random.default_rng(1).integers(0, 4096, (48, 65)).astype(np.uint16)
    found = depth_codes(av.VideoFrame.from_ndarray(codes, format="gray12le"))
    for seed in range(20):
        noise("gray12le", (48, 65), seed=seed)
    assert np.array_equal(found, codes)

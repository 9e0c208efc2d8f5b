import io

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from demoreel.media.encode import VideoEncoder, VideoSettings
from demoreel.testing.stamp import Stamp, read_stamp, stamp

numbers = st.integers(0, 2**20 - 1)
sizes = st.sampled_from([(48, 64), (64, 64), (63, 65), (96, 128), (120, 160), (240, 320)])


def busy_image(height, width, seed):
    """Noise of small and large scale: what a codec finds hardest."""
    rng = np.random.default_rng(seed)
    coarse = np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((height // 8 + 1, width // 8 + 1, 1)))
    noise = rng.integers(-20, 21, (height, width, 3))
    return np.clip(coarse[:height, :width] + noise, 0, 255).astype(np.uint8)


def stamped(height, width, episode, frame, seed=0):
    picture = busy_image(height, width, seed)
    stamp(picture, episode, frame)
    return picture


@given(numbers, numbers, sizes)
def test_what_is_stamped_is_read(episode, frame, size):
    assert read_stamp(stamped(*size, episode, frame)) == Stamp(episode, frame)


@given(numbers, numbers, st.sampled_from(["hwc", "chw", "float", "batchless float chw", "depth"]))
def test_every_form_of_an_image_is_read(episode, frame, form):
    picture = stamped(64, 96, episode, frame)
    if form == "chw":
        picture = picture.transpose(2, 0, 1)
    elif form == "float":
        picture = picture.astype(np.float32) / 255
    elif form == "batchless float chw":
        picture = picture.transpose(2, 0, 1).astype(np.float32) / 255
    elif form == "depth":
        depth = np.full((64, 96), 1500, np.uint16)
        stamp(depth, episode, frame)
        picture = depth.astype(np.float32)[None]
    assert read_stamp(picture) == (episode, frame)


@settings(max_examples=30, deadline=None)
@given(numbers, numbers, st.integers(40, 95), sizes)
def test_jpeg_and_half_size_leave_it_readable(episode, frame, quality, size):
    image = Image.fromarray(stamped(*size, episode, frame))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    decoded = Image.open(buffer)
    assert read_stamp(np.asarray(decoded)) == (episode, frame)
    half = decoded.resize((size[1] // 2, size[0] // 2), Image.Resampling.BILINEAR)
    assert read_stamp(np.asarray(half)) == (episode, frame)


@pytest.mark.parametrize("codec", ["av1", "h264", "hevc", "vp9", "mpeg4"])
@pytest.mark.parametrize("crf", [30, 40])
@pytest.mark.parametrize(
    "size", [(48, 64), *(pytest.param(s, marks=pytest.mark.soak) for s in ((64, 64), (120, 160)))]
)
def test_video_leaves_it_readable(tmp_path, codec, crf, size):
    height, width = size
    encoded = [(episode, 7 * frame) for episode in (0, 3, 2**20 - 1) for frame in range(12)]
    path = tmp_path / "v.mp4"
    settings = VideoSettings(codec=codec, crf=crf, gop=6)
    with VideoEncoder(path, fps=30, width=width, height=height, settings=settings) as encoder:
        for number, (episode, frame) in enumerate(encoded):
            encoder.add(stamped(height, width, episode, frame, seed=number))
    with av.open(str(path)) as container:
        shown = [picture.to_ndarray(format="rgb24") for picture in container.decode(video=0)]
    assert [read_stamp(picture) for picture in shown] == encoded
    halves = [np.asarray(Image.fromarray(p).resize((width // 2, height // 2))) for p in shown]
    assert [read_stamp(picture) for picture in halves] == encoded


def test_lowest_row_of_the_grid_is_left_alone():
    before = busy_image(64, 64, seed=1)
    after = before.copy()
    stamp(after, 5, 6)
    assert np.array_equal(before[56:], after[56:])
    assert not np.array_equal(before[:56], after[:56])


@given(numbers, numbers, st.integers(0, 55))
def test_one_wrong_cell_is_noticed(episode, frame, cell):
    picture = stamped(64, 64, episode, frame)
    row, column = divmod(cell, 8)
    block = picture[row * 8 : row * 8 + 8, column * 8 : column * 8 + 8]
    block[:] = 255 - block
    with pytest.raises(ValueError, match="check sum"):
        read_stamp(picture)


@given(numbers, numbers)
def test_a_blend_of_two_frames_is_neither(episode, frame):
    other = frame - 1 if frame else frame + 1
    one = stamped(64, 64, episode, frame).astype(np.float32)
    two = stamped(64, 64, episode, other).astype(np.float32)
    with pytest.raises(ValueError, match="blurred"):
        read_stamp((one + two) / 2)


@pytest.mark.parametrize(
    "picture",
    [
        np.zeros((64, 64, 3), np.uint8),
        busy_image(64, 64, seed=3),
        np.zeros((4, 4, 3)),
        np.zeros(9),
    ],
)
def test_an_image_without_a_stamp_is_refused(picture):
    with pytest.raises(ValueError, match=r"stamp|image"):
        read_stamp(picture)


@pytest.mark.parametrize(("episode", "frame"), [(-1, 0), (0, -1), (2**20, 0), (0, 2**20)])
def test_numbers_out_of_range_are_refused(episode, frame):
    with pytest.raises(ValueError, match="not in"):
        stamp(np.zeros((64, 64, 3), np.uint8), episode, frame)

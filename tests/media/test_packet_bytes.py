"""A packet index survives a round trip through bytes, and damaged bytes are not used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoreel.errors import VideoError
from demoreel.layouts.lance.schemas import decode_packets, encode_packets
from demoreel.media.video import Codec, PacketIndex, index_packets, open_video

ARRAYS = ("offset", "size", "frame_of", "start_of", "packet_of", "seconds")


def assert_same(left: PacketIndex, right: PacketIndex) -> None:
    assert left.codec == right.codec
    for name in ARRAYS:
        ours, theirs = getattr(left, name), getattr(right, name)
        assert ours.dtype == theirs.dtype, name
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


@st.composite
def indices(draw):
    count = draw(st.integers(0, 60))
    numbers = st.lists(st.integers(1, 2**31 - 1), min_size=count, max_size=count)
    size = np.array(draw(numbers), dtype=np.int64)
    gaps = np.array(draw(numbers), dtype=np.int64)
    flags = st.lists(st.booleans(), min_size=count, max_size=count)
    keyframe = np.array(draw(flags), dtype=bool)
    keyframe[:1] = True
    codec = Codec(
        name=draw(st.sampled_from(["libdav1d", "h264", "hevc"])),
        extradata=draw(st.none() | st.binary(max_size=40)),
        width=draw(st.integers(1, 9000)),
        height=draw(st.integers(1, 9000)),
        color_range=draw(st.integers(0, 2)),
        colorspace=draw(st.integers(0, 14)),
    )
    return index_packets(
        codec=codec,
        offset=np.cumsum(gaps + size) - size,
        size=size,
        pts=np.array(draw(st.permutations(range(count))), dtype=np.int64) * 512,
        keyframe=keyframe,
        shown=np.array(draw(flags), dtype=bool),
        seconds_per_tick=1 / draw(st.integers(1, 90_000)),
        origin=draw(st.integers(-1000, 1000)),
    )


@settings(deadline=None)
@given(indices())
def test_every_index_comes_back(index):
    video_bytes = index.end + 5
    data = encode_packets(index, video_bytes=video_bytes)
    found = decode_packets(data, video_bytes=video_bytes, name="v.mp4")
    assert found is not None
    assert_same(found, index)


@pytest.mark.parametrize("name", ["ansi", "rawvideo", "bintext", "h264_v4l2m2m", "", "h264\0"])
def test_a_decoder_outside_the_list_is_refused(films, name):
    video = open_video(films.film(codec="h264"))
    index = replace(video.index, codec=replace(video.index.codec, name=name))
    data = encode_packets(index, video_bytes=video.file.size)
    with pytest.raises(VideoError, match="not decoded"):
        decode_packets(data, video_bytes=video.file.size, name="v")


@pytest.mark.parametrize(
    "spec",
    [
        {"codec": "av1", "gop": 2},
        {"codec": "h264", "b_frames": 3, "open_gop": True, "gop": 8},
        {"codec": "hevc", "b_frames": 2, "gop": 6},
        {"codec": "mpeg4", "b_frames": 2, "gop": 5},
    ],
    ids=lambda spec: spec["codec"],
)
def test_indices_of_real_videos(films, spec):
    video = open_video(films.film(**spec))
    data = encode_packets(video.index, video_bytes=video.file.size)
    assert_same(decode_packets(data, video_bytes=video.file.size, name="v"), video.index)


def test_a_long_index_is_small():
    count = 10_000
    index = index_packets(
        codec=Codec("libdav1d", b"\x81\x00\x0c\x00", 640, 480),
        offset=np.arange(count) * 9000,
        size=np.random.default_rng(0).integers(500, 9000, count),
        pts=np.arange(count) * 512,
        keyframe=np.arange(count) % 2 == 0,
        shown=np.ones(count, dtype=bool),
        seconds_per_tick=1 / 15360,
    )
    assert len(encode_packets(index, video_bytes=count * 9000)) < 12 * count


def test_an_index_of_another_video_or_a_later_version_is_not_used(films):
    video = open_video(films.film(codec="h264", frames=10, gop=5))
    data = encode_packets(video.index, video_bytes=video.file.size)
    assert decode_packets(data, video_bytes=video.file.size + 1, name="v") is None
    with pa.ipc.open_stream(data) as stream:
        table = stream.read_all()
    metadata = {**table.schema.metadata, b"demoreel.packets": b"2"}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.with_metadata(metadata)) as out:
        out.write_table(table)
    assert decode_packets(bytes(sink.getvalue()), video_bytes=video.file.size, name="v") is None


def test_an_index_that_leaves_its_video_is_refused(films):
    video = open_video(films.film(codec="h264", frames=10, gop=5))
    small = video.index.end - 1
    data = encode_packets(video.index, video_bytes=small)
    with pytest.raises(VideoError, match="packets outside the video"):
        decode_packets(data, video_bytes=small, name="v.mp4")


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_damaged_bytes_are_an_error_or_still_an_index(data):
    index = index_packets(
        codec=Codec("h264", b"header", 64, 48),
        offset=np.arange(30) * 100,
        size=np.full(30, 90),
        pts=np.arange(30),
        keyframe=np.arange(30) % 5 == 0,
        shown=np.ones(30, dtype=bool),
        seconds_per_tick=1 / 30,
    )
    good = bytearray(encode_packets(index, video_bytes=5000))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(good) - 1))
        good[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for harmed in (bytes(good), bytes(good[:cut])):
        try:
            found = decode_packets(harmed, video_bytes=5000, name="v.mp4")
        except VideoError:
            continue
        if found is not None:
            assert found.end <= 5000
            assert found.frames <= len(found.offset)

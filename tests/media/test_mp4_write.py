"""Writing mp4s out of packets: FFmpeg reads them, and finds the same images on an even clock."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest

from demoreel.errors import ArgumentError, VideoError
from demoreel.media import mp4_write
from demoreel.media.encode import VideoEncoder, VideoSettings
from demoreel.media.mp4 import read_description
from demoreel.media.mp4_write import PacketRun, SplicedVideo, signature, write_packets
from demoreel.media.settings import exact_rate
from demoreel.media.video import index_video, open_video

KINDS = {
    "h264": {"codec": "h264", "gop": 4},
    "b_frames": {"codec": "h264", "gop": 8, "b_frames": 2},
    "hevc": {"codec": "hevc", "gop": 4, "b_frames": 2},
    "av1": {"codec": "av1", "gop": 4},
    "vp9": {"codec": "vp9", "gop": 4},
    "mpeg4": {"codec": "mpeg4", "gop": 4, "b_frames": 2},
}


def encoded(path, frames, *, size=64, fps=30, **settings):
    with VideoEncoder(
        path, fps=fps, width=size, height=size, settings=VideoSettings(**settings)
    ) as video:
        for number in range(frames):
            image = np.full((size, size, 3), number * 9 % 256, np.uint8)
            image[: size // 2, : number * 3 % size] = 255
            video.add(image)
    return open_video(path)


def described(video):
    return read_description(video.file, name=video.name)


def images(path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray() for frame in container.decode(video=0)]


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return {name: encoded(folder / f"{name}.mp4", 13, **k) for name, k in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fps", [30, 10, 29.97, Fraction(15, 2)])
def test_ffmpeg_finds_the_same_images(videos, kind, fps, tmp_path):
    video = videos[kind]
    run = PacketRun(video, np.arange(13))
    target = tmp_path / "out.mp4"
    assert write_packets(target, [run, run], description=described(video), fps=fps) == 26
    wanted = images(video.name)
    assert all(np.array_equal(a, b) for a, b in zip(images(target), wanted * 2, strict=True))
    index = open_video(target).index
    assert index.codec == video.index.codec
    rate = exact_rate(fps)
    assert np.allclose(index.seconds, np.arange(26) / float(rate))
    with av.open(str(target)) as container:
        stream = container.streams.video[0]
        assert (stream.average_rate, stream.frames, stream.start_time) == (rate, 26, 0)
        assert stream.codec_context.pix_fmt == av.open(video.name).streams.video[0].pix_fmt


@pytest.fixture(params=["by hand", "by the kernel"])
def way_of_copying(request, monkeypatch):
    if request.param == "by the kernel":
        monkeypatch.setattr(mp4_write, "_LONG", 1)


@pytest.mark.usefixtures("way_of_copying")
def test_packets_from_the_middle(videos, tmp_path):
    video = videos["h264"]
    runs = [PacketRun(video, np.arange(4, 8)), PacketRun(video, np.arange(0, 2))]
    write_packets(tmp_path / "out.mp4", runs, description=described(video), fps=30)
    wanted = images(video.name)
    found = images(tmp_path / "out.mp4")
    for image, number in zip(found, [4, 5, 6, 7, 0, 1], strict=True):
        assert np.array_equal(image, wanted[number])


def test_packets_that_do_not_lie_side_by_side(videos, tmp_path):
    video = videos["h264"]
    run = PacketRun(video, np.array([0, 4, 8]))  # keyframes
    write_packets(tmp_path / "out.mp4", [run], description=described(video), fps=30)
    wanted = images(video.name)
    found = images(tmp_path / "out.mp4")
    assert all(np.array_equal(p, wanted[n]) for p, n in zip(found, [0, 4, 8], strict=True))


def test_signatures(videos, tmp_path):
    signs = {kind: signature(described(video)) for kind, video in videos.items()}
    assert len(set(signs.values())) == len(KINDS)
    longer = encoded(tmp_path / "longer.mp4", 30, codec="h264", gop=4)  # another bit rate
    assert signature(described(longer)) == signs["h264"]
    larger = encoded(tmp_path / "larger.mp4", 3, size=96, codec="h264", gop=4)
    assert signature(described(larger)) != signs["h264"]


def test_no_packets(videos, tmp_path):
    video = videos["h264"]
    for runs in ([], [PacketRun(video, np.arange(0))]):
        with pytest.raises(ArgumentError):
            write_packets(tmp_path / "out.mp4", runs, description=described(video), fps=30)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("way_of_copying")
def test_a_source_that_shrinks_leaves_nothing(tmp_path):
    video = encoded(tmp_path / "in.mp4", 5, codec="h264", gop=4)
    description = described(video)
    with open(tmp_path / "in.mp4", "r+b") as file:
        file.truncate(int(video.index.offset[3]))
    with pytest.raises(VideoError, match="cut off"):
        write_packets(
            tmp_path / "out.mp4",
            [PacketRun(video, np.arange(5))],
            description=description,
            fps=30,
        )
    assert not (tmp_path / "out.mp4").exists()


def test_what_is_no_plain_mp4_has_no_description(tmp_path):
    with av.open(str(tmp_path / "in.mkv"), "w") as container:
        stream = container.add_stream("mpeg4", rate=30, width=64, height=64)
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), "rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert described(open_video(tmp_path / "in.mkv")) is None


@pytest.mark.parametrize("kind", ["h264", "b_frames"])
def test_a_spliced_video_reads_as_it_would_be_written(videos, kind, tmp_path):
    video = videos[kind]
    runs = [PacketRun(video, np.arange(8, 13)), PacketRun(video, np.arange(0, 8))]
    spliced = SplicedVideo(runs, description=described(video), fps=30)
    write_packets(tmp_path / "out.mp4", runs, description=described(video), fps=30)
    written = (tmp_path / "out.mp4").read_bytes()
    assert (spliced.frames, spliced.size) == (13, len(written))
    assert spliced.read(0, spliced.size + 10) == written
    for offset in (0, 1, 40, len(written) // 2, len(written) - 1, len(written), len(written) + 5):
        assert spliced.read(offset, 700) == written[offset : offset + 700]
    found, wanted = index_video(spliced, "spliced").index, open_video(tmp_path / "out.mp4").index
    assert np.array_equal(found.offset, wanted.offset)
    assert np.array_equal(found.seconds, wanted.seconds)
    assert SplicedVideo(runs[:1], description=described(video), fps=30).identity != spliced.identity

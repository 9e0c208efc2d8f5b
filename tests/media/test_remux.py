import struct
from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoreel.errors import ArgumentError, VideoError
from demoreel.media.encode import VideoEncoder, VideoSettings
from demoreel.media.remux import join, probe
from demoreel.testing.stamp import read_stamp, stamp

SETTINGS = [
    VideoSettings(codec="av1"),
    VideoSettings(codec="h264"),
    VideoSettings(codec="h264", gop=7, b_frames=3),
    VideoSettings(codec="h264", gop=7, b_frames=3, open_gop=True),
    VideoSettings(codec="hevc", gop=8, b_frames=3),
    VideoSettings(codec="hevc", gop=8, b_frames=3, open_gop=True),
    VideoSettings(codec="vp9", gop=10),
    VideoSettings(codec="mpeg4", gop=6, b_frames=2),
    VideoSettings(codec="mpeg4", gop=6, b_frames=2, open_gop=True),
]


def film(path, episode, frames, chosen=SETTINGS[1], *, fps=30, size=64):
    with VideoEncoder(path, fps=fps, width=size, height=64, settings=chosen) as encoder:
        for frame in range(frames):
            image = np.full((64, size, 3), 128, np.uint8)
            stamp(image, episode, frame)
            encoder.add(image)
    return path


def shown(path):
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        base = container.streams.video[0].time_base
    stamps = [tuple(read_stamp(frame.to_ndarray(format="rgb24"))) for frame in frames]
    return stamps, [frame.pts * base for frame in frames]


def packets(path):
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


def remuxed(source, target, retime):
    """Copy a video with other timestamps, as other tools write them."""
    with av.open(str(source)) as given, av.open(str(target), "w") as output:
        stream = given.streams.video[0]
        copy = output.add_stream_from_template(stream, opaque=True)
        for packet in given.demux(stream):
            if packet.size:
                packet.stream = copy
                packet.pts, packet.dts = retime(packet.pts), retime(packet.dts)
                output.mux(packet)
    return target


def edited(path, *, start):
    """Let the video's edit list begin at another frame."""
    data = bytearray(path.read_bytes())
    entry = data.index(b"elst") + 12
    length, begin = struct.unpack_from(">Ii", data, entry)
    struct.pack_into(">Ii", data, entry, length, begin + start * 512)
    path.write_bytes(data)
    return path


@settings(max_examples=30, deadline=None)
@given(
    chosen=st.sampled_from(SETTINGS),
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=5),
)
def test_the_result_is_the_sources_one_after_the_other(tmp_path_factory, chosen, lengths):
    folder = tmp_path_factory.mktemp("join")
    sources = [film(folder / f"{n}.mp4", n, size, chosen) for n, size in enumerate(lengths)]
    target = folder / "joined.mp4"
    assert join(sources, target) == sum(lengths)
    stamps, times = shown(target)
    assert stamps == [(n, frame) for n, size in enumerate(lengths) for frame in range(size)]
    assert times == [Fraction(place, 30) for place in range(sum(lengths))]
    assert packets(target) == [packet for source in sources for packet in packets(source)]


def test_hundreds_of_episodes_do_not_drift(tmp_path):
    sources = [film(tmp_path / f"{n}.mp4", n, 3, fps=29.97) for n in range(4)] * 75
    target = tmp_path / "joined.mp4"
    assert join(sources, target, fps=29.97) == 900
    _, times = shown(target)
    assert times == [Fraction(place * 100, 2997) for place in range(900)]


def test_the_sources_own_clocks_do_not_matter(tmp_path):
    film(tmp_path / "a.mp4", 0, 6, SETTINGS[2])
    film(tmp_path / "b.mp4", 1, 6, SETTINGS[2])
    late = remuxed(tmp_path / "a.mp4", tmp_path / "late.mp4", lambda tick: tick + 512 * 7)
    uneven = remuxed(tmp_path / "b.mp4", tmp_path / "uneven.mp4", lambda t: t * 3 + (t > 900) * 777)
    join([late, uneven], tmp_path / "joined.mp4", fps=30)
    stamps, times = shown(tmp_path / "joined.mp4")
    assert stamps == [(n, frame) for n in (0, 1) for frame in range(6)]
    assert times == [Fraction(place, 30) for place in range(12)]


def test_hidden_frames_are_refused(tmp_path):
    hiding = edited(film(tmp_path / "a.mp4", 0, 8), start=3)  # in the middle of the second GOP
    assert probe(hiding)[1] == 5
    with pytest.raises(VideoError, match="edit list"):
        join([hiding], tmp_path / "joined.mp4")
    assert not (tmp_path / "joined.mp4").exists()


def test_frames_cut_off_at_a_keyframe_stay_cut_off(tmp_path):
    trimmed = edited(film(tmp_path / "a.mp4", 0, 8), start=4)
    assert probe(trimmed)[1] == 4
    assert join([trimmed], tmp_path / "joined.mp4") == 4
    assert shown(tmp_path / "joined.mp4")[0] == [(0, frame) for frame in (4, 5, 6, 7)]


@pytest.mark.parametrize(
    ("other", "size", "said"),
    [
        (VideoSettings(codec="vp9"), 64, "vp9"),
        (SETTINGS[1], 96, "96x64"),
        (VideoSettings(codec="h264", pix_fmt="yuv444p"), 64, "yuv444p"),
        (VideoSettings(codec="h264", options={"profile": "high"}, preset="medium"), 64, "headers"),
    ],
)
def test_videos_that_do_not_fit_together_are_refused(tmp_path, other, size, said):
    film(tmp_path / "a.mp4", 0, 4)
    film(tmp_path / "b.mp4", 1, 4, other, size=size)
    with pytest.raises(VideoError, match=said):
        join([tmp_path / "a.mp4", tmp_path / "b.mp4"], tmp_path / "joined.mp4")
    assert not (tmp_path / "joined.mp4").exists()


def test_bad_sources_are_named(tmp_path):
    film(tmp_path / "a.mp4", 0, 4)
    (tmp_path / "cut.mp4").write_bytes((tmp_path / "a.mp4").read_bytes()[:400])
    with pytest.raises(VideoError, match=r"cut\.mp4"):
        join([tmp_path / "a.mp4", tmp_path / "cut.mp4"], tmp_path / "joined.mp4")
    with pytest.raises(VideoError, match=r"none\.mp4"):
        join([tmp_path / "none.mp4"], tmp_path / "joined.mp4")
    with pytest.raises(ArgumentError, match="no videos"):
        join([], tmp_path / "joined.mp4")
    assert not (tmp_path / "joined.mp4").exists()


@pytest.mark.parametrize("chosen", SETTINGS)
@pytest.mark.parametrize("frames", [1, 13])
def test_probe_counts_frames_and_tells_videos_apart(tmp_path, chosen, frames):
    one, count = probe(film(tmp_path / "a.mp4", 0, frames, chosen))
    assert count == frames
    assert one == probe(film(tmp_path / "b.mp4", 1, 5, chosen))[0]
    assert one != probe(film(tmp_path / "c.mp4", 1, 5, chosen, size=96))[0]


def test_real_videos_join(fixtures, tmp_path):
    sources = sorted((fixtures / "g1_v21/videos").rglob("*.mp4"))
    assert join(sources, tmp_path / "joined.mp4") == 221 + 260 + 265 + 267
    assert packets(tmp_path / "joined.mp4") == [p for source in sources for p in packets(source)]

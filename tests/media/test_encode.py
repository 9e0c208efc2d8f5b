import subprocess
import sys
import textwrap
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoreel.errors import ArgumentError, VideoError
from demoreel.media.decode import Decoder, GopSpan
from demoreel.media.encode import (
    LOSSLESS_DEPTH,
    LOSSLESS_DEPTH_16,
    VideoEncoder,
    VideoSettings,
)
from demoreel.media.settings import encoder_options, exact_rate
from demoreel.media.video import open_video
from demoreel.testing.stamp import read_stamp, stamp

CODECS = ["av1", "h264", "hevc", "vp9", "mpeg4"]
REORDERING = ["h264", "hevc", "mpeg4"]


def stamped(frame, height=64, width=64):
    image = np.full((height, width, 3), 90, np.uint8)
    stamp(image, 1, frame)
    return image


def encode(path, frames, *, fps=30, height=64, width=64, **options):
    chosen = VideoSettings(**options)
    with VideoEncoder(path, fps=fps, width=width, height=height, settings=chosen) as encoder:
        for frame in range(frames):
            encoder.add(stamped(frame, height, width))
    return path


def shown(path):
    """The frame numbers in the images, and their times, in the order a player shows them."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
        base = container.streams.video[0].time_base
    numbers = [read_stamp(frame.to_ndarray(format="rgb24")).frame for frame in frames]
    return numbers, [frame.pts * base for frame in frames]


def keyframes(path):
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        return [number for number, packet in enumerate(packets) if packet.is_keyframe]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("frames", [1, 2, 3, 21])
def test_every_image_comes_out_once_in_order_and_on_time(tmp_path, codec, frames):
    path = encode(tmp_path / "v.mp4", frames, codec=codec)
    numbers, times = shown(path)
    assert numbers == list(range(frames))
    assert times == [Fraction(frame, 30) for frame in range(frames)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("gop", [1, 2, 5, 100])
def test_keyframes_are_where_gop_says(tmp_path, codec, gop):
    path = encode(tmp_path / "v.mp4", 12, codec=codec, gop=gop)
    assert keyframes(path) == list(range(0, 12, gop))


@settings(max_examples=25, deadline=None)
@given(
    codec=st.sampled_from(REORDERING),
    frames=st.integers(1, 30),
    gop=st.integers(1, 12),
    b_frames=st.integers(1, 4),
    open_gop=st.booleans(),
)
def test_b_frames_change_nothing_that_is_shown(
    tmp_path_factory, codec, frames, gop, b_frames, open_gop
):
    path = tmp_path_factory.mktemp("b") / "v.mp4"
    encode(path, frames, codec=codec, gop=gop, b_frames=b_frames, open_gop=open_gop)
    numbers, times = shown(path)
    assert numbers == list(range(frames))
    assert times == [Fraction(frame, 30) for frame in range(frames)]


def test_b_frames_really_reorder(tmp_path):
    path = encode(tmp_path / "v.mp4", 12, codec="h264", gop=12, b_frames=3)
    with av.open(str(path)) as container:
        times = [packet.pts for packet in container.demux(video=0) if packet.size]
    assert times != sorted(times)


@pytest.mark.parametrize("codec", REORDERING)
@pytest.mark.parametrize("b_frames", [0, 1, 3])
@pytest.mark.parametrize("frames", [1, 2, 11])
def test_decoding_times_are_regular_even_of_the_shortest_videos(tmp_path, codec, b_frames, frames):
    path = encode(tmp_path / "v.mp4", frames, codec=codec, gop=6, b_frames=b_frames)
    with av.open(str(path)) as container:
        base = container.streams.video[0].time_base
        times = [packet.dts * base * 30 for packet in container.demux(video=0) if packet.size]
    first = -min(b_frames, 2)
    assert times == list(range(first, first + frames))


@pytest.mark.parametrize("codec", REORDERING)
@pytest.mark.parametrize("open_gop", [False, True])
def test_only_open_gops_have_frames_that_are_shown_before_their_keyframe(tmp_path, codec, open_gop):
    path = encode(tmp_path / "v.mp4", 24, codec=codec, gop=6, b_frames=2, open_gop=open_gop)
    leading, key = 0, 0
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            if packet.size:
                key = packet.pts if packet.is_keyframe else key
                leading += packet.pts < key
    assert bool(leading) == open_gop


@pytest.mark.parametrize("fps", [1, 10, 25, 29.97, 23.976, 12.5, 240])
def test_times_are_exact_at_any_rate(tmp_path, fps):
    _, times = shown(encode(tmp_path / "v.mp4", 9, codec="h264", fps=fps))
    assert times == [frame / exact_rate(fps) for frame in range(9)]
    assert float(exact_rate(fps)) == pytest.approx(fps, rel=1e-9)


def test_depth_codes_survive_unchanged(tmp_path):
    random = np.random.default_rng(0)
    codes = [random.integers(0, 4096, (33, 47), dtype=np.uint16) for _ in range(7)]
    path = tmp_path / "d.mp4"
    with VideoEncoder(path, fps=10, width=47, height=33, settings=LOSSLESS_DEPTH) as encoder:
        for code in codes:
            encoder.add(code)
    with av.open(str(path)) as container:
        decoded = [frame.to_ndarray() for frame in container.decode(video=0)]
    assert len(decoded) == 7
    assert all(np.array_equal(a, b) for a, b in zip(decoded, codes, strict=True))


@pytest.mark.parametrize("codec", CODECS)
def test_odd_sizes_work_or_say_why_not(tmp_path, codec):
    size = {"height": 65, "width": 97}
    if codec in ("h264", "hevc"):
        with pytest.raises(VideoError, match="yuv444p"):
            encode(tmp_path / "v.mp4", 2, codec=codec, **size)
        assert list(tmp_path.iterdir()) == []
        path = encode(tmp_path / "v.mp4", 5, codec=codec, pix_fmt="yuv444p", **size)
    else:
        path = encode(tmp_path / "v.mp4", 5, codec=codec, **size)
    assert shown(path)[0] == list(range(5))
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        assert (context.height, context.width) == (65, 97)


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_ten_bit_video_is_ten_bit(tmp_path, codec):
    path = encode(tmp_path / "v.mp4", 3, codec=codec, pix_fmt="yuv420p10le")
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.pix_fmt == "yuv420p10le"


def test_the_callers_array_may_be_reused_at_once(tmp_path):
    path = tmp_path / "v.mp4"
    image = np.zeros((64, 64, 3), np.uint8)
    chosen = VideoSettings(codec="av1")  # looks many images ahead before it encodes
    with VideoEncoder(path, fps=30, width=64, height=64, settings=chosen) as encoder:
        for frame in range(10):
            stamp(image, 1, frame)
            encoder.add(image)
    assert shown(path)[0] == list(range(10))


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((64, 65, 3), np.uint8),
        np.zeros((3, 64, 64), np.uint8),
        np.zeros((64, 64, 3), np.float32),
        np.zeros((64, 64), np.uint8),
    ],
)
def test_a_wrong_image_is_refused_and_the_video_goes_on(tmp_path, image):
    path = tmp_path / "v.mp4"
    encoder = VideoEncoder(path, fps=30, width=64, height=64, settings=VideoSettings(codec="h264"))
    encoder.add(stamped(0))
    with pytest.raises(ArgumentError, match=r"\(64, 64, 3\)"):
        encoder.add(image)
    encoder.add(stamped(1))
    assert encoder.close() == 2
    assert shown(path)[0] == [0, 1]


def test_a_lost_packet_is_an_error_and_no_file(tmp_path):
    class Dropping:
        def __init__(self, stream):
            self.stream = stream

        def encode(self, frame):
            packets = self.stream.encode(frame)
            return packets if frame is not None else packets[:-1]

    path = tmp_path / "v.mp4"
    encoder = VideoEncoder(path, fps=30, width=64, height=64, settings=VideoSettings(codec="h264"))
    encoder._stream = Dropping(encoder._stream)
    for frame in range(5):
        encoder.add(stamped(frame))
    with pytest.raises(VideoError, match=r"5 frames went into .* but 4 packets"):
        encoder.close()
    assert not path.exists()


def test_an_unfinished_video_leaves_no_file(tmp_path):
    path = tmp_path / "v.mp4"

    def film_half():
        with VideoEncoder(path, fps=30, width=64, height=64) as encoder:
            encoder.add(stamped(0))
            raise RuntimeError("the camera fell off")

    with pytest.raises(RuntimeError, match="fell off"):
        film_half()
    assert not path.exists()


def test_a_video_of_nothing_is_an_error(tmp_path):
    encoder = VideoEncoder(tmp_path / "v.mp4", fps=30, width=64, height=64)
    with pytest.raises(VideoError, match="No frames"):
        encoder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_closed_encoder_takes_no_more(tmp_path):
    encoder = VideoEncoder(tmp_path / "v.mp4", fps=30, width=64, height=64)
    encoder.add(stamped(0))
    assert encoder.close() == 1
    assert encoder.close() == 1
    with pytest.raises(VideoError, match="closed"):
        encoder.add(stamped(1))
    encoder.abort()  # too late to remove what is finished
    assert (tmp_path / "v.mp4").exists()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize("codec", CODECS)
def test_an_encoders_threads_end_with_it(tmp_path, codec):
    before = len(list(Path("/proc/self/task").iterdir()))
    encoder = VideoEncoder(
        tmp_path / "v.mp4",
        fps=30,
        width=64,
        height=64,
        settings=VideoSettings(codec=codec),
        threads=2,
    )
    encoder.add(stamped(0))
    encoder.close()
    assert len(list(Path("/proc/self/task").iterdir())) <= before


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(VideoError, match="cannot be encoded"):
        VideoEncoder(tmp_path / "no" / "v.mp4", fps=30, width=64, height=64)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"codec": "h265"}, "no codec"),
        ({"gop": 0}, "gop"),
        ({"codec": "h264", "b_frames": -1}, "b_frames"),
        ({"codec": "av1", "b_frames": 1}, "neither"),
        ({"codec": "h264", "open_gop": True}, "needs b_frames"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, said):
    with pytest.raises(ArgumentError, match=said):
        VideoSettings(**options)


def test_pixel_formats_that_a_codec_lacks_are_refused(tmp_path):
    with pytest.raises(VideoError, match="pix"):
        encode(tmp_path / "v.mp4", 1, codec="av1", pix_fmt="yuv444p")
    with pytest.raises(ArgumentError, match="pix"):
        encode(tmp_path / "v.mp4", 1, codec="h264", pix_fmt="tartan")
    assert list(tmp_path.iterdir()) == []


def test_the_users_options_are_added_to_ours():
    chosen = VideoSettings(codec="hevc", options={"x265-params": "lossless=1", "tune": "grain"})
    options = encoder_options(chosen, threads=3)
    assert options["x265-params"].endswith(":lossless=1")
    assert "pools=3" in options["x265-params"]
    assert options["tune"] == "grain"


def test_encoders_say_nothing(tmp_path):
    script = """
        import sys
        import numpy as np
        from demoreel.media.encode import VideoEncoder, VideoSettings
        for codec in ("av1", "h264", "hevc", "vp9", "mpeg4"):
            chosen = VideoSettings(codec=codec)
            path = f"{sys.argv[1]}/{codec}.mp4"
            with VideoEncoder(path, fps=30, width=64, height=64, settings=chosen) as encoder:
                encoder.add(np.zeros((64, 64, 3), np.uint8))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("", "")


def test_feature_info_has_lerobots_fields(fixtures):
    import json

    info = json.loads((fixtures / "kitchen_v30/meta/info.json").read_text())
    theirs = info["features"]["observation.images.front"]["info"]
    ours = VideoSettings(preset=12).feature_info(fps=10, height=96, width=128)
    assert ours == theirs


class Log(list):
    """Packets that outlive an encoder, as a list."""

    header = None

    def begin(self, header):
        assert self.header in (None, header)
        self.header = header

    def replay(self):
        return iter(tuple(self))

    def append(self, frame, keyframe, data):
        super().append((frame, keyframe, data))


@pytest.mark.parametrize("codec", [*CODECS, "b-frames"])
def test_an_encoder_goes_on_where_another_was_stopped(tmp_path, codec):
    chosen = (
        VideoSettings(codec=codec)
        if codec in CODECS
        else VideoSettings(codec="hevc", gop=5, b_frames=2)
    )
    log = Log()
    for life, stop in enumerate([5, 5, 17, 30, 40]):
        path = tmp_path / f"{life}.mp4"
        encoder = VideoEncoder(path, fps=30, width=64, height=64, settings=chosen, log=log)
        while encoder.frames < stop:
            encoder.add(stamped(encoder.frames))
        if stop < 40:
            assert encoder.whole <= stop
            del log[encoder.whole :]
            encoder.abort()
    assert encoder.close() == encoder.whole == 40
    numbers, times = shown(path)
    assert numbers == list(range(40))
    assert times == [Fraction(frame, 30) for frame in range(40)]


def test_crf_is_translated_for_each_hardware_encoder():
    def options(encoder, codec, crf):
        return encoder_options(VideoSettings(codec=codec, encoder=encoder, crf=crf), threads=1)

    assert options("h264_videotoolbox", "h264", 30)["global_quality"] == str(40 * 118)
    assert options("hevc_videotoolbox", "hevc", 51)["global_quality"] == str(1 * 118)
    for encoder, codec in (("h264_nvenc", "h264"), ("hevc_nvenc", "hevc")):
        assert options(encoder, codec, 23) | {"rc": "constqp", "qp": "23"} == options(
            encoder, codec, 23
        )
    assert options("h264_vaapi", "h264", 23)["qp"] == "23"
    assert options("h264_qsv", "h264", 23)["global_quality"] == "23"
    with pytest.raises(ArgumentError, match="does not make"):
        VideoSettings(codec="hevc", encoder="h264_nvenc")


def test_sixteen_bits_of_depth_come_back_as_they_were(tmp_path):
    depth = np.random.default_rng(0).integers(0, 65536, (6, 48, 64)).astype(np.uint16)
    path = tmp_path / "depth.mp4"
    with VideoEncoder(path, fps=30, width=64, height=48, settings=LOSSLESS_DEPTH_16) as encoder:
        for image in depth:
            encoder.add(image)
    with av.open(str(path)) as container:
        assert np.array_equal([f.to_ndarray() for f in container.decode(video=0)], depth)
    video = open_video(path)
    wanted = GopSpan(video.index, video.file, video.name, (1, 4))
    read = {number: frame.to_ndarray() for number, frame in Decoder().frames(wanted)}
    assert np.array_equal([read[1], read[4]], depth[[1, 4]])


@pytest.mark.parametrize("width", [34, 48])
def test_small_images_as_hevc_leave_the_heap_whole(tmp_path, width):
    """x265's CU tree writes past the end of a row of so few blocks."""
    script = f"""
        import numpy as np
        from demoreel.media.encode import VideoEncoder, VideoSettings

        noise = np.random.default_rng(0)
        chosen = VideoSettings(codec="hevc", options={{"x265-params": "ctu=16:cutree=1"}})
        for attempt in range(4):
            with VideoEncoder(
                "small.mp4", fps=30, width={width}, height=32, settings=chosen
            ) as encoder:
                for frame in range(30):
                    encoder.add(noise.integers(0, 255, (32, {width}, 3), dtype=np.uint8))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True
    )
    assert ran.returncode == 0, ran.stderr.decode()

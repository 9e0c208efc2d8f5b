"""Random access gives, byte for byte, the images of a plain decode from beginning to end."""

from __future__ import annotations

import random
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demoreel.errors import VideoError
from demoreel.media.decode import Decoder, GopSpan, group_frames
from demoreel.media.video import Codec, open_video

CODECS = ["av1", "h264", "hevc", "vp9", "mpeg4"]
REORDERING = ["h264", "hevc", "mpeg4"]
STSD = "moov/trak/mdia/minf/stbl/stsd"

FILMS = [{"codec": codec, "gop": gop} for codec in CODECS for gop in (1, 2, 12, 250)]
FILMS += [{"codec": codec, "gop": 250, "keyframes": (0, 1, 5, 6, 17, 29)} for codec in CODECS]
FILMS += [
    {"codec": codec, "gop": 8, "b_frames": b_frames, "open_gop": open_gop}
    for codec in REORDERING
    for b_frames in (1, 2, 3)
    for open_gop in (False, True)
]

PIXELS = [
    ("av1", "yuv420p"),
    ("av1", "yuv420p10le"),
    ("h264", "yuvj420p"),
    ("h264", "yuv422p"),
    ("h264", "yuv444p"),
    ("h264", "yuv420p10le"),
    ("hevc", "yuvj420p"),
    ("hevc", "yuv422p"),
    ("hevc", "yuv444p"),
    ("hevc", "yuv420p10le"),
    ("hevc", "yuv420p12le"),
    ("hevc", "yuv444p12le"),
    ("hevc", "gray"),
    ("hevc", "gray12le"),
    ("vp9", "yuv422p"),
    ("vp9", "yuv444p"),
    ("mpeg4", "yuv420p"),
]
ODD = [("av1", "yuv420p"), ("vp9", "yuv420p"), ("mpeg4", "yuv420p"), ("h264", "yuv444p")]
ODD += [("hevc", "yuv444p"), ("hevc", "gray"), ("vp9", "yuv422p"), ("av1", "yuv420p10le")]


def name_of(spec):
    return "-".join(str(value) for value in spec.values())


def span_of(video, *frames):
    return GopSpan(video.index, video.file, video.name, frames)


def pixels(frame):
    return frame.to_ndarray(format="rgb24")


# The same images


@pytest.mark.parametrize("spec", FILMS, ids=name_of)
def test_every_frame_together_and_alone(films, spec):
    path = films.film(**spec)
    assert films.same_as_plain(path) == 30
    decoder = Decoder()
    for number in random.Random(0).sample(range(30), 30):
        films.same_as_plain(path, [number], decoder)


@settings(max_examples=80, deadline=None, suppress_health_check=[*HealthCheck])
@given(
    spec=st.sampled_from(FILMS[2:4] + FILMS[-18:]),
    frames=st.sets(st.integers(0, 29), min_size=1),
)
def test_any_subset(films, spec, frames):
    films.same_as_plain(films.film(**spec), sorted(frames))


@pytest.mark.parametrize(("codec", "pix_fmt"), PIXELS)
def test_pixel_formats(films, codec, pix_fmt):
    path = films.film(codec=codec, pix_fmt=pix_fmt, frames=8, gop=4)
    with av.open(str(path)) as container:
        assert container.streams.video[0].pix_fmt == pix_fmt
    assert films.same_as_plain(path) == 8
    films.same_as_plain(path, [6])


@pytest.mark.parametrize(("codec", "pix_fmt"), ODD)
def test_odd_sizes(films, codec, pix_fmt):
    path = films.film(codec=codec, pix_fmt=pix_fmt, size=(67, 85), frames=6, gop=3)
    assert open_video(path).index.codec.width == 85
    assert films.same_as_plain(path) == 6
    films.same_as_plain(path, [5])


@pytest.mark.parametrize("space", [2, 1, 5, 6, 9])
@pytest.mark.parametrize("color_range", [0, 1, 2])
@pytest.mark.parametrize("codec", CODECS)
def test_colours_that_the_encoder_states(films, codec, color_range, space):
    other = {2: (2, 2), 1: (1, 1), 5: (5, 6), 6: (6, 6), 9: (9, 14)}[space]
    colour = {"color_range": color_range, "colorspace": space}
    colour |= {"color_primaries": other[0], "color_trc": other[1]}
    path = films.film(codec=codec, frames=3, colour=colour)
    assert films.same_as_plain(path) == 3


@pytest.mark.parametrize("full", [0, 0x80])
@pytest.mark.parametrize("matrix", [1, 2, 5, 9])
@pytest.mark.parametrize("codec", ["h264", "mpeg4"])
def test_colours_that_only_the_container_states(films, tmp_path, codec, matrix, full):
    """Many recorders leave the codec's own fields empty and write a ``colr`` box."""
    original = films.film(codec=codec, frames=3)
    film = films.Mp4(original)
    colr = struct.pack(">I4s4sHHHB", 19, b"colr", b"nclx", 1, 1, matrix, full)
    stsd = film[STSD]
    (size,) = struct.unpack_from(">I", stsd, 8)
    film[STSD] = stsd[:8] + struct.pack(">I", size + len(colr)) + stsd[12:] + colr
    path = film.save(tmp_path / "v.mp4")
    assert films.same_as_plain(path) == 3
    if full or matrix in (1, 9):
        assert not np.array_equal(films.plain(path)[0][0], films.plain(original)[0][0])


# Keyframes that are no clean beginning


def leading_frames(index):
    last_key = np.maximum.accumulate(np.unique(index.start_of[index.start_of >= 0])[:, None])
    own_key = last_key[np.searchsorted(last_key[:, 0], np.arange(len(index.offset)), "right") - 1]
    return [int(f) for f in index.frame_of[index.start_of < own_key[:, 0]] if f >= 0]


OPEN = [
    ("h264", "open-gop=1:bframes=3:b-adapt=0:b-pyramid=normal:ref=4:scenecut=0"),
    ("h264", "open-gop=1:bframes=2:b-adapt=0:b-pyramid=normal:ref=1:scenecut=0:weightp=0"),
    ("h264", "open-gop=1:bframes=1:b-adapt=1:b-pyramid=strict:ref=4:scenecut=40"),
    ("h264", "open-gop=1:bframes=7:b-adapt=2:b-pyramid=strict:ref=2:scenecut=0"),
    ("hevc", "open-gop=1:bframes=4:b-adapt=0:b-pyramid=1:ref=3:min-keyint=1"),
    ("hevc", "open-gop=1:bframes=7:b-adapt=2:b-pyramid=1:ref=5:min-keyint=1"),
]


@pytest.mark.parametrize("gop", [3, 8, 13])
@pytest.mark.parametrize(("codec", "params"), OPEN)
def test_open_gops_as_real_encoders_write_them(films, codec, params, gop):
    """Pictures before a keyframe lean on the GOP before; packets after it may speak of that GOP."""
    quiet = ":log-level=none:pools=1:frame-threads=1" if codec == "hevc" else ""
    name = "x265-params" if codec == "hevc" else "x264-params"
    options = {name: f"{params}:keyint={gop}{quiet}", "preset": "medium"}
    path = films.film(codec=codec, gop=gop, b_frames=3, open_gop=True, frames=45, options=options)
    leading = leading_frames(open_video(path).index)
    assert leading or gop != 8, "the film was to have leading images"
    films.same_as_plain(path)
    decoder = Decoder()
    for number in [*leading, *random.Random(gop).sample(range(45), 45)]:
        films.same_as_plain(path, [number], decoder)


@pytest.mark.parametrize("codec", REORDERING)
def test_leading_images_are_decoded_only_where_they_are_wanted(films, codec):
    path = films.film(codec=codec, gop=8, b_frames=2, open_gop=True)
    video = open_video(path)
    leading = leading_frames(video.index)
    packets = {int(video.index.packet_of[frame]) for frame in leading}
    for frame in range(30):
        span = span_of(video, frame)
        decoded = span.packets(span.start)
        own = video.index.packet_of[frame]
        assert decoded[0] == span.start
        assert decoded[-1] == own
        before_next_key = decoded[: int((video.index.start_of[decoded] == span.start).sum())]
        assert not packets & set(before_next_key.tolist()) - {int(own)} or frame in leading


def test_intra_refresh(films):
    """Keyframes after which the image becomes clean bit by bit."""
    options = {"x264-params": "intra-refresh=1:keyint=10:scenecut=0:bframes=0"}
    path = films.film(codec="h264", gop=10, frames=45, options=options)
    assert len(np.unique(open_video(path).index.start_of)) > 3
    decoder = Decoder()
    for number in range(45):
        films.same_as_plain(path, [number], decoder)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("codec", REORDERING)
def test_a_video_that_was_cut_at_an_open_gop(films, tmp_path, codec, hidden):
    """Its first leading images cannot be had; all others can, and are right.

    Save in H.264: packets may tell the codec to forget images that were cut away, which it takes
    for damage, and with nothing before the first keyframe there is no telling. It is an error then.
    """
    original = films.film(codec=codec, gop=8, b_frames=2, open_gop=True)
    index = open_video(original).index
    first = int(np.unique(index.start_of)[1])
    path = tmp_path / "v.mp4"
    # FFmpeg writes an edit that begins at the keyframe, and so hides what is shown before it.
    with (
        av.open(str(original)) as source,
        av.open(str(path), "w", options={"use_editlist": str(int(hidden))}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(p for p in source.demux(video=0) if p.size):
            if number >= first:
                packet.stream = stream
                target.mux(packet)
    cut = open_video(path).index
    lost = [frame for frame in cut.frame_of[cut.start_of < 0].tolist() if frame >= 0]
    assert bool(lost) != hidden
    assert cut.frames + (int((cut.frame_of < 0).sum()) if hidden else 0) == 30 - first
    expected = films.plain(original)[0][30 - cut.frames :]
    for number in range(cut.frames):
        if number in lost:
            with pytest.raises(VideoError, match="does not decode"):
                films.ours(path, [number])
            continue
        try:
            assert np.array_equal(films.ours(path, [number])[number], expected[number])
        except VideoError:
            assert codec == "h264"
            assert cut.starts([number]) == 0


# H.264 that does not say how far it reorders


class Bits:
    def __init__(self, data):
        self.text = "".join(f"{byte:08b}" for byte in data)
        self.at = 0

    def take(self, count):
        self.at += count
        return int(self.text[self.at - count : self.at], 2)

    def golomb(self):
        zeros = self.text.index("1", self.at) - self.at
        self.at += zeros
        return self.take(zeros + 1) - 1


def without_vui(sps):
    """A sequence header cut before its optional part, which hardware encoders often leave out."""
    bits = Bits(sps[1:].replace(b"\0\0\3", b"\0\0"))
    profile = bits.take(8)
    bits.take(16)
    bits.golomb()
    if profile >= 100:
        assert bits.golomb() == 1  # 4:2:0
        bits.golomb(), bits.golomb(), bits.take(2)
    bits.golomb()
    if bits.golomb() == 0:
        bits.golomb()
    bits.golomb(), bits.take(1), bits.golomb(), bits.golomb()
    assert bits.take(1) == 1  # no fields
    bits.take(1)
    if bits.take(1):
        [bits.golomb() for _ in range(4)]
    text = bits.text[: bits.at] + "01"
    text += "0" * (-len(text) % 8)
    return sps[:1] + bytes(int(text[at : at + 8], 2) for at in range(0, len(text), 8))


@pytest.mark.parametrize("pyramid", ["none", "normal"])
@pytest.mark.parametrize("b_frames", [0, 3, 7])
def test_h264_that_does_not_say_how_remote_it_reorders(films, tmp_path, b_frames, pyramid):
    params = f"bframes={b_frames}:b-adapt=0:b-pyramid={pyramid}:scenecut=0"
    options = {"preset": "medium", "x264-params": params}
    original = films.film(codec="h264", gop=16, frames=40, b_frames=b_frames, options=options)
    film = films.Mp4(original)
    stsd = film[STSD]
    at = stsd.index(b"avcC") - 4
    (size,) = struct.unpack_from(">I", stsd, at)
    config = stsd[at + 8 : at + size]
    (length,) = struct.unpack_from(">H", config, 6)
    header = without_vui(config[8 : 8 + length])
    config = config[:6] + struct.pack(">H", len(header)) + header + config[8 + length :]
    entry = stsd[12:at] + struct.pack(">I4s", 8 + len(config), b"avcC") + config
    entry += stsd[at + size :]
    film[STSD] = stsd[:8] + struct.pack(">I", 4 + len(entry)) + entry
    path = film.save(tmp_path / "v.mp4")
    assert films.same_as_plain(path) == 40
    expected, _ = films.plain(original)
    for number in range(40):  # a decoder for each: one that has learnt does not lose images
        assert np.array_equal(films.ours(path, [number])[number], expected[number])


# Decoders that are used again


def test_spans_do_not_contaminate_one_another(films):
    """One decoder, many films of one codec and header, in any order, some of them left early."""
    specs = [{"codec": codec, "gop": 8, "b_frames": 2, "open_gop": True} for codec in REORDERING]
    specs += [{"codec": codec, "gop": 12} for codec in CODECS]
    paths = [films.film(**spec) for spec in specs]
    decoder, rng = Decoder(), random.Random(3)
    for _ in range(200):
        path = rng.choice(paths)
        films.same_as_plain(path, sorted(rng.sample(range(30), rng.choice([1, 1, 2, 8]))), decoder)
        video = open_video(rng.choice(paths))
        for group in group_frames(video.index, np.arange(30))[:1]:
            next(iter(decoder.frames(GopSpan(video.index, video.file, video.name, group))))


@pytest.mark.parametrize("codec", CODECS)
def test_two_spans_at_once_on_one_decoder(films, codec):
    path = films.film(codec=codec, gop=12)
    video, decoder = open_video(path), Decoder()
    expected, _ = films.plain(path)
    films.same_as_plain(path, [3], decoder)  # so that there is a context to be used again
    one = decoder.frames(span_of(video, *range(12)))
    two = decoder.frames(span_of(video, *range(12, 24)))
    for (first, frame), (second, other) in zip(one, two, strict=True):
        assert np.array_equal(pixels(frame), expected[first])
        assert np.array_equal(pixels(other), expected[second])
        assert second == first + 12


def test_an_error_does_not_spoil_the_next_span(films):
    path = films.film(codec="h264", gop=12, b_frames=2)
    video, decoder = open_video(path), Decoder()
    broken = GopSpan(video.index, Changed(path, zero=(video.index, 1)), video.name, (0, 5))
    for _ in range(3):
        with pytest.raises(VideoError):
            list(decoder.frames(broken))
        films.same_as_plain(path, [0, 5, 20], decoder)


def test_contexts_stay_bounded(films):
    decoder = Decoder()
    for size in range(16, 16 + 2 * 20, 2):
        path = films.film(codec="mpeg4", size=(16, size), frames=1)
        films.same_as_plain(path, None, decoder)
    assert len(decoder._contexts) <= 8


@pytest.mark.parametrize("codec", CODECS)
def test_decoders_in_threads(films, codec):
    path = films.film(codec=codec, gop=6, b_frames=2 if codec in REORDERING else 0)
    films.plain(path)

    def work(seed):
        decoder, rng = Decoder(), random.Random(seed)
        for _ in range(12):
            films.same_as_plain(path, sorted(rng.sample(range(30), 3)), decoder)
        return seed

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 1, 2, 3]


# Grouping


@given(st.sets(st.integers(0, 29), min_size=1), st.sampled_from([0, 1, 5]))
@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
def test_groups_are_a_partition_by_keyframe(films, frames, which):
    index = open_video(films.film(**(FILMS[which] | {"gop": 7}))).index
    groups = group_frames(index, np.array(sorted(frames)))
    assert sorted(number for group in groups for number in group) == sorted(frames)
    for group in groups:
        assert list(group) == sorted(group)
        assert len({int(start) for start in index.starts(list(group))}) == 1
    assert len(groups) == len({int(start) for start in index.starts(sorted(frames))})


def test_a_span_reads_only_what_it_needs(films):
    path = films.film(codec="h264", gop=6)
    video = open_video(path)
    file = Changed(path)
    list(Decoder().frames(GopSpan(video.index, file, video.name, (13, 14))))
    begin = video.index.offset[12]
    assert file.reads == [(begin, video.index.offset[14] + video.index.size[14] - begin)]


# What is broken


class Changed:
    """A file with changed bytes, or too few."""

    def __init__(self, path, *, flip=None, zero=None, half=None, missing=0):
        self.data = bytearray(path.read_bytes())
        if flip:
            index, packet, bit = flip
            self.data[index.offset[packet] + bit // 8] ^= 1 << bit % 8
        for which, share in ((zero, 0), (half, 2)):
            if which:
                index, packet = which
                begin, end = index.offset[packet], index.offset[packet] + index.size[packet]
                begin += int(index.size[packet]) // share if share else 0
                self.data[begin:end] = bytes(int(end - begin))
        self.size = len(self.data)
        self.missing = missing
        self.reads = []

    def read(self, offset, length):
        self.reads.append((offset, length))
        return bytes(self.data[offset : offset + length - self.missing])


def outcome(films, path, file):
    """What becomes of all frames: ``error``, ``same`` or ``other`` images."""
    video = open_video(path)
    expected, _ = films.plain(path)
    decoder, seen = Decoder(), set()
    for group in group_frames(video.index, np.arange(video.index.frames)):
        try:
            for number, frame in decoder.frames(GopSpan(video.index, file, video.name, group)):
                assert not frame.is_corrupt
                seen.add("same" if np.array_equal(pixels(frame), expected[number]) else "other")
        except VideoError:
            seen.add("error")
    return next(word for word in ("error", "other", "same") if word in seen)


HASHED = {"x265-params": "log-level=none:hash=1:pools=1:frame-threads=1"}
BROKEN = [{"codec": codec, "gop": 6, "frames": 12} for codec in CODECS]
BROKEN.append({"codec": "hevc", "gop": 6, "frames": 12, "options": HASHED})


@pytest.mark.parametrize("spec", BROKEN, ids=name_of)
def test_a_packet_of_zeros_is_an_error(films, spec):
    """Every codec knows: there is no frame header."""
    path = films.film(**spec)
    index = open_video(path).index
    for packet in range(12):
        assert outcome(films, path, Changed(path, zero=(index, packet))) == "error"


@pytest.mark.parametrize("spec", [BROKEN[1], BROKEN[4], BROKEN[5]], ids=name_of)
def test_half_a_packet_is_an_error(films, spec):
    """H.264 and MPEG-4 notice that blocks are missing; HEVC only where it carries check sums.

    AV1 notices most of the time, VP9 and bare HEVC never: their arithmetic decoders make
    images of any bytes. There only the file's length and its index can be checked.
    """
    path = films.film(**spec)
    index = open_video(path).index
    for packet in range(12):
        found = outcome(films, path, Changed(path, half=(index, packet)))
        assert found in (("error",) if "options" not in spec else ("error", "same"))


@pytest.mark.parametrize("spec", BROKEN, ids=name_of)
def test_a_flipped_bit_is_an_error_where_the_codec_can_know(films, spec):
    """With check sums (HEVC's image hash) every bit that matters is noticed.

    Without, a flip is noticed where it breaks the syntax: about a third of the time in AV1, H.264,
    MPEG-4 and HEVC, hardly ever in VP9. Whatever happens, it is an error of ours or an image.
    """
    path = films.film(**spec)
    index = open_video(path).index
    rng = random.Random(7)
    found = []
    for _ in range(60):
        packet = rng.randrange(12)
        bit = rng.randrange(8 * int(index.size[packet]))
        found.append(outcome(films, path, Changed(path, flip=(index, packet, bit))))
    if "options" in spec:
        assert "other" not in found
    if spec["codec"] != "vp9":
        assert found.count("error") >= 5


def test_damage_to_a_frame_that_others_lean_on_counts(films):
    """Frame 3 is asked for, packet 1 is broken: what leans on it must not come out painted over."""
    for codec in ("h264", "mpeg4"):
        path = films.film(codec=codec, gop=6, frames=12)
        video = open_video(path)
        for broken in ({"zero": (video.index, 1)}, {"half": (video.index, 1)}):
            span = GopSpan(video.index, Changed(path, **broken), video.name, (3,))
            with pytest.raises(VideoError, match="does not decode") as caught:
                list(Decoder().frames(span))
            assert caught.value.where["file"] == str(path)


def test_an_image_that_the_codec_marks_as_corrupt_is_never_handed_out(films):
    """MPEG-4 paints over damage at a packet's very end, and says so only in the image's flags."""
    path = films.film(codec="mpeg4", gop=6, frames=12, b_frames=2)
    video = open_video(path)
    groups = group_frames(video.index, np.arange(12))
    for packet in range(12):
        size = int(video.index.size[packet])
        for bit in range(8 * size - 32, 8 * size):
            file = Changed(path, flip=(video.index, packet, bit))
            for group in groups:
                try:
                    frames = Decoder().frames(GopSpan(video.index, file, video.name, group))
                    assert not any(frame.is_corrupt for _, frame in frames)
                except VideoError:
                    pass


@pytest.mark.parametrize("missing", [1, 100, 10**6])
def test_too_few_bytes(films, missing):
    path = films.film(codec="h264", gop=6)
    video = open_video(path)
    span = GopSpan(video.index, Changed(path, missing=missing), video.name, (8,))
    with pytest.raises(VideoError, match="cut off") as caught:
        list(Decoder().frames(span))
    assert caught.value.where["file"] == str(path)


class Spread:
    """A file whose packets lie terabytes apart; what lies between them is never asked for."""

    def __init__(self, path, index):
        self.data, self.index, self.size = path.read_bytes(), index, len(index.offset) << 40

    def read(self, offset, length):
        packet, within = divmod(offset, 1 << 40)
        at = int(self.index.offset[packet]) + within
        assert within + length <= self.index.size[packet]
        return self.data[at : at + length]


def test_packets_that_lie_far_apart_are_read_one_by_one(films):
    path = films.film(codec="h264", gop=6)
    video = open_video(path)
    index = replace(video.index, offset=np.arange(len(video.index.offset)) << 40)
    span = GopSpan(index, Spread(path, video.index), video.name, (0, 5))
    found = [pixels(frame) for _, frame in Decoder().frames(span)]
    wanted = [pixels(frame) for _, frame in Decoder().frames(span_of(video, 0, 5))]
    assert np.array_equal(found, wanted)


def test_a_muxer_that_lost_the_times_of_b_frames(films, tmp_path):
    """Frame 1 is then the packet that is shown third: no guess is good enough."""
    film = films.Mp4(films.film(codec="h264", gop=12, b_frames=2))
    del film["moov/trak/mdia/minf/stbl/ctts"]
    del film["moov/trak/edts"]
    path = film.save(tmp_path / "v.mp4")
    with pytest.raises(VideoError, match="later"):
        films.ours(path)


def test_an_unknown_codec(films):
    path = films.film(codec="h264")
    video = open_video(path)
    for name in ("no-such-codec", "libx264", "ansi", "rawvideo", "h264_cuvid", "wrapped_avframe"):
        index = replace(video.index, codec=Codec(name, None, 64, 48))
        with pytest.raises(VideoError, match="not decoded") as caught:
            list(Decoder().frames(GopSpan(index, video.file, video.name, (0,))))
        assert "libdav1d" in str(caught.value)


def test_a_header_that_is_broken(films):
    path = films.film(codec="h264")
    video = open_video(path)
    index = replace(video.index, codec=replace(video.index.codec, extradata=b"\1\2\3"))
    with pytest.raises(VideoError):
        list(Decoder().frames(GopSpan(index, video.file, video.name, (0,))))

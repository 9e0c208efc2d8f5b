"""The hand-written reader of packet tables, against FFmpeg's own view of the same files."""

from __future__ import annotations

import random
import shutil
import struct
import tracemalloc

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from demoreel.errors import VideoError
from demoreel.media import mp4, remux
from demoreel.media.video import index_packets, open_video
from demoreel.storage.local import LocalFile, open_file

STBL = "moov/trak/mdia/minf/stbl"
CODECS = ["av1", "h264", "hevc", "vp9", "mpeg4"]
REORDERING = ["h264", "hevc", "mpeg4"]
UNEVEN = [0, 1, 3, 4, 9, 10, 11, 20, 22, 23, 24, 25, 30, 31, 40, 41, 42, 50, 51, 60]


class Memory:
    """Bytes that are read by position."""

    def __init__(self, data):
        self.data = bytes(data)
        self.size = len(data)

    def read(self, offset, length):
        return self.data[offset : offset + length] if offset >= 0 else b""


def fast(path):
    return mp4.read_index(LocalFile(str(path)), name=str(path))


def assert_same(index, other):
    for name in ("name", "extradata", "width", "height"):
        assert getattr(index.codec, name) == getattr(other.codec, name), name
    for name in ("offset", "size", "frame_of", "start_of", "packet_of"):
        assert np.array_equal(getattr(index, name), getattr(other, name)), name
    np.testing.assert_allclose(index.seconds, other.seconds, atol=1e-9)


def assert_as_ffmpeg(path, plain):
    """The index equals the one from a full demux, and the times at which FFmpeg shows frames."""
    index = fast(path)
    assert index is not None
    assert_same(index, remux.read_index(str(path)))
    _, seconds = plain(path)
    assert index.frames == len(seconds)
    np.testing.assert_allclose(index.seconds, seconds, atol=1e-9)
    return index


def assert_sane(index, size):
    """Whatever a file says, an index points into the file and at its own packets."""
    count = len(index.offset)
    assert index.frames <= count
    assert (index.offset >= 0).all()
    assert (index.size > 0).all()
    assert index.end <= size
    assert len(np.unique(index.packet_of)) == index.frames
    assert np.array_equal(index.frame_of[index.packet_of], np.arange(index.frames))
    assert (index.frame_of >= 0).sum() == index.frames
    assert ((index.start_of >= -1) & (index.start_of <= np.arange(count))).all()
    assert (np.diff(index.seconds) >= 0).all()


def keyframes(path):
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        return [number for number, packet in enumerate(packets) if packet.is_keyframe]


# What encoders and muxers write


@pytest.mark.parametrize("gop", [1, 2, 12, 250])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_and_gop(films, codec, gop):
    path = films.film(codec=codec, gop=gop)
    index = assert_as_ffmpeg(path, films.plain)
    assert index.frames == 30
    assert np.unique(index.start_of).tolist() == list(range(0, 30, gop)) == keyframes(path)


@pytest.mark.parametrize("codec", CODECS)
def test_irregular_keyframes(films, codec):
    wanted = (0, 1, 5, 6, 17, 29)
    path = films.film(codec=codec, gop=250, keyframes=wanted)
    index = assert_as_ffmpeg(path, films.plain)
    assert np.unique(index.start_of).tolist() == list(wanted) == keyframes(path)


@pytest.mark.parametrize("open_gop", [False, True])
@pytest.mark.parametrize("b_frames", [1, 2, 3])
@pytest.mark.parametrize("codec", REORDERING)
def test_b_frames(films, codec, b_frames, open_gop):
    path = films.film(codec=codec, gop=8, b_frames=b_frames, open_gop=open_gop)
    index = assert_as_ffmpeg(path, films.plain)
    assert index.packet_of.tolist() != list(range(30)), "the film was to have B-frames"
    last_key = np.maximum.accumulate(
        np.where(np.isin(np.arange(30), keyframes(path)), np.arange(30), 0)
    )
    leading = index.start_of < last_key
    assert leading.any() == open_gop
    assert (index.frame_of[leading] < index.frame_of[last_key[leading]]).all()


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("codec", REORDERING)
def test_a_first_time_that_is_not_zero(films, codec, b_frames):
    path = films.film(codec=codec, b_frames=b_frames, times=list(range(100, 130)))
    assert fast(path).seconds[0] == pytest.approx(100 / 30, abs=1e-3)  # edits count milliseconds
    assert_as_ffmpeg(path, films.plain)


@pytest.mark.parametrize("codec", REORDERING)
def test_no_edit_list(films, codec, tmp_path):
    """Then frames begin late by as much as B-frames delay them."""
    film = films.Mp4(films.film(codec=codec, gop=8, b_frames=2))
    del film["moov/trak/edts"]
    path = film.save(tmp_path / "v.mp4")
    assert assert_as_ffmpeg(path, films.plain).seconds[0] > 0
    never_had_one = films.film(codec=codec, gop=8, b_frames=2, mux={"use_editlist": "0"})
    assert_as_ffmpeg(never_had_one, films.plain)


@pytest.mark.parametrize("codec", REORDERING)
def test_negative_composition_shifts(films, codec):
    path = films.film(codec=codec, b_frames=2, mux={"movflags": "negative_cts_offsets"})
    shifts = [shift for _, shift in films.Mp4(path).table(f"{STBL}/ctts", ">Ii")]
    assert min(shifts) < 0
    assert_as_ffmpeg(path, films.plain)


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("codec", REORDERING)
def test_variable_frame_rate(films, codec, b_frames):
    path = films.film(codec=codec, b_frames=b_frames, frames=len(UNEVEN), times=UNEVEN)
    index = assert_as_ffmpeg(path, films.plain)
    np.testing.assert_allclose(index.seconds, np.array(UNEVEN) / 30, atol=1e-6)


@pytest.mark.parametrize("codec", CODECS)
def test_the_table_first_or_last(films, codec):
    first = films.film(codec=codec, mux={"movflags": "faststart"})
    last = films.film(codec=codec)
    order = [kind for kind, _ in films.Mp4(first).boxes]
    assert order.index(b"moov") < order.index(b"mdat")
    index, other = assert_as_ffmpeg(first, films.plain), assert_as_ffmpeg(last, films.plain)
    assert np.unique(index.offset - other.offset).tolist() != [0]
    assert np.array_equal(index.size, other.size)


@pytest.mark.parametrize("codec", ["av1", "h264"])
def test_an_audio_track_in_between(films, codec):
    path = films.film(codec=codec, frames=60, audio=True)
    index = assert_as_ffmpeg(path, films.plain)
    gaps = index.offset[1:] - (index.offset + index.size)[:-1]
    assert (gaps > 0).any(), "the tracks were to be interleaved"
    assert films.same_as_plain(path) == 60


def test_the_first_video_track_is_the_one(films, tmp_path):
    """Sound may come first in the file's table."""
    path = films.film(codec="h264", audio=True)
    film = films.Mp4(path)
    moov = next(content for kind, content in film.boxes if kind == b"moov")
    tracks = [box for box in moov if box[0] == b"trak"]
    moov[moov.index(tracks[0])], moov[moov.index(tracks[1])] = tracks[1], tracks[0]
    assert_same(fast(film.save(tmp_path / "v.mp4")), fast(path))


# Rarer forms of the tables


def test_wide_chunk_positions(films, tmp_path):
    path = films.film(codec="h264", audio=True)
    film = films.Mp4(path)
    positions = [row[0] for row in film.table(f"{STBL}/stco", ">I")]
    del film[f"{STBL}/stco"]
    film[f"{STBL}/co64"] = struct.pack(f">II{len(positions)}Q", 0, len(positions), *positions)
    changed = film.save(tmp_path / "v.mp4")
    assert_as_ffmpeg(changed, films.plain)
    assert_same(fast(changed), fast(path))


def test_packets_beyond_four_gigabytes(films, tmp_path):
    """A sparse file: a hole of 5 GB inside ``mdat``, and only then the packets."""
    original = films.film(codec="h264", b_frames=2)
    film, before = films.Mp4(original), fast(original)
    begin, hole = int(before.offset.min()), 5 << 30
    packets = original.read_bytes()[begin : before.end]
    positions = [row[0] - begin + 16 + hole for row in film.table(f"{STBL}/stco", ">I")]
    del film[f"{STBL}/stco"]
    film[f"{STBL}/co64"] = struct.pack(f">II{len(positions)}Q", 0, len(positions), *positions)
    path = tmp_path / "v.mp4"
    with path.open("wb") as file:
        file.write(struct.pack(">I4sQ", 1, b"mdat", 16 + hole + len(packets)))
        file.seek(16 + hole)
        file.write(packets + struct.pack(">I4s", 8 + len(film["moov"]), b"moov") + film["moov"])
    index = fast(path)
    assert index.offset.min() > 5 << 30
    assert np.array_equal(index.size, before.size)
    expected, _ = films.plain(original)
    found = films.ours(path)
    assert all(np.array_equal(found[number], expected[number]) for number in found)
    path.unlink()


def test_one_size_for_all_packets(films, tmp_path):
    """Each packet is filled up with a filler unit, which H.264 allows, to the same length."""
    original = films.film(codec="h264", gop=4)
    film, before = films.Mp4(original), fast(original)
    data = original.read_bytes()
    fixed = int(before.size.max()) + 8
    packets = b""
    for offset, size in zip(before.offset.tolist(), before.size.tolist(), strict=True):
        filler = fixed - size - 4
        packets += data[offset : offset + size]
        packets += struct.pack(">I", filler) + b"\x0c" + b"\xff" * (filler - 2) + b"\x80"
    film["mdat"] = packets
    kinds = [kind for kind, _ in film.boxes]
    first = sum(8 + len(content) for _, content in film.boxes[: kinds.index(b"mdat")])
    film[f"{STBL}/stsz"] = struct.pack(">III", 0, fixed, 30)
    film[f"{STBL}/stsc"] = struct.pack(">IIIII", 0, 1, 1, 30, 1)
    film[f"{STBL}/stco"] = struct.pack(">III", 0, 1, first + 8)
    path = film.save(tmp_path / "v.mp4")
    index = assert_as_ffmpeg(path, films.plain)
    assert np.unique(index.size).tolist() == [fixed]
    assert films.same_as_plain(path) == 30
    expected, _ = films.plain(original)
    assert all(np.array_equal(a, b) for a, b in zip(films.plain(path)[0], expected, strict=True))


@pytest.mark.parametrize("codec", CODECS)
def test_rows_of_chunks_as_other_muxers_write_them(films, tmp_path, codec):
    """One packet per chunk, described by runs that say the same thing twice."""
    original = films.film(codec=codec)
    film, before = films.Mp4(original), fast(original)
    film[f"{STBL}/stco"] = struct.pack(f">II{30}I", 0, 30, *before.offset.tolist())
    film[f"{STBL}/stsc"] = struct.pack(">II9I", 0, 3, 1, 1, 1, 7, 1, 1, 29, 1, 1)
    assert_same(fast(film.save(tmp_path / "v.mp4")), before)
    assert_as_ffmpeg(tmp_path / "v.mp4", films.plain)


# Edit lists


def edit_list(rows, version=0):
    form = ">Qqi" if version else ">Iii"
    return struct.pack(">B3xI", version, len(rows)) + b"".join(
        struct.pack(form, *row) for row in rows
    )


def with_edits(films, path, target, rows, version=0):
    film = films.Mp4(path)
    film["moov/trak/edts/elst"] = edit_list(rows, version)
    return film.save(target)


BASES = [
    {"codec": "h264", "gop": 8, "b_frames": 3, "open_gop": True},
    {"codec": "hevc", "gop": 8, "b_frames": 2},
    {"codec": "mpeg4", "gop": 6, "b_frames": 1},
    {"codec": "vp9", "gop": 5},
    {"codec": "av1", "gop": 2, "rate": 25},
    {"codec": "h264", "gop": 30, "rate": 10},
]


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    base=st.sampled_from(BASES),
    start=st.one_of(st.integers(0, 40), st.floats(0, 40)),
    frames=st.one_of(st.integers(1, 40), st.floats(0.1, 40)),
    delay=st.none() | st.integers(0, 3000),
    version=st.sampled_from([0, 1]),
)
def test_frames_that_an_edit_hides(films, tmp_path, base, start, frames, delay, version):
    original = films.film(**base)
    film = films.Mp4(original)
    (ticks,) = struct.unpack_from(">I", film["moov/trak/mdia/mdhd"], 12)
    (movie_ticks,) = struct.unpack_from(">I", film["moov/mvhd"], 12)
    per_frame = ticks / base.get("rate", 30)
    length = max(1, round(frames * movie_ticks / base.get("rate", 30)))
    rows = [] if delay is None else [(delay, -1, 1 << 16)]
    rows.append((length, round(start * per_frame), 1 << 16))
    path = with_edits(films, original, tmp_path / "v.mp4", rows, version)
    index = fast(path)
    try:
        expected = remux.read_index(str(path))
    except VideoError:
        assert index.frames == 0  # FFmpeg finds no packet at all that the edit shows
        return
    # FFmpeg also leaves out packets that nothing shown depends on; the shown ones must agree.
    assert index.offset[index.packet_of].tolist() == expected.offset[expected.packet_of].tolist()
    np.testing.assert_allclose(index.seconds, expected.seconds, atol=1e-9)


@pytest.mark.parametrize("base", BASES, ids=lambda base: base["codec"])
def test_the_images_that_an_edit_leaves(films, tmp_path, base):
    """Frames 5 to 20 are shown; some of them depend on hidden ones."""
    original = films.film(**base)
    film = films.Mp4(original)
    (ticks,) = struct.unpack_from(">I", film["moov/trak/mdia/mdhd"], 12)
    begin = films.Mp4(original).table("moov/trak/edts/elst", ">Iii")[-1][1]
    rate = base.get("rate", 30)
    rows = [(15 * 1000 // rate, begin + 5 * ticks // rate, 1 << 16)]
    path = with_edits(films, original, tmp_path / "v.mp4", rows)
    expected, _ = films.plain(original)
    shown, _ = films.plain(path)
    found = films.ours(path)
    assert len(found) == len(shown) == 15
    for number, image in found.items():
        assert np.array_equal(image, shown[number])
        assert np.array_equal(image, expected[5 + number])
        assert np.array_equal(films.ours(path, [number])[number], image)


def test_an_edit_without_a_length_shows_everything(films, tmp_path):
    """As in fragmented files; FFmpeg itself would show nothing of such a file."""
    original = films.film(codec="h264", b_frames=2)
    begin = films.Mp4(original).table("moov/trak/edts/elst", ">Iii")[-1][1]
    path = with_edits(films, original, tmp_path / "v.mp4", [(0, begin, 1 << 16)])
    assert_same(fast(path), fast(original))


@pytest.mark.parametrize(
    "rows",
    [
        [(500, 0, 1 << 16), (300, 10000, 1 << 16)],  # two parts
        [(300, 10000, 1 << 16), (500, 0, 1 << 16)],  # the other way round
        [(500, 0, 1 << 16), (500, 0, 1 << 16)],  # the same part twice
        [(1000, 0, 1 << 15)],  # at half speed
    ],
)
@pytest.mark.parametrize("codec", ["h264", "vp9"])
def test_stranger_edits_are_left_to_ffmpeg(films, tmp_path, codec, rows):
    path = with_edits(films, films.film(codec=codec), tmp_path / "v.mp4", rows)
    assert fast(path) is None
    index = open_video(path).index
    assert_same(index, remux.read_index(str(path)))
    assert index.frames == len(films.plain(path)[0])
    films.same_as_plain(path)


@pytest.mark.parametrize("start", [-2, -1000, -(1 << 31)])
def test_an_edit_that_begins_before_the_video(films, tmp_path, start):
    path = with_edits(films, films.film(codec="h264"), tmp_path / "v.mp4", [(500, start, 1 << 16)])
    with pytest.raises(VideoError, match="before the video"):
        open_video(path)


@pytest.mark.parametrize(
    ("name", "most"), [("MOOV_BYTES", 100), ("VIDEO_PACKETS", 3), ("IMAGE_PIXELS", 50)]
)
def test_limits(films, monkeypatch, name, most):
    monkeypatch.setenv(f"DEMOREEL_LIMIT_{name}", str(most))
    path = films.film(codec="h264")
    with pytest.raises(VideoError, match=f"the limit {name} is {most}"):
        fast(path)


# Other containers


CONTAINERS = {
    "fragments": CODECS,
    ".mkv": CODECS,
    ".avi": ["av1", "h264", "vp9", "mpeg4"],
    ".webm": ["av1", "vp9"],
}


@pytest.mark.parametrize(
    ("container", "codec", "b_frames"),
    [
        (container, codec, b_frames)
        for container, codecs in CONTAINERS.items()
        for codec in codecs
        for b_frames in ((0, 2) if codec in REORDERING else (0,))
    ],
)
def test_containers_without_a_packet_table(films, container, codec, b_frames):
    spec = {"codec": codec, "b_frames": b_frames, "gop": 7}
    if container == "fragments":
        path = films.film(**spec, mux={"movflags": "frag_keyframe+empty_moov"})
    else:
        path = films.film(container, **spec)
    assert fast(path) is None
    video = open_video(path)
    expected, seconds = films.plain(path)
    assert video.index.frames == len(expected) == 30
    assert_sane(video.index, path.stat().st_size)
    if container != ".avi":  # it has no times, and FFmpeg's guesses differ by where one asks
        np.testing.assert_allclose(video.index.seconds, seconds, atol=2e-3)
    films.same_as_plain(path)
    for number in (0, 3, 11, 12, 28, 29):
        films.same_as_plain(path, [number])


def test_codecs_that_only_a_demuxer_names(films):
    films.same_as_plain(films.film(".mkv", codec="ffv1"))
    films.same_as_plain(films.film(codec="mpeg2video", b_frames=2, gop=6))


def test_packets_in_pieces_are_refused(films):
    """MPEG-TS cuts packets into slices of 184 bytes."""
    with pytest.raises(VideoError, match="one piece"):
        open_video(films.film(".ts", codec="h264"))


PLAYLISTS = {
    "a.mp4": "ffconcat version 1.0\nfile other.mkv\n",
    "a.txt": "ffconcat version 1.0\nfile other.mkv\n",
    "a.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nother.ts\n#EXT-X-ENDLIST\n",
    "a.mpd": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"></MPD>',
    "a.sdp": "v=0\r\ns=x\r\nt=0 0\r\nm=video 5004 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n",
    "a.ans": "a secret\n" * 40,  # FFmpeg renders text into images
    "a%d.png": "a secret\n",
}


@pytest.mark.parametrize("name", PLAYLISTS)
def test_a_video_that_names_other_files_is_refused(films, tmp_path, name):
    shutil.copy(films.film(".mkv", codec="h264"), tmp_path / "other.mkv")
    shutil.copy(films.film(".ts", codec="h264"), tmp_path / "other.ts")
    Image.new("RGB", (8, 8)).save(tmp_path / "a1.png")
    (tmp_path / name).write_text(PLAYLISTS[name])
    with pytest.raises(VideoError, match="does not open"):
        open_video(tmp_path / name)
    with pytest.raises(VideoError, match="does not open"):
        remux.probe(tmp_path / name)
    with pytest.raises(VideoError, match="does not open"):
        remux.read_tracks(name, open_file(tmp_path / name))


@pytest.mark.parametrize("prefix", ["concat:", "subfile,,start,0,end,9,,:", "file:", "cache:"])
def test_a_path_is_no_protocol(films, monkeypatch, prefix):
    path = films.film(".mkv", codec="h264")
    monkeypatch.chdir(path.parent)
    for opens in (open_video, remux.probe, remux.read_index):
        with pytest.raises(VideoError, match="open"):
            opens(f"{prefix}{path.name}")


def test_codecs_outside_the_list_are_refused(films):
    with pytest.raises(VideoError, match=r"(?s)not decoded.*h264"):
        open_video(films.film(".mkv", codec="rawvideo", frames=2))
    with pytest.raises(VideoError, match=r"(?s)not decoded.*h264"):
        open_video(films.film(".avi", codec="huffyuv", pix_fmt="yuv422p", frames=2))


def test_metadata_in_another_alphabet_does_no_harm(films, tmp_path):
    path = films.film(".mkv", codec="vp9")
    data = path.read_bytes()
    assert data.count(b"Lavf") >= 1
    (tmp_path / "v.mkv").write_bytes(data.replace(b"Lavf", b"L\xe4vf"))
    assert open_video(tmp_path / "v.mkv").index.frames == 30


# Damaged files


def check_damaged(data):
    """Reading ends in an index that makes sense, in None (ask FFmpeg) or in a VideoError."""
    try:
        index = mp4.read_index(Memory(data), name="v.mp4")
    except VideoError as error:
        return error
    if index is not None:
        assert_sane(index, len(data))
    return index


def test_an_empty_file(tmp_path):
    path = tmp_path / "v.mp4"
    path.touch()
    with pytest.raises(VideoError, match="empty"):
        open_video(path)


@pytest.mark.parametrize("data", [b"\0\0\0\x20ftypis", b"0123456789", b"\0" * 10, b"\xff" * 10])
def test_ten_bytes(tmp_path, data):
    path = tmp_path / "v.mp4"
    path.write_bytes(data)
    with pytest.raises(VideoError):
        open_video(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
@given(st.data())
def test_cut_off_in_the_packets(films, tmp_path, data):
    whole = films.film(codec="h264", mux={"movflags": "faststart"}).read_bytes()
    begin = whole.index(b"mdat")
    path = tmp_path / "v.mp4"
    path.write_bytes(whole[: data.draw(st.integers(begin, len(whole) - 1))])
    with pytest.raises(VideoError, match="cut off"):
        open_video(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
@given(st.data())
def test_cut_off_before_the_end_of_the_table(films, tmp_path, data):
    whole = films.film(codec="h264").read_bytes()
    path = tmp_path / "v.mp4"
    path.write_bytes(whole[: data.draw(st.integers(1, len(whole) - 1))])
    with pytest.raises(VideoError, match=r"cut off|damaged|does not open"):
        open_video(path)


def test_a_recording_that_never_ended_names_the_reason(films, tmp_path):
    whole = films.film(codec="h264").read_bytes()
    path = tmp_path / "v.mp4"
    path.write_bytes(whole[: whole.index(b"moov") - 4])
    with pytest.raises(VideoError, match="never finished"):
        open_video(path)


DAMAGED = [
    {"codec": "h264", "b_frames": 2, "audio": True},
    {"codec": "mpeg4", "b_frames": 2},
    {"codec": "av1"},
    {"codec": "hevc", "b_frames": 3},
    {"codec": "vp9"},
]


@pytest.mark.parametrize("base", DAMAGED, ids=lambda base: base["codec"])
def test_flipped_bytes_in_the_table(films, tmp_path, base):
    whole = films.film(**base).read_bytes()
    begin = whole.index(b"moov") - 4
    rng = random.Random(base["codec"])
    seen = set()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 8])):
            place = rng.randrange(begin, len(data))
            data[place] = rng.choice([data[place] ^ 1 << rng.randrange(8), 0, 255])
        found = check_damaged(data)
        seen.add(type(found).__name__)
        if found is None:  # the other way to an index must be as calm
            path = tmp_path / "v.mp4"
            path.write_bytes(data)
            try:
                assert_sane(open_video(path).index, len(data))
            except VideoError:
                seen.add("demuxed")
    assert seen == {"PacketIndex", "VideoError", "NoneType", "demuxed"}


def box_places(data, begin, end, depth=0):
    """Where every box of the table begins."""
    at = begin
    while at + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, at)
        yield at, kind
        if kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts"):
            yield from box_places(data, at + 8, at + size)
        at += size


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 1 << 31, (1 << 32) - 1])
def test_impossible_box_sizes(films, size):
    whole = films.film(codec="h264", b_frames=2).read_bytes()
    begin = whole.index(b"moov") - 4
    places = list(box_places(whole, begin, len(whole)))
    assert len(places) > 20
    for at, _ in places:
        data = bytearray(whole)
        struct.pack_into(">I", data, at, size)
        check_damaged(data)


def test_a_wide_box_size_that_is_huge(films):
    whole = films.film(codec="h264").read_bytes()
    begin = whole.index(b"moov") - 4
    for at, _ in box_places(whole, begin, len(whole)):
        for size in (0, 15, 1 << 40, (1 << 63) + 1, (1 << 64) - 1):
            data = bytearray(whole)
            data[at : at + 8] = struct.pack(">I4sQ", 1, data[at + 4 : at + 8], size)
            check_damaged(data)
    huge = struct.pack(">I4sQ", 1, b"free", 1 << 62)
    assert isinstance(check_damaged(huge + whole), VideoError)


@pytest.mark.parametrize("count", [0, 29, 31, 1 << 24, 1 << 27, (1 << 31) - 1, (1 << 32) - 1])
@pytest.mark.parametrize("table", ["stsd", "stts", "ctts", "stsc", "stsz", "stco", "stss", "elst"])
def test_impossible_counts(films, table, count):
    whole = films.film(codec="h264", b_frames=2).read_bytes()
    at = whole.rindex(table.encode()) + (12 if table == "stsz" else 8)
    data = bytearray(whole)
    assert struct.unpack_from(">I", data, at)[0] <= 30
    struct.pack_into(">I", data, at, count)
    assert_little_memory(data)


@pytest.mark.parametrize("value", [0, 1 << 27, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize(
    ("table", "columns"),
    [("stts", 2), ("ctts", 2), ("stsc", 3), ("stsz", 1), ("stco", 1), ("stss", 1), ("elst", 3)],
)
def test_impossible_entries(films, table, columns, value):
    whole = films.film(codec="h264", b_frames=2).read_bytes()
    begin = whole.rindex(table.encode()) + (16 if table == "stsz" else 12)
    for column in range(columns):
        data = bytearray(whole)
        struct.pack_into(">I", data, begin + 4 * column, value)
        assert_little_memory(data)


def test_composition_shifts_for_more_packets_than_there_are(films, tmp_path):
    """One run too long, and every image behind it would be taken for its neighbour."""
    film = films.Mp4(films.film(codec="h264", b_frames=2))
    runs = film.table(f"{STBL}/ctts", ">Ii")
    (count, shift), *rest = runs
    longer = [(count + 8, shift), *rest]
    packed = b"".join(struct.pack(">Ii", *run) for run in longer)
    film[f"{STBL}/ctts"] = struct.pack(">II", 0, len(longer)) + packed
    with pytest.raises(VideoError, match="composition shifts"):
        open_video(film.save(tmp_path / "v.mp4"))


def test_a_billion_packets_of_one_byte(films, tmp_path):
    """Tables that agree with one another, in a file that cannot hold what they say."""
    film = films.Mp4(films.film(codec="h264"))
    count = 1 << 30
    film[f"{STBL}/stsz"] = struct.pack(">III", 0, 1, count)
    film[f"{STBL}/stts"] = struct.pack(">IIII", 0, 1, count, 1)
    film[f"{STBL}/stsc"] = struct.pack(">IIIII", 0, 1, 1, count, 1)
    film[f"{STBL}/stco"] = struct.pack(">III", 0, 1, 48)
    data = film.save(tmp_path / "v.mp4").read_bytes()
    assert isinstance(assert_little_memory(data), VideoError)


def assert_little_memory(data):
    tracemalloc.start()
    try:
        found = check_damaged(data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 << 20
    return found


@pytest.mark.parametrize(
    ("box", "content"),
    [
        ("stss", struct.pack(">III", 0, 1, 0)),  # keyframes count from 1
        ("stss", struct.pack(">III", 0, 1, 31)),
        ("stsc", struct.pack(">IIIII", 0, 1, 2, 30, 1)),  # does not begin at the first chunk
        ("stsc", struct.pack(">II6I", 0, 2, 2, 15, 1, 1, 15, 1)),  # goes backwards
        ("stsc", struct.pack(">II", 0, 0)),
        ("stts", struct.pack(">IIII", 0, 1, 29, 512)),
        ("stco", struct.pack(">II", 0, 0)),
        ("stco", b""),
        ("stsz", struct.pack(">III", 0, 0, 30)),
    ],
)
def test_tables_that_contradict_themselves(films, tmp_path, box, content):
    film = films.Mp4(films.film(codec="h264"))
    film[f"{STBL}/{box}"] = content
    data = film.save(tmp_path / "v.mp4").read_bytes()
    assert isinstance(check_damaged(data), VideoError)


@pytest.mark.parametrize("position", [(1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 62])
def test_positions_outside_of_everything(films, tmp_path, position):
    film = films.Mp4(films.film(codec="h264"))
    count = len(film.table(f"{STBL}/stco", ">I"))
    del film[f"{STBL}/stco"]
    film[f"{STBL}/co64"] = struct.pack(f">II{count}Q", 0, count, *[position] * count)
    data = film.save(tmp_path / "v.mp4").read_bytes()
    assert isinstance(check_damaged(data), VideoError)


@pytest.mark.parametrize("box", ["stsd", "stts", "stsc", "stsz", "stco"])
def test_a_missing_table(films, tmp_path, box):
    film = films.Mp4(films.film(codec="h264"))
    del film[f"{STBL}/{box}"]
    path = film.save(tmp_path / "v.mp4")
    with pytest.raises(VideoError):
        open_video(path)


def test_no_video_in_it(films, tmp_path):
    film = films.Mp4(films.film(codec="h264", audio=True))
    del film["moov/trak"]  # the first: the video
    with pytest.raises(VideoError, match="no video"):
        open_video(film.save(tmp_path / "v.mp4"))


def test_empty_packets_are_left_to_ffmpeg(films, tmp_path):
    film = films.Mp4(films.film(codec="h264"))
    sizes = [row[0] for row in film.table(f"{STBL}/stsz", ">I", skip=12)]
    sizes[-1] = 0
    film[f"{STBL}/stsz"] = struct.pack(f">III{len(sizes)}I", 0, 0, len(sizes), *sizes)
    path = film.save(tmp_path / "v.mp4")
    assert fast(path) is None
    assert open_video(path).index.frames == 29


def test_many_tiny_boxes_come_to_an_end(films):
    whole = films.film(codec="h264").read_bytes()
    assert isinstance(check_damaged(struct.pack(">I4s", 8, b"free") * 200_000 + whole), VideoError)


# The derivation itself


@st.composite
def packet_tables(draw):
    count = draw(st.integers(1, 40))
    pts = draw(st.lists(st.integers(-50, 200), min_size=count, max_size=count))
    keyframe = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    shown = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return np.array(pts), np.array([True, *keyframe[1:]]), np.array(shown)


@given(packet_tables())
def test_presentation_order_is_the_order_of_times(table):
    pts, keyframe, shown = table
    count = len(pts)
    index = index_packets(
        codec=None,
        offset=np.arange(count) * 10,
        size=np.full(count, 10),
        pts=pts,
        keyframe=keyframe,
        shown=shown,
        seconds_per_tick=0.5,
        origin=3,
    )
    naive = sorted((n for n in range(count) if shown[n]), key=lambda n: (pts[n], n))
    assert index.packet_of.tolist() == naive
    assert index.seconds.tolist() == [(pts[n] - 3) * 0.5 for n in naive]
    assert index.frame_of.tolist() == [naive.index(n) if n in naive else -1 for n in range(count)]
    for number in range(count):
        keys = [n for n in range(number + 1) if keyframe[n]]
        leading = pts[number] < pts[keys[-1]]
        before = keys[-2] if len(keys) > 1 else -1
        assert index.start_of[number] == (before if leading else keys[-1])

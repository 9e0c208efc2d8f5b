"""Audio beside frames: what FFmpeg hears in a result is what it hears in the sources, in time."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest

from demoreel.errors import VideoError
from demoreel.media.audio import AudioSpan, spans_of_frames, tracks_of
from demoreel.media.mp4 import read_description
from demoreel.media.mp4_write import PacketRun, write_packets
from demoreel.media.video import open_video

RATE = 48000
FPS = 30


def with_clicks(path, clicks, *, seconds=2.0, rate=RATE, codec="aac", gop=6, b_frames=0):
    """Write a video with a click of audio at each of these seconds."""
    sound = np.zeros(int(seconds * rate), np.float32)
    for click in clicks:
        at = round(click * rate)
        sound[at : at + 96] = np.hanning(96)[: len(sound) - at] * 0.9
    with av.open(str(path), "w") as out:
        video = out.add_stream("libx264", rate=FPS, options={"preset": "ultrafast", "crf": "35"})
        video.width = video.height = 32
        video.pix_fmt = "yuv420p"
        video.codec_context.gop_size, video.codec_context.max_b_frames = gop, b_frames
        audio = out.add_stream(codec, rate=rate, layout="mono")
        kind = audio.codec_context.format.name
        for number in range(round(seconds * FPS)):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), number, np.uint8))
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            out.mux(video.encode(frame))
        resampler = av.AudioResampler(kind, "mono", rate, audio.codec_context.frame_size or None)
        for at in range(0, len(sound), 1024):
            frame = av.AudioFrame.from_ndarray(sound[None, at : at + 1024].copy(), "fltp", "mono")
            frame.sample_rate, frame.pts = rate, at
            for part in resampler.resample(frame):
                out.mux(audio.encode(part))
        out.mux(video.encode(None))
        out.mux(audio.encode(None))
    return path


def heard(path):
    """Return the seconds at which FFmpeg hears clicks, and how many frames it sees."""
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        floats = av.AudioResampler("fltp")
        frames = [part for f in container.decode(stream) for part in floats.resample(f)]
        parts = [(float(f.pts * f.time_base), f.to_ndarray()[0]) for f in frames]
        rate = stream.rate
    loud = np.concatenate([t + np.flatnonzero(s > 0.4) / rate for t, s in parts])
    with av.open(str(path)) as container:
        frames = sum(1 for _ in container.decode(video=0))
    starts = loud[np.concatenate([[True], np.diff(loud) > 0.02])] if len(loud) else loud
    return starts.tolist(), frames


def run(video, first, stop):
    return PacketRun(video, np.arange(first, stop, dtype=np.int32))


def written(path, runs, *, silent=()):
    spans, at = [], 0
    for number, one in enumerate(runs):
        if number not in silent:
            spans += spans_of_frames(one.video, one.frames(), fps=FPS, first=at)
        at += len(one.packets)
    video = runs[0].video
    described = read_description(video.file, name=video.name)
    write_packets(path, runs, description=described, fps=FPS, audio=spans)
    return path


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    path = tmp_path_factory.mktemp("heard") / "film.mp4"
    return with_clicks(path, [0.0, 0.31, 0.95, 1.25, 1.9])


def test_a_copy_sounds_the_same(film, tmp_path):
    video = open_video(film)
    copy = written(tmp_path / "copy.mp4", [run(video, 0, 60)])
    assert heard(copy) == heard(film)
    one, other = tracks_of(video), tracks_of(open_video(copy))
    assert one.audio.kind == other.audio.kind
    assert np.array_equal(one.audio.begin, other.audio.begin)
    assert np.array_equal(one.audio.size, other.audio.size)


@pytest.mark.parametrize("codec", ["libopus", "flac", "libmp3lame", "ac3", "alac"])
def test_other_codecs(tmp_path, codec):
    film = with_clicks(tmp_path / "film.mp4", [0.31, 0.95, 1.25], codec=codec)
    part = written(tmp_path / "part.mp4", [run(open_video(film), 24, 48)] * 2)
    clicks, frames = heard(part)
    assert frames == 48
    assert np.allclose(clicks, np.array([0.15, 0.45, 0.95, 1.25]), atol=0.006)


def test_frames_that_are_decoded_in_another_order(tmp_path):
    film = with_clicks(tmp_path / "film.mp4", [0.31, 0.95, 1.25], b_frames=2, gop=12)
    video = open_video(film)
    part = written(tmp_path / "part.mp4", [run(video, 24, 48)] * 2)
    assert np.allclose(heard(part)[0], [0.15, 0.45, 0.95, 1.25], atol=0.003)


def test_audio_is_cut_with_the_frames(film, tmp_path):
    video = open_video(film)
    part = written(tmp_path / "part.mp4", [run(video, 24, 48)])  # seconds 0.8 to 1.6
    clicks, frames = heard(part)
    assert frames == 24
    assert np.allclose(clicks, [0.15, 0.45], atol=0.002)


def test_audio_stays_with_its_frames_over_many_seams(film, tmp_path):
    """Clips of 12 frames are not a whole number of packets; nothing adds up."""
    video = open_video(film)
    clips = [run(video, 24, 36)] * 20  # seconds 0.8 to 1.2, with a click at 0.95
    joined = written(tmp_path / "joined.mp4", clips)
    clicks, frames = heard(joined)
    assert frames == 240
    assert np.allclose(clicks, [0.4 * number + 0.15 for number in range(20)], atol=0.002)
    again = written(tmp_path / "again.mp4", [run(open_video(joined), 120, 240)])
    assert np.allclose(heard(again)[0], np.array(clicks[10:]) - 4.0, atol=0.002)


@pytest.mark.parametrize("silent", [(0,), (1,), (2,), (0, 2)])
def test_clips_without_audio_are_gaps(film, tmp_path, silent):
    video = open_video(film)
    clips = [run(video, 24, 36)] * 3
    clicks, frames = heard(written(tmp_path / "gaps.mp4", clips, silent=silent))
    assert frames == 36
    wanted = [0.4 * number + 0.15 for number in range(3) if number not in silent]
    assert np.allclose(clicks, wanted, atol=0.002)


def test_audio_of_other_kinds_is_not_joined(film, tmp_path):
    other = with_clicks(tmp_path / "other.mp4", [0.5], rate=44100)
    runs = [run(open_video(film), 0, 60), run(open_video(other), 0, 60)]
    with pytest.raises(VideoError, match="different kinds"):
        written(tmp_path / "both.mp4", runs)
    assert not (tmp_path / "both.mp4").exists()


@pytest.mark.parametrize("codec", ["mp2", "pcm_s16le"])
def test_audio_that_cannot_be_copied_is_named(tmp_path, codec):
    try:
        path = with_clicks(tmp_path / "film.mov", [0.5], seconds=0.5, codec=codec)
    except (av.error.FFmpegError, ValueError):
        pytest.skip(f"this FFmpeg has no {codec}")
    tracks = tracks_of(open_video(path))
    assert tracks.has_audio


def test_other_tracks_are_named(film, tmp_path):
    data = film.read_bytes()
    (tmp_path / "film.mp4").write_bytes(data.replace(b"soun", b"tmcd"))
    tracks = tracks_of(open_video(tmp_path / "film.mp4"))
    assert not tracks.has_audio
    assert tracks.others == ("a timecode track",)


def test_frames_at_another_pace_are_refused(film):
    video = open_video(film)
    (span,) = spans_of_frames(video, np.arange(60), fps=15, first=0)
    with pytest.raises(VideoError, match="audio would not stay"):
        span.refuse_drift()


@pytest.mark.parametrize("start", [-(1 << 31), (1 << 31) - 1])
def test_an_edit_at_no_time_is_silence_or_a_problem(film, tmp_path, start):
    data = film.read_bytes()
    at = data.rindex(b"elst") + 16  # of the audio track: version, count, length, then the start
    changed = data[:at] + start.to_bytes(4, "big", signed=True) + data[at + 4 :]
    (tmp_path / "film.mp4").write_bytes(changed)
    video = open_video(tmp_path / "film.mp4")
    if start < 0:
        assert "before the video" in tracks_of(video).problem
        with pytest.raises(VideoError, match="before the video"):
            written(tmp_path / "copy.mp4", [run(video, 0, 60)])
        return
    copy = written(tmp_path / "copy.mp4", [run(video, 0, 60)])
    assert open_video(copy).index.frames == 60


def test_hostile_tables_of_audio_are_a_problem_not_a_crash(film, tmp_path):
    data = film.read_bytes()
    at = data.rindex(b"stsz")  # the audio track's
    (tmp_path / "film.mp4").write_bytes(data[: at + 12] + b"\xff" * 4 + data[at + 16 :])
    tracks = tracks_of(open_video(tmp_path / "film.mp4"))
    assert tracks.audio is None
    assert tracks.problem
    span = AudioSpan(open_video(tmp_path / "film.mp4"), 0.0, 1.0, 0.0)
    described = read_description(span.video.file, name="film")
    with pytest.raises(VideoError, match="cannot be copied"):
        write_packets(
            tmp_path / "out.mp4", [run(span.video, 0, 60)], description=described, fps=FPS,
            audio=[span],
        )  # fmt: skip

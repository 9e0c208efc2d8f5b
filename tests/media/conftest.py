"""Real videos of every kind, made on the spot, and what plain FFmpeg reads from them."""

from __future__ import annotations

import os
import struct
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
from av.video.frame import PictureType

from demoreel.media.decode import Decoder, GopSpan, group_frames
from demoreel.media.video import open_video

os.environ.setdefault("SVT_LOG", "1")

ENCODERS = {
    "av1": "libsvtav1",
    "h264": "libx264",
    "hevc": "libx265",
    "vp9": "libvpx-vp9",
}


def image(number, height, width):
    """Gradients that move, under noise: no two frames are alike, and no codec is bored."""
    rng = np.random.default_rng([number, height, width])
    y, x = np.mgrid[:height, :width]
    base = np.stack([x * 3 + number * 7, y * 5 + number * 11, (x + y) * 2 + number * 5], axis=-1)
    return np.clip(base % 256 + rng.integers(-25, 26, (height, width, 3)), 0, 255).astype(np.uint8)


def encoder_options(codec, b_frames, open_gop):
    if codec == "av1":
        return {"preset": "12", "crf": "40", "svtav1-params": "lp=1"}
    if codec == "h264":
        own = f"open-gop={int(open_gop)}:bframes={b_frames}:b-adapt=0:scenecut=0"
        return {"preset": "ultrafast", "crf": "30", "x264-params": own}
    if codec == "hevc":
        own = f"log-level=none:open-gop={int(open_gop)}:bframes={b_frames}:b-adapt=0:scenecut=0"
        own += ":min-keyint=1:pools=1:frame-threads=1"
        return {"preset": "ultrafast", "crf": "30", "x265-params": own}
    if codec == "vp9":
        quick = {"deadline": "realtime", "cpu-used": "8", "lag-in-frames": "0"}
        return {"crf": "40", "b": "0", "auto-alt-ref": "0", **quick}
    if codec == "mpeg4":
        flags = "+qscale" if open_gop else "+qscale+cgop"
        return {"flags": flags, "global_quality": str(118 * 4), "sc_threshold": "1000000000"}
    return {}


def encode(
    path,
    *,
    codec="h264",
    pix_fmt="yuv420p",
    size=(48, 64),
    frames=30,
    gop=12,
    b_frames=0,
    open_gop=False,
    keyframes=(),
    times=None,
    rate=30,
    audio=False,
    options=(),
    mux=(),
    colour=(),
):
    """Write a video with PyAV, not with demoreel's encoder: that one is too well-behaved.

    Args:
        path: Its suffix says the container.
        keyframes: Frames that must be keyframes, whatever ``gop`` says.
        times: Tick of each frame, in units of ``1 / rate``; None is one after the other.
        options: More options of the encoder.
        mux: Options of the container, e.g. ``{"movflags": "faststart"}``.
        colour: Attributes of the codec context: ``color_range``, ``colorspace``, ...
    """
    height, width = size
    with av.open(str(path), "w", options=dict(mux)) as container:
        chosen = encoder_options(codec, b_frames, open_gop) | dict(options)
        stream = container.add_stream(ENCODERS.get(codec, codec), rate=rate, options=chosen)
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        context = stream.codec_context
        context.time_base = Fraction(1, rate)
        context.gop_size, context.max_b_frames, context.thread_count = gop, b_frames, 1
        for name, value in dict(colour).items():
            setattr(context, name, value)
        sound = container.add_stream("aac", rate=48000, layout="mono") if audio else None
        heard = 0
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(image(number, height, width), format="rgb24")
            frame = frame.reformat(format=pix_fmt)
            frame.pts, frame.time_base = times[number] if times else number, Fraction(1, rate)
            frame.pict_type = PictureType.I if number in keyframes else PictureType.NONE
            container.mux(stream.encode(frame))
            while sound and heard < (number + 1) * 48000 // rate:
                container.mux(sound.encode(silence(heard)))
                heard += 1024
        container.mux(stream.encode(None))
        if sound:
            container.mux(sound.encode(None))


def silence(at):
    frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
    frame.sample_rate, frame.pts = 48000, at
    return frame


def plain(path):
    """What FFmpeg shows when it reads a video from beginning to end: images and seconds."""
    return _plain(str(path), os.stat(path).st_ino, os.stat(path).st_mtime_ns)


@lru_cache(maxsize=32)
def _plain(path, inode, changed):
    with av.open(path) as container:
        base = container.streams.video[0].time_base
        frames = list(container.decode(video=0))
    images = [frame.to_ndarray(format="rgb24") for frame in frames]
    return images, [float(frame.pts * base) for frame in frames]


def ours(path, frames=None, decoder=None):
    """What demoreel reads of these frames: {number: image}."""
    video = open_video(path)
    decoder = decoder or Decoder()
    wanted = np.arange(video.index.frames) if frames is None else np.unique(frames)
    found = {}
    for group in group_frames(video.index, wanted):
        span = GopSpan(video.index, video.file, video.name, group)
        for number, frame in decoder.frames(span):
            painted = np.empty((3, frame.height, frame.width), np.uint8)
            decoder.painter.paint(frame, painted)
            found[number] = painted.transpose(1, 2, 0)
    assert sorted(found) == wanted.tolist()
    return found


def same_as_plain(path, frames=None, decoder=None):
    """Whether every image has the very bytes of FFmpeg's."""
    expected, _ = plain(path)
    found = ours(path, frames, decoder)
    wrong = [number for number in found if not np.array_equal(found[number], expected[number])]
    assert wrong == []
    return len(found)


class Mp4:
    """An mp4 taken apart into boxes, to be changed by hand and put together again.

    Boxes are named by their path, e.g. ``moov/trak/edts/elst``; of several, the first is meant.
    """

    PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts")

    def __init__(self, path):
        self.boxes = self._parse(Path(path).read_bytes())

    def _parse(self, data):
        boxes, at = [], 0
        while at < len(data):
            size, kind = struct.unpack_from(">I4s", data, at)
            skip = 8
            if size == 1:
                (size,), skip = struct.unpack_from(">Q", data, at + 8), 16
            content = data[at + skip : at + size]
            boxes.append([kind, self._parse(content) if kind in self.PARENTS else content])
            at += size
        return boxes

    def _bytes(self, boxes):
        joined = b""
        for kind, content in boxes:
            body = self._bytes(content) if isinstance(content, list) else content
            joined += struct.pack(">I4s", 8 + len(body), kind) + body
        return joined

    def _find(self, boxes, path):
        name, _, rest = path.partition("/")
        for box in boxes:
            if box[0] == name.encode():
                return self._find(box[1], rest) if rest else box
        raise KeyError(path)

    def __getitem__(self, path):
        content = self._find(self.boxes, path)[1]
        return self._bytes(content) if isinstance(content, list) else content

    def __setitem__(self, path, content):
        try:
            self._find(self.boxes, path)[1] = content
        except KeyError:
            parent, _, name = path.rpartition("/")
            try:
                self._find(self.boxes, parent)[1].append([name.encode(), content])
            except KeyError:
                self[parent] = []
                self[path] = content

    def __delitem__(self, path):
        parent, _, _ = path.rpartition("/")
        siblings = self._find(self.boxes, parent)[1]
        siblings.remove(self._find(self.boxes, path))

    def __contains__(self, path):
        try:
            return bool(self._find(self.boxes, path))
        except KeyError:
            return False

    def table(self, path, form, *, skip=8):
        """The numbers of a table box after its header and count."""
        return [list(row) for row in struct.iter_unpack(form, self[path][skip:])]

    def save(self, path):
        """Write it; ``moov`` must come last, or positions of packets are no longer right."""
        Path(path).write_bytes(self._bytes(self.boxes))
        return path


@pytest.fixture(scope="session")
def films(tmp_path_factory):
    """Makes videos (each kind once a session) and reads them, by FFmpeg and by demoreel."""
    folder = tmp_path_factory.mktemp("films")
    made = {}

    def film(suffix=".mp4", **spec):
        key = repr((suffix, sorted(spec.items())))
        if key not in made:
            path = folder / f"{len(made)}{suffix}"
            encode(path, **spec)
            made[key] = path
        return made[key]

    return SimpleNamespace(
        film=film,
        encode=encode,
        image=image,
        plain=plain,
        ours=ours,
        same_as_plain=same_as_plain,
        Mp4=Mp4,
    )

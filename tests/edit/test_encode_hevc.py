"""HEVC frames whose parameter sets get another number decode to the very same pictures."""

from __future__ import annotations

import av
import numpy as np
import pytest

from demoreel.edit.encode.headers import Avc, hevc_header
from demoreel.edit.encode.hevc import PLAIN, Hevc, Renumbering
from demoreel.errors import VideoError
from demoreel.media.encode import VideoEncoder, VideoSettings
from demoreel.media.mp4 import read_description
from demoreel.media.video import open_video


def encoded(path, *, pix_fmt="yuv420p", params=PLAIN, gop=1, codec="hevc", **options):
    """Encode noise, and return its packets and its header."""
    if codec == "hevc":
        options["x265-params"] = params
    settings = VideoSettings(codec=codec, gop=gop, crf=10, pix_fmt=pix_fmt, options=options)
    random = np.random.default_rng(0)
    with VideoEncoder(path, fps=30, width=96, height=64, settings=settings) as video:
        for _ in range(6):
            if pix_fmt == "gray12le":
                video.add(random.integers(0, 4095, (64, 96)).astype(np.uint16))
            else:
                video.add(random.integers(0, 255, (64, 96, 3)).astype(np.uint8))
    made = open_video(path)
    places = zip(made.index.offset.tolist(), made.index.size.tolist(), strict=True)
    packets = [made.file.read(offset, size) for offset, size in places]
    return packets, read_description(made.file, name=str(path))


def decoded(header, packets):
    context = av.CodecContext.create("hevc", "r")
    context.extradata = header.to_bytes()
    frames = []
    for data in packets:
        packet = av.Packet(len(data))
        packet.update(data)
        frames += context.decode(packet)
    return [frame.to_ndarray() for frame in (*frames, *context.decode(None))]


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv444p", "yuv420p10le", "gray12le"])
def test_both_numberings_in_one_stream(tmp_path, pix_fmt):
    packets, description = encoded(tmp_path / "a.mp4", pix_fmt=pix_fmt)
    header = hevc_header(description)
    assert Hevc.read(header.to_bytes()) == header
    number = header.free_number()
    assert number == 1
    renumbering = Renumbering(header, number)
    both = header.with_sets(renumbering.sets)
    assert both.free_number() == 2
    pictures = decoded(header, packets)
    turns = [data for own in packets for data in (own, renumbering.packet(own))]
    found = decoded(both, turns)
    assert len(found) == 12
    for place, picture in enumerate(pictures):
        assert np.array_equal(found[2 * place], picture)
        assert np.array_equal(found[2 * place + 1], picture)


@pytest.mark.parametrize(
    ("params", "gop"), [("sao=0:wpp=0", 3), ("keyint=1:sao=1:wpp=0", 1), ("keyint=1:wpp=1", 1)]
)
def test_what_is_not_plain_is_refused(tmp_path, params, gop):
    packets, description = encoded(tmp_path / "a.mp4", params=params, gop=gop)

    def renumbered():
        renumbering = Renumbering(hevc_header(description), 1)
        return [renumbering.packet(data) for data in packets]

    with pytest.raises(VideoError, match="HEVC"):
        renumbered()


def test_h264_headers_are_joined(tmp_path):
    _, one = encoded(tmp_path / "a.mp4", codec="h264")
    _, other = encoded(tmp_path / "b.mp4", codec="h264", **{"x264-params": "sps-id=1"})
    a, b = (Avc.read(dict(d.boxes())[b"avcC"]) for d in (one, other))
    assert (a.free_number(), b.free_number()) == (1, 2)
    joined = a.joined(b)
    assert Avc.read(joined.to_bytes()) == joined
    assert joined.free_number() == 2
    assert joined.joined(b) == joined
    with pytest.raises(ValueError, match="header"):
        Avc.read(b"\1\2")

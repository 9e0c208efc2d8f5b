"""Videos that are no files: indexed, read ahead and decoded from any bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from demoreel.errors import VideoError
from demoreel.media import mp4
from demoreel.media.decode import Decoder, GopSpan, begin_loading, byte_ranges, group_frames
from demoreel.media.video import index_video, open_video
from demoreel.read.speed import load
from demoreel.storage.store import ReadsNow

ARRAYS = ("offset", "size", "frame_of", "start_of", "packet_of", "seconds")


class Memory(ReadsNow):
    """Bytes that are counted, as a table's blob or an object store would."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)
        self.identity = hash(data)
        self.reads: list[tuple[int, int]] = []
        self.calls = 0

    def read(self, offset: int, length: int) -> bytes:
        self.calls += 1
        self.reads.append((offset, length))
        return self._data[offset : offset + length]

    def read_ranges(self, ranges):
        before = self.calls
        futures = super().read_ranges(ranges)
        self.calls = before + 1
        return futures


CONTAINERS = [
    (".mp4", {"codec": "h264", "b_frames": 2}),
    (".mp4", {"codec": "h264", "mux": {"movflags": "frag_keyframe+empty_moov"}}),
    (".mkv", {"codec": "hevc", "b_frames": 2}),
    (".avi", {"codec": "mpeg4", "b_frames": 2}),
]


@pytest.mark.parametrize(("suffix", "spec"), CONTAINERS)
def test_any_bytes_are_indexed_as_the_file_is(films, suffix, spec):
    path = films.film(suffix, gop=7, **spec)
    expected = open_video(path).index
    found = index_video(Memory(Path(path).read_bytes()), "a row of a table").index
    assert found.codec == expected.codec
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def test_bytes_that_are_no_video(films):
    with pytest.raises(VideoError, match=r"does not open(?s:.*)a row"):
        index_video(Memory(b"no video at all" * 100), "a row")


def test_a_noted_moov_is_the_only_thing_read(films):
    data = Path(films.film(codec="h264", frames=20)).read_bytes()
    at = data.rindex(b"moov") - 4
    size = int.from_bytes(data[at : at + 4], "big")
    file = Memory(data)
    index = mp4.read_index(file, name="v", moov_at=(at, size))
    assert index is not None
    assert file.reads == [(at, size)]
    for wrong in ((at + 1, size), (at, size - 1), (0, 0), (len(data), 100), (at, 1 << 40)):
        found = mp4.read_index(Memory(data), name="v", moov_at=wrong)  # it is looked for
        assert found is not None
        np.testing.assert_array_equal(found.offset, index.offset)


@pytest.mark.parametrize(
    "spec",
    [
        {"codec": "av1", "gop": 2},
        {"codec": "h264", "gop": 6, "b_frames": 2, "open_gop": True},
        {"codec": "hevc", "gop": 9, "b_frames": 3},
    ],
    ids=lambda spec: spec["codec"],
)
def test_a_batch_reads_a_video_in_one_call(films, spec):
    path = films.film(frames=40, **spec)
    file = Memory(Path(path).read_bytes())
    video = index_video(file, f"{path} in memory")
    wanted = np.array([1, 2, 3, 11, 17, 18, 30, 39])
    groups = group_frames(video.index, wanted)
    spans = [GopSpan(video.index, file, video.name, group) for group in groups]
    file.calls, file.reads = 0, []
    loaded = begin_loading(file, spans)
    assert file.calls == 1
    for (begin, length), (wanted_from, least) in zip(file.reads, byte_ranges(spans), strict=True):
        assert begin == wanted_from
        assert length >= least  # up to the end of the group of frames
    expected, _ = films.plain(path)
    found = {}
    for span in loaded:
        for number, frame in Decoder().frames(span):
            found[number] = frame.to_ndarray(format="rgb24")
    assert sorted(found) == wanted.tolist()
    for number, image in found.items():
        np.testing.assert_array_equal(image, expected[number])
    if spec["codec"] != "h264":  # that one may need a lead-in from before the span
        assert file.calls == 1


def test_local_files_are_read_as_they_are_decoded(films):
    video = open_video(films.film(codec="h264", frames=10, gop=5))
    spans = [GopSpan(video.index, video.file, video.name, (3,))]
    assert not video.file.waits
    held = load(spans[0])
    assert held.file.size < video.file.size
    begin, length = byte_ranges(spans)[0]
    assert held.file.read(begin, length) == video.file.read(begin, length)
    assert held.file.read(0, 8) == video.file.read(0, 8)  # what is not held is read


def test_ranges_of_packets_in_any_order(films):
    """Bytes of a span are between the first and the last of its packets, wherever they are."""
    video = open_video(films.film(codec="h264", frames=12, gop=4))
    order = np.random.default_rng(0).permutation(len(video.index.offset))
    mixed = replace(video.index, offset=video.index.offset[order], size=video.index.size[order])
    groups = group_frames(mixed, np.arange(12))
    spans = [GopSpan(mixed, video.file, "v", group) for group in groups]
    for span, (begin, length) in zip(spans, byte_ranges(spans), strict=True):
        packets = span.packets(span.start)
        assert begin == mixed.offset[packets].min()
        assert begin + length == (mixed.offset + mixed.size)[packets].max()


def test_a_video_that_ends_too_early(films):
    data = Path(films.film(codec="h264", frames=20, gop=5)).read_bytes()
    index = index_video(Memory(data), "whole").index
    short = Memory(data[: int(index.offset[-1])])
    with pytest.raises(VideoError, match="cut off"):
        begin_loading(short, [GopSpan(index, short, "short", (19,))])

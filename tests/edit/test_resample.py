"""Another frame rate: the nearest rows, the same seconds, and images that need not be encoded."""

from __future__ import annotations

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import demoreel
from demoreel.edit.clips import Clip, frames_of
from demoreel.edit.cut import cut
from demoreel.edit.resample import gathered
from demoreel.errors import ArgumentError
from demoreel.testing import make_dataset

from .stamped import assert_shows, wanted

CAMERA = "observation.images.cam0"


@given(
    start=st.integers(0, 50),
    length=st.integers(1, 200),
    rate=st.sampled_from([5, 10, 15, 29.97, 30, 50, 60]),
    fps=st.sampled_from([1, 5, 7.5, 10, 15, 30, 60]),
)
def test_the_nearest_frame_at_every_tick(start, length, rate, fps):
    found = np.array(frames_of(Clip(0, 0, start, start + length), rate=rate, fps=fps))
    time = (found - start) / rate
    ticks = np.arange(len(found)) / fps
    assert found[0] == start
    assert np.abs(time - ticks).max() <= 0.5 / rate + 1e-9
    assert found[-1] < start + length
    assert ticks[-1] <= (length - 1) / rate + 1e-9 < ticks[-1] + 1 / fps + 2e-9


def test_at_the_same_rate_nothing_changes():
    assert frames_of(Clip(0, 0, 3, 9), rate=30, fps=30.0) == range(3, 9)
    assert frames_of(Clip(0, 0, 3, 9), rate=30, fps=10) == range(3, 9, 3)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.data())
def test_nothing_that_was_said_is_lost(counts, data):
    said = [[(row, n) for n in range(count)] for row, count in enumerate(counts)]
    chosen = sorted(data.draw(st.lists(st.integers(0, len(said) - 1), min_size=1, max_size=40)))
    kept = gathered(said, chosen)
    assert [one for row in kept for one in row] == [one for row in said for one in row]
    for row, found in zip(chosen, kept, strict=True):
        for where, _ in found:
            assert abs(where - row) == min(abs(where - other) for other in chosen)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pace")
    return make_dataset(
        folder / "source", episodes=[17, 12, 1], gop=5, cameras=2, b_frames=1, language=True
    )


def test_half_the_rate_copies_packets(source, tmp_path):
    cut(source).trim(0, 3).render(tmp_path / "out", fps=15, verify="full")
    result = assert_shows(
        tmp_path / "out", wanted((0, range(3, 17, 2)), (1, range(0, 12, 2)), (2, [0]))
    )
    assert result.fps == result.info.to_json()["fps"] == 15
    assert result.info.features["action"].extra.get("fps", 15) == 15
    for camera in result.cameras:
        with av.open(result.reader.clip(0, camera).video.name) as container:
            assert container.streams.video[0].average_rate == 30
    # Read one by one, as a whole episode, and encoded for tables.
    third = result.episode(1)
    assert len(list(third.frames(CAMERA))) == 6
    demoreel.convert(tmp_path / "out", tmp_path / "lance", to="lance-frames", image_codec="png")
    assert_shows(tmp_path / "lance", wanted((0, range(3, 17, 2)), (1, range(0, 12, 2)), (2, [0])))


def test_cut_again_and_again(source, tmp_path):
    cut(source).render(tmp_path / "half", fps=15)
    cut(tmp_path / "half").trim(0, 1, 8).render(tmp_path / "same", verify="full")
    assert_shows(tmp_path / "same", wanted((0, range(2, 16, 2)), (1, range(0, 12, 2)), (2, [0])))
    cut(tmp_path / "same").delete(2).render(tmp_path / "fifth", fps=5, exact=True, verify="full")
    assert_shows(tmp_path / "fifth", wanted((0, [2, 8, 14]), (1, [0, 6])))


@pytest.mark.parametrize("to", ["lance-video", "lance-native"])
def test_lance_reads_them_too(source, tmp_path, to):
    cut(source).render(tmp_path / "half", fps=15)
    demoreel.convert(tmp_path / "half", tmp_path / "lance", to=to)
    shown = wanted((0, range(0, 17, 2)), (1, range(0, 12, 2)), (2, [0]))
    assert_shows(tmp_path / "lance", shown)
    cut(tmp_path / "lance").render(tmp_path / "back", verify="full")
    assert_shows(tmp_path / "back", shown)


def test_language_keeps_its_seconds(source, tmp_path):
    cut(source).trim(0, 4).render(tmp_path / "out", fps=10)
    result = demoreel.open(tmp_path / "out", decode_threads=1)
    events = [row["content"] for k in range(5) for row in result[k]["language_events"]]
    assert events == ["episode 0, frame 5", "episode 0, frame 10", "episode 0, frame 15"]
    at = [k for k in range(5) if result[k]["language_events"]]
    assert at == [0, 2, 4]  # frames 4, 10, 16; the nearest to 5, 10 and 15


def test_rates_that_do_not_divide_need_a_codec(source, tmp_path):
    for form in ({"fps": 20}, {"fps": 60}, {"fps": 15, "layout": "v2.1"}):
        with pytest.raises(ArgumentError, match="vcodec") as refused:
            cut(source).render(tmp_path / "out", **form)
        assert refused.value.where["camera"].startswith("observation.images.cam")
    assert list(tmp_path.iterdir()) == []
    cut(source).keep(1).render(tmp_path / "a", fps=20, vcodec="h264", verify="full")
    assert_shows(tmp_path / "a", wanted((1, [0, 2, 3, 5, 6, 8, 9, 11])))
    cut(source).keep(1).render(tmp_path / "b", fps=60, vcodec="h264", verify="full")
    assert_shows(tmp_path / "b", wanted((1, [(tick + 1) // 2 for tick in range(23)])))
    cut(source).keep(1).render(tmp_path / "c", fps=15, vcodec="h264", layout="v2.1", verify="full")
    assert_shows(tmp_path / "c", wanted((1, range(0, 12, 2))))


def test_other_rates_are_merged_where_one_is_named(source, tmp_path):
    make_dataset(tmp_path / "fast", episodes=[9], fps=60, cameras=2, language=True, gop=4)
    both = cut(source).keep(1).merge(tmp_path / "fast")
    with pytest.raises(ArgumentError, match="fps="):
        both.plan()
    both.render(tmp_path / "out", fps=15, verify="full")
    assert_shows(tmp_path / "out", wanted((1, range(0, 12, 2)), (0, [0, 4, 8])))

"""Random sources, random clips: each (source, episode, frame) is once where it was planned."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demoreel
from demoreel.edit.clips import Clip, CutList, frames_of
from demoreel.edit.cut import Cut, cut
from demoreel.read.dataset import Dataset
from demoreel.testing import make_dataset, read_stamp

from .conftest import tasks_of

pytestmark = pytest.mark.soak

FEW = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
LENGTHS = {"v3.0": [7, 4, 10], "small": [5, 3, 1, 6], "v2.1": [6, 9], "lance": [8, 2]}
CODECS = {"v3.0": "h264", "small": "h264", "v2.1": "av1", "lance": "h264"}


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """For 1 to 4 cameras, a dataset of each layout; its tasks tell which one it is."""
    folder = tmp_path_factory.mktemp("pool")
    return {
        (name, cameras): _made(folder, name, cameras) for name in LENGTHS for cameras in range(1, 5)
    }


def _made(folder: Path, name: str, cameras: int) -> Path:
    path = folder / f"{name}-{cameras}"
    small = {"video_files_size_in_mb": 0.008, "data_files_size_in_mb": 0.004}
    make_dataset(
        folder / f"{path.name}-source" if name == "lance" else path,
        episodes=LENGTHS[name],
        cameras=cameras,
        codec=CODECS[name],
        gop=4,
        b_frames=1 if name == "small" else 0,
        layout="v2.1" if name == "v2.1" else "v3.0",
        tasks=(path.name,),
        **(small if name == "small" else {}),
    )
    if name == "lance":
        demoreel.convert(folder / f"{path.name}-source", path, to="lance-video")
    return path


@dataclass(frozen=True)
class Drawn:
    """Names of 1 to 5 sources, their cameras, clips of them, and how the result is to be."""

    names: Sequence[str]
    cameras: int
    clips: Sequence[tuple[int, int, int, int]]
    form: dict[str, object]

    def cut(self, pool) -> Cut:
        every = [cut(pool[name, self.cameras]).cutlist.sources[0] for name in self.names]
        return Cut(CutList(tuple(every), tuple(Clip(*clip) for clip in self.clips)))


@st.composite
def drawn(draw):
    names = draw(st.lists(st.sampled_from(sorted(LENGTHS)), min_size=1, max_size=5))
    clips = []
    for source, name in enumerate(names):
        for episode in draw(st.permutations(range(len(LENGTHS[name])))):
            length = LENGTHS[name][episode]
            start = draw(st.one_of(st.just(0), st.integers(0, length - 1)))
            stop = draw(st.one_of(st.just(length), st.integers(start + 1, length)))
            clips.append((source, episode, start, stop))
    form = {
        "exact": draw(st.booleans()),
        "fps": draw(st.sampled_from([None, None, 15, 10])),
        "video_files_size_in_mb": draw(st.sampled_from([0.004, 0.02, 200])),
        "data_files_size_in_mb": draw(st.sampled_from([0.002, 100])),
        "chunks_size": draw(st.sampled_from([2, 1000])),
    }
    return Drawn(names, draw(st.integers(1, 4)), clips[: draw(st.integers(1, len(clips)))], form)


def found_in(result: Dataset) -> list[list[tuple[str, int, int]]]:
    """For each episode, the source, episode and frame that each of its frames says it is."""
    batch = result.batch(range(len(result)))
    numbers = batch["observation.state"][:, :2].astype(int)
    for camera in result.cameras:
        stamps = [read_stamp(image) for image in batch[camera]]
        assert [(stamp.episode, stamp.frame) for stamp in stamps] == [*map(tuple, numbers)]
    places = [(task, *row) for task, row in zip(tasks_of(result), numbers.tolist(), strict=True)]
    start = result.episodes.start.tolist()
    return [places[a:b] for a, b in itertools.pairwise(start)]


def planned(wanted: Cut, fps: float | None) -> list[list[tuple[str, int, int]]]:
    return [
        [
            (Path(wanted.cutlist.sources[clip.source].path).name, clip.episode, frame)
            for frame in frames_of(clip, rate=30, fps=fps or 30)
        ]
        for clip in wanted.clips
    ]


@settings(FEW, max_examples=12)
@given(choice=drawn())
def test_every_frame_is_found_once_where_it_was_planned(pool, choice):
    wanted = choice.cut(pool)
    with tempfile.TemporaryDirectory() as folder:
        wanted.render(f"{folder}/out", verify="full", **choice.form)
        result = demoreel.open(f"{folder}/out", decode_threads=1)
        assert found_in(result) == planned(wanted, choice.form["fps"])
        rows = result.reader.rows(np.arange(len(result)), ["index", "timestamp"])
        lengths = result.episodes.length
        assert np.array_equal(rows["index"], np.arange(len(result)))
        time = np.concatenate([np.arange(length) / result.fps for length in lengths])
        assert np.array_equal(rows["timestamp"], time.astype(np.float32))
        if choice.form["exact"] and choice.form["fps"] is None:
            assert wanted.plan(**choice.form).summary()["carried_frames"] == 0


@settings(FEW, max_examples=4)
@given(name=st.sampled_from(sorted(LENGTHS)), data=st.data())
def test_a_split_followed_by_a_merge_gives_the_items_back(pool, name, data):
    whole = cut(pool[name, 1])
    border = data.draw(st.integers(1, len(whole) - 1))
    parts = whole.split({"a": range(border), "b": range(border, len(whole))})
    with tempfile.TemporaryDirectory() as folder:
        for part, made in parts.items():
            made.render(f"{folder}/{part}")
        cut(f"{folder}/a").merge(f"{folder}/b").render(f"{folder}/both")
        assert demoreel.diff(pool[name, 1], f"{folder}/both", pixels="all").is_equal


@settings(FEW, max_examples=3)
@given(cameras=st.integers(1, 4))
def test_there_and_back_again(pool, cameras):
    source = pool["v2.1", cameras]
    with tempfile.TemporaryDirectory() as folder:
        cut(source).render(f"{folder}/v3")
        cut(f"{folder}/v3").render(f"{folder}/v2", layout="v2.1")
        assert demoreel.open(f"{folder}/v2").layout == "v2.1"
        assert demoreel.diff(source, f"{folder}/v2", pixels="all").is_equal

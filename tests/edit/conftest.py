"""Small datasets to cut, of every kind, that can be merged with one another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import demoreel
from demoreel.edit.cut import Cut, cut
from demoreel.errors import OutOfRangeError
from demoreel.read.dataset import Dataset
from demoreel.testing import make_dataset

CAMERA = "observation.images.cam0"
MADE = {"index", "episode_index", "frame_index", "timestamp", "task_index"}

# Everything that a cut must not care about: codecs, GOPs, files, layouts.
KINDS = {
    "small_files": {
        "episodes": [5, 12, 3, 9],
        "gop": 4,
        "data_files_size_in_mb": 0.004,
        "video_files_size_in_mb": 0.01,
    },
    "b_frames": {"episodes": [11, 7], "gop": 8, "b_frames": 2},
    "open_gop": {"episodes": [14, 9], "gop": 5, "b_frames": 2, "open_gop": True},
    "v2.1": {"episodes": [6, 10, 4], "layout": "v2.1", "gop": 3},
    "hevc": {"episodes": [8, 6], "codec": "hevc", "gop": 4, "b_frames": 2, "open_gop": True},
    "av1": {"episodes": [7, 5], "codec": "av1", "gop": 4},
    "h264_too": {"episodes": [1, 2, 6], "gop": 4},
}


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One dataset of each kind; all have the same features, and tasks of their own."""
    folder = tmp_path_factory.mktemp("sources")
    return {
        name: make_dataset(
            folder / name,
            cameras={CAMERA: (64, 64)},
            features={
                "noise": {"dtype": "float32", "shape": [3]},
                "note": {"dtype": "string", "shape": [1]},
            },
            tasks=("do it", f"do {name}"),
            task_changes=True,
            seed=number,
            **options,
        )
        for number, (name, options) in enumerate(KINDS.items())
    }  # fmt: skip


def opened(path: Path | str) -> Dataset:
    return demoreel.open(path, decode_threads=1)


def assert_same_frames(result: Dataset, rows: np.ndarray, source: Dataset, their_rows) -> None:
    """Pictures and values of these frames are the source's, byte for byte."""
    mine, theirs = result.batch(rows), source.batch(np.asarray(their_rows))
    assert mine.keys() == theirs.keys()
    for key in mine.keys() - MADE - {"task"}:
        assert len(mine[key]) == len(theirs[key])
        if isinstance(mine[key], np.ndarray):
            assert mine[key].dtype == theirs[key].dtype
            assert np.array_equal(mine[key], theirs[key]), key
        else:
            assert mine[key] == theirs[key], key


def assert_is(result: Dataset, wanted: Cut) -> None:
    """The dataset is what the cut says: every frame, once, at its place."""
    clips = wanted.clips
    lengths = [clip.length for clip in clips]
    assert result.episodes.length.tolist() == lengths
    assert result.episodes.episode_index.tolist() == list(range(len(clips)))
    assert len(result) == result.info.total_frames == sum(lengths)
    assert result.info.total_episodes == len(clips)
    every = result.reader.rows(
        np.arange(len(result)), ["index", "episode_index", "frame_index", "timestamp"]
    )
    assert np.array_equal(every["index"], np.arange(len(result)))
    assert np.array_equal(every["episode_index"], np.repeat(np.arange(len(clips)), lengths))
    for number, clip in enumerate(clips):
        source = opened(wanted.cutlist.sources[clip.source].path)
        begin = int(result.episodes.start[number])
        rows = np.arange(begin, begin + clip.length)
        frames = np.arange(clip.length)
        assert np.array_equal(every["frame_index"][rows], frames)
        assert np.array_equal(every["timestamp"][rows], (frames / result.fps).astype(np.float32))
        first = int(source.episodes.start[source.episodes.position_of(clip.episode)])
        assert_same_frames(result, rows, source, first + np.arange(clip.start, clip.stop))
    with pytest.raises(OutOfRangeError):
        result[len(result)]


def tasks_of(dataset: Dataset) -> list[str]:
    """The task of every frame."""
    rows = dataset.reader.rows(np.arange(len(dataset)), ["task_index"])
    return dataset.tasks.texts(np.asarray(rows["task_index"]))


@pytest.fixture
def whole(sources):
    """A function that begins a cut of one of the sources."""
    return lambda name: cut(sources[name])

"""Reading off a result's images and numbers which source, episode and frame they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import demoreel
from demoreel.read.dataset import Dataset
from demoreel.testing import read_stamp

Wanted = list[list[tuple[int, int]]]
"""For each episode of a result, the (episode, frame) of the source that each frame is."""


def wanted(*clips: tuple[int, range | list[int]]) -> Wanted:
    """Return what is wanted from (episode, frames) of each clip."""
    return [[(episode, frame) for frame in frames] for episode, frames in clips]


def assert_shows(path: Path | str | Dataset, episodes: Wanted) -> Dataset:
    """Every frame is what it should be: images of every camera, numbers, time."""
    ds = path if isinstance(path, Dataset) else demoreel.open(path, decode_threads=1)
    assert ds.episodes.length.tolist() == [len(frames) for frames in episodes]
    assert ds.info.total_frames == len(ds) == sum(map(len, episodes))
    flat = [place for frames in episodes for place in frames]
    batch = ds.batch(range(len(ds)))
    for camera in ds.cameras:
        if ds.features[camera].is_depth:
            continue
        stamps = [read_stamp(image) for image in batch[camera]]
        assert [(stamp.episode, stamp.frame) for stamp in stamps] == flat, camera
    assert [tuple(row) for row in batch["observation.state"][:, :2].tolist()] == flat
    time = np.concatenate([np.arange(len(frames)) / ds.fps for frames in episodes])
    assert np.array_equal(batch["timestamp"], time.astype(np.float32))
    assert np.array_equal(batch["index"], np.arange(len(ds)))
    return ds

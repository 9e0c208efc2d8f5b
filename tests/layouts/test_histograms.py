"""Histograms beside the metadata: written, read, merged, and passed over where they are broken."""

from __future__ import annotations

import numpy as np
import pytest

from demoreel.errors import ArgumentError, UnknownKeyError
from demoreel.layouts.beside import (
    Histogram,
    HistogramWriter,
    check_histograms,
    histogram_files,
    histograms_name,
    read_histograms,
    write_histograms,
)
from demoreel.layouts.v3.files import FilePlace

EYE = "observation.images.eye"


def histogram(episode: int, *, levels: int = 256, channels: int = 3) -> Histogram:
    counts = np.random.default_rng(episode).integers(0, 1 << 40, (channels, levels))
    return Histogram(episode, EYE, 7, counts)


def same(one: Histogram, other: Histogram) -> bool:
    return (one.episode, one.camera, one.frames) == (
        other.episode,
        other.camera,
        other.frames,
    ) and np.array_equal(one.counts, other.counts)


def test_what_is_written_is_read(tmp_path):
    written = [histogram(number) for number in range(150)]
    write_histograms(tmp_path / histograms_name(FilePlace(0, 2)), written)
    found = list(read_histograms(tmp_path / "meta"))
    assert all(map(same, found, written))
    assert len(found) == 150


def test_depth_keeps_only_the_levels_between_near_and_remote(tmp_path):
    counts = np.zeros((1, 65536), np.int64)
    counts[0, 900:1300] = 5
    path = tmp_path / histograms_name(FilePlace(0, 0))
    write_histograms(path, [Histogram(3, EYE, 2, counts)])
    assert path.stat().st_size < 4000
    (found,) = read_histograms(tmp_path / "meta")
    assert np.array_equal(found.counts, counts)


def test_files_are_merged_by_copying(tmp_path):
    for number in range(3):
        write_histograms(tmp_path / histograms_name(FilePlace(0, number)), [histogram(number)])
    with HistogramWriter(tmp_path / "one.parquet") as writer:
        for path in histogram_files(tmp_path / "meta"):
            writer.copy(path)
    target = tmp_path / "other" / histograms_name(FilePlace(0, 0))
    target.parent.mkdir(parents=True)
    (tmp_path / "one.parquet").rename(target)
    found = list(read_histograms(tmp_path / "other" / "meta"))
    assert [each.episode for each in found] == [0, 1, 2]


def test_where_nothing_is_added_there_is_no_file(tmp_path):
    write_histograms(tmp_path / "none.parquet", [])
    assert not (tmp_path / "none.parquet").exists()


@pytest.mark.parametrize("broken", [b"", b"not parquet", "cut"])
def test_a_broken_file_is_as_good_as_none(tmp_path, broken):
    good, bad = (tmp_path / histograms_name(FilePlace(0, number)) for number in (0, 1))
    write_histograms(good, [histogram(0)])
    write_histograms(bad, [histogram(1)])
    bad.write_bytes(bad.read_bytes()[:-9] if broken == "cut" else broken)
    assert [each.episode for each in read_histograms(tmp_path / "meta")] == [0]


def test_what_no_camera_can_have_is_refused():
    check_histograms({EYE: np.zeros((3, 256), np.int64)}, [EYE])
    with pytest.raises(UnknownKeyError, match="eya"):
        check_histograms({"eya": np.zeros((3, 256), np.int64)}, [EYE])
    for wrong in (np.zeros((3, 256)), np.zeros(256, np.int64), np.zeros((1, 1 << 17), np.int64)):
        with pytest.raises(ArgumentError, match="histogram"):
            check_histograms({EYE: wrong}, [EYE])

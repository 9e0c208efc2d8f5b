"""A tolerant view: what is broken is a finding, what is not can be used."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from demoreel.check.look import Look, list_files
from demoreel.check.rows import whole_episodes
from demoreel.check.thresholds import chosen
from demoreel.check.videos import PixelFormat, declared_format, stored_format
from demoreel.media.video import open_video
from demoreel.testing import make_dataset


def look_at(root):
    return Look(root, chosen(None))


def test_what_can_be_used_is_used(copy):
    """One bad feature and one bad field leave the rest of an info."""
    root = copy("v3")
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"]["next.reward"] = {"dtype": "float32", "shape": "wide"}
    info["chunks_size"] = -4
    path.write_text(json.dumps(info))
    look = look_at(root)
    assert look.info is not None
    assert "next.reward" not in look.info.features
    assert set(look.findings.counts) == {"feature-unreadable", "info-field-wrong"}
    assert look.info.chunks_size == 1000
    assert len(look.episodes) == 3


def test_episodes_that_can_be_told_apart(copy):
    root = copy("v2")
    path = root / "meta" / "episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["length"] = "nine"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    look = look_at(root)
    assert look.episodes.index.tolist() == [0, 2]
    assert not look.episodes.is_whole
    assert look.episodes.positions_of(np.array([2, 1, 9])).tolist() == [1, -1, -1]


def test_lists_files_through_links_and_never_in_circles(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "one").write_bytes(b"12345")
    root = tmp_path / "dataset"
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "info.json").symlink_to(tmp_path / "blobs" / "one")
    (root / "dead.mp4").symlink_to(tmp_path / "nowhere")
    (root / "again").symlink_to(root, target_is_directory=True)
    (root / ".hidden").mkdir()
    (root / ".hidden" / "x").write_bytes(b"1")
    files = list_files(root)
    assert files["meta/info.json"] == 5
    assert files["dead.mp4"] == -1
    assert not any(name.startswith(".hidden") for name in files)
    assert len(files) <= 4


def test_a_folder_that_may_not_be_read():
    folder = Path(tempfile.mkdtemp())  # pytest's own are for their owner alone
    try:
        folder.chmod(0o755)
        (folder / "locked").mkdir(mode=0o000)
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:
                os.setuid(65534)  # root may read everything
            os._exit(0 if list_files(folder) == {} else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("sizes", [[5, 5, 5], [1, 14], [15], [4, 4, 4, 3]])
@pytest.mark.parametrize("most", [4, 100])
def test_portions_end_where_episodes_do(sizes, most):
    episode = np.repeat([0, 1, 2], [6, 2, 7])
    frame = np.concatenate([np.arange(6), np.arange(2), np.arange(7)])
    edges = np.cumsum([0, *sizes])
    batches = [
        {"episode_index": episode[a:b], "frame_index": frame[a:b]}
        for a, b in itertools.pairwise(edges)
    ]
    portions = list(whole_episodes(iter(batches), "t", most_rows=most))
    assert np.concatenate([p.episode for p in portions]).tolist() == episode.tolist()
    assert np.concatenate([p.columns["frame_index"] for p in portions]).tolist() == frame.tolist()
    assert [p.first_row for p in portions] == np.cumsum([0, *map(_rows, portions)])[:-1].tolist()
    if most == 100:
        assert all(p.columns["frame_index"][0] == 0 and not p.continues for p in portions)


def _rows(portion):
    return len(portion.episode)


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "expected"),
    [
        ("h264", "yuv420p", PixelFormat(1, 8)),
        ("h264", "yuv444p", PixelFormat(3, 8)),
        ("hevc", "yuv420p", PixelFormat(1, 8)),
        ("av1", "yuv420p", PixelFormat(1, 8)),
    ],
)
def test_pixel_formats_are_read_from_headers(codec, pix_fmt, expected, tmp_path):
    root = make_dataset(tmp_path / "d", episodes=[4], codec=codec, pix_fmt=pix_fmt)
    video = open_video(next(root.glob("videos/*/*/*.mp4")))
    assert stored_format(video.index.codec) == expected == declared_format(pix_fmt)


def test_names_of_pixel_formats():
    assert declared_format("gray12le") == PixelFormat(0, 12)
    assert declared_format("yuvj420p") == PixelFormat(1, 8)
    assert declared_format("yuv420p10le") == PixelFormat(1, 10)
    assert declared_format("something") is None

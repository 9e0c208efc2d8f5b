"""What opening a Lance dataset costs, and how many bytes a batch reads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import demoreel

CAMERA = "observation.images.cam_high"
LAYOUTS = {
    "g1_lance_video": ("g1.lance", "g1_videos.lance"),
    "g1_lance_native": ("frames.lance", "videos.lance"),
    "kitchen_lance_frames": ("kitchen.lance",),
}
LOOK_AROUND = """
import json, sys
import demoreel

def look_around(root):
    before = bytes_read()
    ds = demoreel.open(root)
    said = [len(ds), ds.fps, len(ds.episodes), ds.tasks[0], list(ds.features), ds.stats is not None]
    said += [ds.episodes[1].tasks, ds.episodes[1].data_file]
    return said, bytes_read() - before

def bytes_read():
    words = open("/proc/self/io").read().split()
    return int(words[words.index("rchar:") + 1])

first = [look_around(root) for root in sys.argv[1:]]  # modules are imported now
said = [look_around(root) for root in sys.argv[1:]]
early = "lance" in sys.modules
demoreel.open(sys.argv[1])[0]
print(json.dumps([*said, early, "lance" in sys.modules, "torch" in sys.modules]))
"""

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="the system does not count what a process reads"
)


@needs_proc
@pytest.mark.parametrize("name", LAYOUTS)
def test_opening_reads_nothing_of_the_tables_and_imports_no_lance(fixtures, tmp_path, name):
    """Not a byte of them is read: the dataset opens even if they are empty folders."""
    empty = tmp_path / name
    shutil.copytree(fixtures / name, empty, ignore=shutil.ignore_patterns("*.lance"))
    for table in LAYOUTS[name]:
        (empty / table).mkdir()
    command = [sys.executable, "-c", LOOK_AROUND, str(fixtures / name), str(empty)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (whole, read_whole), (said, read_empty), early, late, torch = json.loads(done.stdout)
    assert whole == said
    assert abs(read_whole - read_empty) < 64  # the digits of the counter itself
    assert (early, late, torch) == (False, True, False)


def bytes_read() -> int:
    words = Path("/proc/self/io").read_text().split()
    return int(words[words.index("rchar:") + 1])


def whole_groups(ds, rows) -> int:
    """Return the size of the GOPs, keyframe to keyframe, that the rows are in."""
    episodes = ds.reader.episodes
    sizes = {}
    for row in rows:
        position = int(episodes.positions_of_rows(np.array([row]))[0])
        clip = ds.reader.clip(position, CAMERA)
        index = clip.video.index
        first = int(index.starts([row - int(episodes.start[position]) + clip.first])[0])
        sizes[clip.video.name, first] = int(index.size[index.start_of == first].sum())
    return sum(sizes.values())


@needs_proc
@pytest.mark.parametrize("name", ["g1_lance_video", "g1_lance_native", "g1_v30"])
def test_a_batch_reads_little_more_than_the_groups_of_images_it_needs(fixtures, name):
    ds = demoreel.open(fixtures / name)
    ds.batch(range(0, 1013, 10))  # numbers and packet indices are there now
    rows = np.random.default_rng(1).integers(0, 1013, 32)
    before = bytes_read()
    ds.batch(rows)
    read = bytes_read() - before
    assert 0 < read <= 1.2 * whole_groups(ds, rows.tolist())

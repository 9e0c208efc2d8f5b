"""How long do statistics of 10 million rows take? And of images, beside the decoder alone?

    python bench/stats.py                      10 million rows of 26 floats, and the G1 recording
    python bench/stats.py --rows 1000000       fewer rows

The table is made first (v3.0, files of 100 MB, episodes of 300 frames). No video is opened for
numbers. Memory is the process's peak above what it had before.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.v3.writer import write_tasks
from demoreel.layouts.writing import write_json
from demoreel.media.decode import DecodePool, Decoder, GopSpan, Job
from demoreel.model import Feature, Info
from demoreel.stats.recompute import recompute
from demoreel.stats.rows import all_numbers

FIXTURE = Path(__file__).resolve().parents[2] / "shared" / "fixtures" / "g1_v30"
LENGTH = 300
FLOATS = 13  # of state, and of action
ROWS_IN_FILE = 900_000  # about 100 MB


def make_rows(root: Path, rows: int) -> Path:
    """Write a dataset of numbers only."""
    vector = {"dtype": "float32", "shape": [FLOATS], "names": None}
    features = {
        key: Feature.from_json(key, vector, where="bench")
        for key in ("observation.state", "action")
    }
    episodes = rows // LENGTH
    info = Info.new(
        version="v3.0",
        fps=30,
        features=features,
        robot_type="none",
        total_episodes=episodes,
        total_frames=episodes * LENGTH,
        total_tasks=1,
    )
    per_file = ROWS_IN_FILE // LENGTH
    for file, first in enumerate(range(0, episodes, per_file)):
        path = root / info.data_path.format(chunk_index=0, file_index=file)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_rows(path, first, min(first + per_file, episodes), info)
    index = np.arange(episodes)
    table = {
        "episode_index": index,
        "tasks": pa.array([["do it"]] * episodes),
        "length": np.full(episodes, LENGTH),
        "data/chunk_index": np.zeros(episodes, np.int64),
        "data/file_index": index // per_file,
        "dataset_from_index": index * LENGTH,
        "dataset_to_index": (index + 1) * LENGTH,
    }
    place = root / "meta" / "episodes" / "chunk-000"
    place.mkdir(parents=True)
    pq.write_table(pa.table(table), place / "file-000.parquet")
    write_tasks(root / "meta" / "tasks.parquet", {"do it": 0})
    write_json(root / "meta" / "info.json", info.to_json())
    return root


def _write_rows(path: Path, first: int, stop: int, info: Info) -> None:
    rows = (stop - first) * LENGTH
    rng = np.random.default_rng(first)
    frame = np.tile(np.arange(LENGTH), stop - first)
    columns: dict[str, pa.Array] = {}
    for key in ("observation.state", "action"):
        steps = rng.normal(size=rows * FLOATS).astype(np.float32)
        columns[key] = pa.FixedSizeListArray.from_arrays(pa.array(steps), FLOATS)
    columns["timestamp"] = pa.array((frame / info.fps).astype(np.float32))
    columns["frame_index"] = pa.array(frame)
    columns["episode_index"] = pa.array(np.repeat(np.arange(first, stop), LENGTH))
    columns["index"] = pa.array(np.arange(first * LENGTH, stop * LENGTH))
    columns["task_index"] = pa.array(np.zeros(rows, np.int64))
    pq.write_table(pa.table(columns), path, compression="snappy")


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def numbers(folder: Path, rows: int) -> dict[str, float]:
    root = make_rows(folder / "rows", rows)
    reader = open_reader(root)
    before, busy = peak_mb(), time.process_time()
    begin = time.perf_counter()
    found = all_numbers(reader)
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    assert found.whole["action"]["count"].tolist() == [reader.episodes.total_frames]
    used = {"seconds": seconds, "cpu_seconds": busy, "peak_mb": peak_mb() - before}
    return {"rows": rows, "floats": 2 * FLOATS, **used}


def pictures(folder: Path) -> dict[str, float]:
    root = folder / "g1"
    shutil.copytree(FIXTURE, root)
    reader = open_reader(root)
    camera = reader.info.cameras[0]
    begin = time.perf_counter()
    DecodePool(2).run(job for p in range(len(reader.episodes)) for job in _jobs(reader, p, camera))
    floor = time.perf_counter() - begin
    begin = time.perf_counter()
    frames = recompute(root, threads=2).frames
    seconds = time.perf_counter() - begin
    return {"frames": frames, "fps": frames / seconds, "decoder_fps": frames / floor}


def _jobs(reader: Reader, position: int, camera: str) -> Iterator[Job]:
    clip = reader.clip(position, camera)
    frames = clip.frames(np.arange(int(reader.episodes.length[position])))
    for some in np.array_split(frames, max(1, len(frames) // 32)):
        span = GopSpan(clip.video.index, clip.video.file, clip.video.name, tuple(some.tolist()))
        yield partial(_decode, span)


def _decode(span: GopSpan, decoder: Decoder) -> None:
    for _, frame in decoder.frames(span):
        decoder.painter.packed(frame)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="where to make the data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = {"numbers": numbers(Path(folder), options.rows)}
        if FIXTURE.is_dir():
            found["pictures"] = pictures(Path(folder))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

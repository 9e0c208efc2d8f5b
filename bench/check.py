"""How fast `demoreel check` looks: rows, a real dataset with and without decoding, many episodes.

    .venv/bin/python bench/check.py [--episodes 1000000] [--rows 4000000] [--dataset PATH]

Each part runs in a process of its own, so that its memory can be told.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.model import Feature, Info

_WIDTH = 13  # of state and of action: 26 numbers a row
_EPISODE = 300
_FILES = 8
_CAMERA = "observation.images.front"
_BARS = {
    "rows": "2 million rows/s",
    "dataset": "3 s",
    "episodes": "60 s and 2 GB",
    "deep": "0.8 of decoding",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--dataset", type=Path, help="a dataset to check without decoding")
    parser.add_argument("--only", choices=["rows", "dataset", "episodes", "deep"])
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="demoreel-bench-") as folder:
        root = Path(folder)
        if options.only in (None, "rows"):
            make_rows(root / "rows", options.rows)
            found = checked(root / "rows", only=["table"])
            found["million_rows_per_s"] = options.rows / found["seconds"] / 1e6
            results["rows"] = found
            shutil.rmtree(root / "rows")
        if options.only in (None, "dataset"):
            path = options.dataset or Path(__file__).parents[2] / "shared/fixtures/g1_v30"
            copies = root / "dataset"
            if options.dataset is None:  # 4 episodes and 12 MB, to 93 and about 286
                make_copies(path, copies, 24)
            results["dataset"] = checked(options.dataset or copies)
        if options.only in (None, "deep"):
            path = options.dataset or Path(__file__).parents[2] / "shared/fixtures/g1_v21"
            results["deep"] = decoded(path)
        if options.only in (None, "episodes"):
            make_episodes(root / "episodes", options.episodes)
            results["episodes"] = checked(root / "episodes")
    for name, found in results.items():
        print(name, json.dumps(found), "bar:", _BARS[name])


_CHECK = """
import json, resource, sys, time
import demoreel, demoreel.check.run, demoreel.check.row_checks
path, only = sys.argv[1], json.loads(sys.argv[2])
before = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
begin = time.perf_counter()
report = demoreel.check(path, only=only)
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
facts = next(iter(report.looked_at.values()))
cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - before
keep = {k: v for k, v in facts.items() if isinstance(v, int) and k != "seconds"}
times = {"seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3)}
print(json.dumps({**times, "peak_mb": round(peak), **keep,
                  "worst": report.worst, "counts": dict(report.counts)}))
"""


def checked(root: Path, only: list[str] | None = None) -> dict[str, float]:
    """Check a dataset in a process of its own; the second time counts, with files in memory."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _CHECK, str(root), json.dumps(only)],
            capture_output=True,
            text=True,
            check=True,
        )
    return json.loads(done.stdout)


def decoded(root: Path, rounds: int = 4) -> dict[str, float]:
    """Decode everything with `--deep`, and with two threads that do nothing else; the best counts.

    Both by turns, so that whatever else the machine does hits both; processor time is told, too.
    """
    deep, plain = [], []
    for _ in range(rounds):
        plain.append(_timed(lambda: decode_only(root)))
        deep.append(_timed(lambda: _deep(root)))
    frames = deep[0][2]
    assert frames == plain[0][2]
    seconds, cpu = ([min(t[place] for t in times) for times in (plain, deep)] for place in (0, 1))
    return {
        "frames": frames,
        "decoding_frames_per_s": round(frames / seconds[0]),
        "deep_frames_per_s": round(frames / seconds[1]),
        "share": round(seconds[0] / seconds[1], 3),
        "share_of_cpu": round(cpu[0] / cpu[1], 3),
    }


def _timed(work) -> tuple[float, float, int]:
    begin, cpu = time.perf_counter(), time.process_time()
    frames = work()
    return time.perf_counter() - begin, time.process_time() - cpu, frames


def _deep(root: Path) -> int:
    import demoreel

    report = demoreel.check(root, deep=True, only=["deep"])
    return report.looked_at[str(root)]["decoded"]


def decode_only(root: Path, threads: int = 2) -> int:
    """Decode every video from its first frame to its last, and look at nothing."""
    import av

    def one(path: Path) -> int:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.thread_count = 1
            return sum(1 for _ in container.decode(stream))

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(one, sorted(root.rglob("*.mp4"))))


def make_rows(root: Path, rows: int) -> None:
    """Many rows in a few tables, no camera."""
    random = np.random.default_rng(0)
    per_file = rows // _FILES // _EPISODE * _EPISODE
    noise = random.normal(size=(per_file, _WIDTH)).astype(np.float32)
    features = {key: Feature(key, "float32", (_WIDTH,)) for key in ("observation.state", "action")}
    episodes = per_file * _FILES // _EPISODE
    length = np.full(episodes, _EPISODE)
    file = np.repeat(np.arange(_FILES), per_file // _EPISODE)
    _write_meta(root, features, length, {"data/file_index": file})
    for number in range(_FILES):
        first = number * per_file
        index = np.arange(first, first + per_file)
        columns = {key: _lists(noise) for key in features}
        columns |= _default_columns(index, index // _EPISODE, index % _EPISODE)
        path = root / "data" / "chunk-000" / f"file-{number:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)


def make_episodes(root: Path, episodes: int) -> None:
    """Very many episodes of two frames, in tables of their own; metadata of one camera."""
    length = np.full(episodes, 2)
    start = np.arange(episodes) * 2
    features = {"action": Feature("action", "float32", (2,))}
    stats = {
        f"stats/action/{kind}": _lists(np.full((episodes, 2), value))
        for kind, value in (("min", 0.0), ("max", 1.0), ("mean", 0.5), ("std", 0.5))
    }
    _write_meta(root, features, length, {"data/file_index": np.arange(episodes) // 100_000}, stats)
    for number in range(-(-episodes // 100_000)):
        chosen = slice(number * 100_000, min((number + 1) * 100_000, episodes))
        index = np.arange(start[chosen][0], start[chosen][-1] + 2)
        action = np.stack([index % 2, index % 2], 1).astype(np.float32)
        columns = {"action": _lists(action), **_default_columns(index, index // 2, index % 2)}
        path = root / "data" / "chunk-000" / f"file-{number:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)


def _write_meta(root, features, length, columns, stats=None) -> None:
    count = len(length)
    stop = np.cumsum(length)
    info = Info.new(
        version="v3.0",
        fps=30,
        features=features,
        total_episodes=count,
        total_frames=int(stop[-1]),
        total_tasks=1,
        splits={"train": f"0:{count}"},
    )
    (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps(info.to_json()))
    tasks = pa.table({"task_index": [0], "task": ["do it"]})
    pq.write_table(tasks, root / "meta" / "tasks.parquet")
    every = {
        "episode_index": np.arange(count),
        "length": length,
        "dataset_from_index": stop - length,
        "dataset_to_index": stop,
        "data/chunk_index": np.zeros(count, np.int64),
        **columns,
        "meta/episodes/chunk_index": np.zeros(count, np.int64),
        "meta/episodes/file_index": np.zeros(count, np.int64),
        "tasks": pa.array([["do it"]] * count),
        **(stats or {}),
    }
    path = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    pq.write_table(pa.table(every), path)


def _lists(values: np.ndarray) -> pa.Array:
    flat = pa.array(values.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1]).cast(pa.list_(flat.type))


def _default_columns(
    index: np.ndarray, episode: np.ndarray, frame: np.ndarray
) -> dict[str, object]:
    return {
        "timestamp": (frame / 30).astype(np.float32),
        "frame_index": frame,
        "episode_index": episode,
        "index": index,
        "task_index": np.zeros(len(index), np.int64),
    }


def make_copies(source: Path, target: Path, times: int) -> None:
    """A dataset many times over, merged."""
    import demoreel

    begin = time.perf_counter()
    cut = demoreel.cut(source)
    cut.merge(*[source] * (times - 1)).render(target)
    print(f"made {target} in {time.perf_counter() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

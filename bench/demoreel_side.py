"""Measure demoreel, and the floor, on a dataset. Runs beside demoreel; prints JSON.

    demoreel_side.py load ROOT --batches batches.json [--workers 0 2] [--warmup 4]
    demoreel_side.py floor ROOT --batches batches.json [--threads 2]
    demoreel_side.py import_open ROOT [--repeat 5]
    demoreel_side.py subset ROOT [--seconds 4]
    demoreel_side.py cameras ROOT [--seconds 4]
    demoreel_side.py million ROOT
    demoreel_side.py first_batch ROOT [--repeat 5]
    demoreel_side.py batch_bytes ROOT --batches batches.json
    demoreel_side.py stream ROOT --batches batches.json [--workers 0 2]

`load` and `import_open` mirror `lerobot_side.py`. `floor` decodes and converts the groups of
images that the same batches need, with PyAV alone: packets found and loaded beforehand, two
threads, images converted to RGB and thrown away. Nothing of demoreel's reader is in its
clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

FRESH_PROCESS = {
    "demoreel": """
import time
started = time.perf_counter()
import demoreel
imported = time.perf_counter()
import sys
demoreel.open(sys.argv[1])
print(imported - started, time.perf_counter() - imported)
""",
    "demoreel.torch": """
import time
started = time.perf_counter()
from demoreel.torch import LeRobotDataset
imported = time.perf_counter()
import sys
LeRobotDataset("bench/dataset", root=sys.argv[1])
print(imported - started, time.perf_counter() - imported)
""",
}
# From `open` to 32 random frames. Where pandas is installed, Lance's own imports load it.
FIRST_BATCH = """
import sys, time
class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name, name=name)
if sys.argv[2] == "without":
    sys.meta_path.insert(0, NoPandas())
if sys.argv[3] == "imported":
    import av, lance, numpy, pyarrow.parquet
    import demoreel.read.sql
started = time.perf_counter()
import demoreel
imported = time.perf_counter()
ds = demoreel.open(sys.argv[1])
opened = time.perf_counter()
ds.batch(range(0, len(ds), len(ds) // 32)[:32])
print(imported - started, opened - imported, time.perf_counter() - opened)
"""
MODES = (
    *("load", "floor", "import_open", "subset", "cameras", "million"),
    *("first_batch", "batch_bytes", "stream"),
)
MILLION = """
import resource, sys, time
started = time.perf_counter()
import demoreel
ds = demoreel.open(sys.argv[1])
opened = time.perf_counter() - started
import numpy as np
numbers = np.random.default_rng(0).integers(0, len(ds), 20_000)
reader = ds.reader
def look_up(number):
    row = ds.rows_of([number])
    position = int(reader.episodes.positions_of_rows(row)[0])
    camera = ds.cameras[0]
    return reader.data_file(position), reader.video_file(position, camera), row
for number in numbers: look_up(number)  # paths are made once; a second look-up finds them
started = time.perf_counter()
for number in numbers: look_up(number)
per_lookup = (time.perf_counter() - started) / len(numbers)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(len(ds.episodes), len(ds), opened, per_lookup, peak)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    modes = parser.add_subparsers(dest="mode", required=True)
    for name in MODES:
        mode = modes.add_parser(name)
        mode.add_argument("root", type=place)
        mode.add_argument("--batches", type=Path)
        mode.add_argument("--cache-dir", type=Path, help="of a remote dataset")
        mode.add_argument("--workers", type=int, nargs="+", default=[0, 2])
        mode.add_argument("--warmup", type=int, default=4, help="batches before the clock starts")
        mode.add_argument("--threads", type=int, default=2)
        mode.add_argument("--repeat", type=int, default=5)
        mode.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    print(json.dumps(globals()[f"measure_{options.mode}"](options)))


def measure_stream(options: argparse.Namespace) -> dict[str, Any]:
    """Load as many batches as `load` does, but in the order of a stream, which is known ahead."""
    from demoreel.torch import StreamingLeRobotDataset

    kinds = json.loads(options.batches.read_text())
    answer: dict[str, Any] = {kind: {} for kind in kinds}
    for workers in options.workers:
        for kind, batches in kinds.items():
            plain = open_dataset(options.root, windows=kind == "windows")
            stream = StreamingLeRobotDataset(
                str(options.root),
                delta_timestamps=plain.delta_timestamps,
                return_uint8=True,
                batch_size=len(batches[0]),
            )
            loaded = iter(stream.loader(num_workers=workers))
            for _ in range(options.warmup):
                next(loaded)
            started = time.perf_counter()
            for _ in batches[options.warmup :]:
                next(loaded)
            seconds = time.perf_counter() - started
            samples = sum(map(len, batches[options.warmup :]))
            answer[kind][str(workers)] = {"samples_per_s": samples / seconds}
    return answer


def place(text: str) -> Path | str:
    return text if "://" in text else Path(text)


def measure_load(options: argparse.Namespace) -> dict[str, Any]:
    from loading import samples_per_second

    from demoreel.torch import PrefetchBatchSampler

    kinds = json.loads(options.batches.read_text())
    answer: dict[str, Any] = {kind: {} for kind in kinds}
    for workers in sorted(options.workers, reverse=True):
        for kind, batches in kinds.items():
            answer[kind][str(workers)] = samples_per_second(
                open_dataset(options.root, windows=kind == "windows", cache_dir=options.cache_dir),
                batches,
                workers=workers,
                warmup=options.warmup,
                announced=partial(PrefetchBatchSampler, num_workers=workers),
            )
    return answer


def open_dataset(root: Path | str, *, windows: bool, cache_dir: Path | None = None) -> Any:
    from demoreel.torch import LeRobotDataset

    remote = {"cache_dir": cache_dir} if cache_dir else {}
    delta_timestamps = None
    if windows:
        meta = LeRobotDataset("bench/dataset", root=root, **remote).meta
        delta_timestamps = {
            meta.video_keys[0]: [offset / meta.fps for offset in range(-7, 1)],
            "action": [offset / meta.fps for offset in range(16)],
        }
    return LeRobotDataset(
        "bench/dataset", root=root, delta_timestamps=delta_timestamps, return_uint8=True, **remote
    )


def measure_floor(options: argparse.Namespace) -> dict[str, Any]:
    from loading import cpu_seconds

    kinds = json.loads(options.batches.read_text())
    answer = {}
    for kind, batches in kinds.items():
        offsets = range(-7, 1) if kind == "windows" else range(1)
        groups = [needed_groups(options.root, batch, offsets) for batch in batches]
        decode_all(itertools.chain(*groups[: options.warmup]), options.threads)
        timed = groups[options.warmup :]
        started, worked = time.perf_counter(), cpu_seconds()
        for group in timed:  # batch after batch, as a reader must
            decode_all(group, options.threads)
        seconds = time.perf_counter() - started
        samples = sum(map(len, batches[options.warmup :]))
        answer[kind] = {
            "samples_per_s": samples / seconds,
            "seconds": seconds,
            "cpu_ms": (cpu_seconds() - worked) / samples * 1e3,
        }
    return answer


def needed_groups(root: Path, batch: list[int], offsets: range) -> list[tuple[Any, ...]]:
    """Return what a batch must decode: (codec, packets in order, which of them are wanted)."""
    import demoreel
    from demoreel.media.decode import group_frames
    from demoreel.read.batch import expand

    ds = _opened.setdefault(root, demoreel.open(root))
    camera = ds.info.video_keys[0]
    episodes = ds.reader.episodes
    rows = np.array(batch)
    positions = episodes.positions_of_rows(rows)
    edges = episodes.start[positions], episodes.start[positions + 1]
    wanted: dict[str, tuple[Any, set[int]]] = {}
    for row in np.unique(expand(rows, np.array(offsets), *edges).rows).tolist():
        position = int(episodes.positions_of_rows(np.array([row]))[0])
        clip = ds.reader.clip(position, camera)
        frames = wanted.setdefault(clip.video.name, (clip.video, set()))[1]
        frames.add(row - int(episodes.start[position]) + clip.first)
    groups = []
    for video, frames in wanted.values():
        index = video.index
        for group in group_frames(index, np.array(sorted(frames))):
            last = int(index.packet_of[list(group)].max())
            first = int(index.starts(list(group)).min())
            data = [
                video.file.read(int(index.offset[p]), int(index.size[p]))
                for p in range(first, last + 1)
            ]
            numbers = index.frame_of[first : last + 1].tolist()
            groups.append((index.codec, data, numbers, set(group)))
    return groups


_opened: dict[Path, Any] = {}


def decode_all(groups: Any, threads: int) -> None:
    queue = iter(list(groups))
    lock = threading.Lock()

    def work() -> None:
        contexts: dict[Any, Any] = _contexts.setdefault(threading.current_thread().name, {})
        while True:
            with lock:
                group = next(queue, None)
            if group is None:
                return
            decode(contexts, *group)

    helpers = [threading.Thread(target=work, name=f"floor-{n}") for n in range(threads)]
    for helper in helpers:
        helper.start()
    for helper in helpers:
        helper.join()


_contexts: dict[str, dict[Any, Any]] = {}


def decode(
    contexts: dict[Any, Any], codec: Any, data: list[bytes], numbers: list[int], wanted: set[int]
) -> None:
    import av
    from av.video.reformatter import VideoReformatter

    if codec not in contexts:
        context = av.CodecContext.create(codec.name, "r")
        context.extradata = codec.extradata
        context.thread_count = 1
        contexts[codec] = (context, VideoReformatter())
    context, reformatter = contexts[codec]
    frames = []
    for packet_bytes, number in zip(data, numbers, strict=True):
        packet = av.Packet(packet_bytes)
        packet.pts = number
        frames += context.decode(packet)
    frames += context.decode(None)
    context.flush_buffers()
    for frame in frames:
        if frame.pts in wanted:
            reformatter.reformat(frame, format="rgb24", threads=1)


def measure_import_open(options: argparse.Namespace) -> dict[str, Any]:
    answer = {}
    for name, code in FRESH_PROCESS.items():
        runs = [fresh(code, options.root) for _ in range(1 + options.repeat)][1:]
        answer[name] = {
            "import_s": median(run[0] for run in runs),
            "median_s": median(run[0] + run[1] for run in runs),
        }
    return answer


def fresh(code: str, *arguments: object) -> list[float]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return list(map(float, done.stdout.split()))


def measure_subset(options: argparse.Namespace) -> dict[str, Any]:
    """The same frames, asked of the whole dataset and of a subset, in turns."""
    import demoreel

    every = demoreel.open(options.root)
    chosen = every.episodes.episode_index[::2].tolist()
    part = demoreel.open(options.root, episodes=chosen)
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {"all": [], "subset": []}
    for _ in range(max(3, int(options.seconds))):
        numbers = rng.integers(0, len(part), (6, 32))
        same = [part.rows_of(batch) for batch in numbers]
        rates["subset"].append(rate(part, list(numbers)))
        rates["all"].append(rate(every, same))
    return _ratio(rates, "subset", "all")


def measure_cameras(options: argparse.Namespace) -> dict[str, Any]:
    """One of three cameras, against all of them, in turns."""
    import demoreel

    every = demoreel.open(options.root)
    one = demoreel.open(options.root, cameras=every.cameras[:1])
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {"three": [], "one": []}
    for _ in range(max(3, int(options.seconds))):
        numbers = list(rng.integers(0, len(every), (6, 32)))
        rates["three"].append(rate(every, numbers))
        rates["one"].append(rate(one, numbers))
    return _ratio(rates, "one", "three")


def rate(dataset: Any, batches: list[Any]) -> float:
    dataset.batch(batches[0])
    started = time.perf_counter()
    for batch in batches:
        dataset.batch(batch)
    return sum(map(len, batches)) / (time.perf_counter() - started)


def _ratio(rates: dict[str, list[float]], left: str, right: str) -> dict[str, Any]:
    pairs = zip(rates[left], rates[right], strict=True)
    return {
        **{name: median(values) for name, values in rates.items()},
        "ratio": median(a / b for a, b in pairs),
    }


def measure_million(options: argparse.Namespace) -> dict[str, Any]:
    runs = [fresh(MILLION, options.root) for _ in range(3)]
    episodes, frames = int(runs[0][0]), int(runs[0][1])
    return {
        "episodes": episodes,
        "frames": frames,
        "open_s": median(run[2] for run in runs),
        "lookup_us": median(run[3] for run in runs) * 1e6,
        "peak_mb": max(run[4] for run in runs) / 1e6,
    }


def measure_first_batch(options: argparse.Namespace) -> dict[str, Any]:
    """From `open` to the first batch: in a fresh process, and where packages are imported."""
    answer = {}
    kinds = {
        "fresh": ("with", "fresh"),
        "fresh, no pandas": ("without", "fresh"),
        "imported": ("with", "imported"),
    }
    for kind, arguments in kinds.items():
        runs = [fresh(FIRST_BATCH, options.root, *arguments) for _ in range(1 + options.repeat)]
        import_s, open_s, batch_s = (median(part) for part in zip(*runs[1:], strict=True))
        answer[kind] = {"import_s": import_s, "open_s": open_s, "batch_s": batch_s}
    return answer


def measure_batch_bytes(options: argparse.Namespace) -> dict[str, Any]:
    """Bytes that batches of frames read, and bytes of the GOPs that they need."""
    import demoreel

    ds = demoreel.open(options.root)
    batches = json.loads(options.batches.read_text())["frames"]
    for batch in batches:
        ds.batch(batch)
    ratios = []
    for batch in batches:
        before = bytes_read()
        ds.batch(batch)
        ratios.append((bytes_read() - before) / whole_groups(ds, batch))
    return {"median": median(ratios), "most": max(ratios)}


def bytes_read() -> int:
    """Return what this process has asked the system to read, whoever in it asked."""
    lines = Path("/proc/self/io").read_text().split()
    return int(lines[lines.index("rchar:") + 1])


def whole_groups(ds: Any, batch: list[int]) -> int:
    """Return the size of the GOPs, keyframe to keyframe, that a batch is in."""
    camera, episodes = ds.info.video_keys[0], ds.reader.episodes
    needed = set()
    total = 0
    for row in set(batch):
        position = int(episodes.positions_of_rows(np.array([row]))[0])
        clip = ds.reader.clip(position, camera)
        index = clip.video.index
        first = int(index.starts([row - int(episodes.start[position]) + clip.first])[0])
        if (clip.video.name, first) not in needed:
            needed.add((clip.video.name, first))
            total += int(index.size[index.start_of == first].sum())
    return total


if __name__ == "__main__":
    main()

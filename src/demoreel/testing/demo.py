"""What ``make demo`` runs: a toy robot's dataset is written, opened, loaded and timed.

    python -m demoreel.testing.demo [FOLDER]

Run again, it reads the dataset that is there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import demoreel
from demoreel.cli import main as demoreel_command
from demoreel.errors import DemoreelError, TargetExistsError, count, printable
from demoreel.layouts.writing import EpisodeDraft, create_writer
from demoreel.media.encode import VideoEncoder
from demoreel.media.settings import VideoSettings
from demoreel.model import Feature, Info
from demoreel.read.speed import measure_speed
from demoreel.stats.running import LevelCounts
from demoreel.testing.factory import GatheredStats
from demoreel.testing.toy_arm import FRONT_SIZE, JOINTS, PICK, PUSH, WRIST_SIZE, ToyArm

FOLDER = Path("demo") / "toy_arm"
ROBOT = "demoreel_toy_arm"
FPS = 30
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
SIZES = {FRONT: FRONT_SIZE, WRIST: WRIST_SIZE}
EPISODES = ((PICK, 120), (PUSH, 110), (PICK, 130), (PUSH, 125), (PICK, 115))

BATCH_SIZE = 32
PAST = [-2 / FPS, -1 / FPS, 0.0]
FUTURE = [frame / FPS for frame in range(16)]
LOADING_SECONDS = 3.0
FLOOR_SECONDS = 4.0


def main(arguments: list[str]) -> int:
    """Run the demo and return its exit code."""
    if arguments and arguments[0].startswith("-"):
        print(__doc__.strip())
        return 0 if arguments[0] in ("-h", "--help") else 2
    folder = Path(arguments[0]) if arguments else FOLDER
    try:
        if not _is_demo(folder):
            _write(folder)
        _say(f"\n$ demoreel info {folder}")
        sys.stdout.flush()
        demoreel_command(["info", str(folder)])
        _load(folder)
        _compare_with_floor(folder)
        _what_next(folder)
    except DemoreelError as error:
        print("error: " + "\n".join(map(printable, str(error).splitlines())), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _say(text: str) -> None:
    """Print a step's heading; bold where that shows."""
    bold = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(f"\033[1m{text}\033[0m" if bold else text)


# ── Writing ───────────────────────────────────────────────────────────────────────────────────────


def _is_demo(folder: Path) -> bool:
    """Whether the dataset is there already; anything else in its place is left alone."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if (folder / "meta" / "info.json").exists() and demoreel.open(folder).info.robot_type == ROBOT:
        print(f"{folder} is there already; delete it to have it written again")
        return True
    raise TargetExistsError(
        "There is something else where the demo's dataset is to be written.",
        hint="name another folder: python -m demoreel.testing.demo FOLDER",
        path=folder,
    )


@dataclass(frozen=True, slots=True)
class _Recording:
    """One episode, recorded and not yet written."""

    task: str
    length: int
    columns: dict[str, np.ndarray]
    videos: dict[str, Path]
    images: dict[str, LevelCounts]


def _write(folder: Path) -> None:
    frames = sum(length for _, length in EPISODES)
    cameras = " and ".join(f"{height} x {width}" for height, width in SIZES.values())
    _say(f"a toy arm does {count(len(EPISODES), 'episode')}, recorded by cameras of {cameras}")
    started = time.perf_counter()
    gathered = GatheredStats(_info().features)
    with tempfile.TemporaryDirectory() as scratch, create_writer(folder, _info()) as writer:
        with ThreadPoolExecutor() as pool:  # encoders release the GIL
            recordings = list(pool.map(partial(_record, Path(scratch)), range(len(EPISODES))))
        for recording in recordings:
            tasks = [recording.task] * recording.length
            every = {**recording.columns, **writer.default_columns(tasks)}
            stats = gathered.add(every, recording.images)
            writer.append(EpisodeDraft(recording.columns, tasks, recording.videos, stats=stats))
        writer.commit(stats=gathered.whole())
    took = time.perf_counter() - started
    print(f"wrote {folder}: LeRobot v3.0, AV1, {frames} frames a camera, in {took:.1f} s")


def _info() -> Info:
    names = ["height", "width", "channels"]
    features = {
        key: Feature(key, "float32", (len(JOINTS),), [f"{joint}.pos" for joint in JOINTS])
        for key in ("action", "observation.state")
    }
    for key, (height, width) in SIZES.items():
        details = VideoSettings().feature_info(fps=FPS, height=height, width=width)
        features[key] = Feature(key, "video", (height, width, 3), names, details)
    return Info.new(version="v3.0", fps=FPS, features=features, robot_type=ROBOT)


def _record(scratch: Path, episode: int) -> _Recording:
    task, length = EPISODES[episode]
    videos = {key: scratch / f"{episode}-{key}.mp4" for key in SIZES}
    images = {key: LevelCounts() for key in SIZES}
    rows: dict[str, list[np.ndarray]] = {"action": [], "observation.state": []}
    with ExitStack() as open_videos:
        encoders = {
            key: open_videos.enter_context(
                VideoEncoder(videos[key], fps=FPS, width=width, height=height)
            )
            for key, (height, width) in SIZES.items()
        }
        for frame in ToyArm(seed=episode).episode(task, length):
            for key, encoder in encoders.items():
                encoder.add(frame[key])
                images[key].add(frame[key])
            for key, column in rows.items():
                column.append(frame[key])
    columns = {key: np.stack(column) for key, column in rows.items()}
    return _Recording(task, length, columns, videos, images)


# ── Loading ───────────────────────────────────────────────────────────────────────────────────────


def _load(folder: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        _load_with_numpy(folder)
    else:
        _load_with_torch(folder)


def _load_with_torch(folder: Path) -> None:
    import torch

    from demoreel.torch import LeRobotDataset

    _say("\nshuffled batches through torch's DataLoader, with three frames of each camera")
    dataset = LeRobotDataset(
        "demo/toy_arm",
        root=folder,
        delta_timestamps={FRONT: PAST, WRIST: PAST, "action": FUTURE},
        return_uint8=True,
    )
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)
    _time_epochs(lambda: loader)


def _load_with_numpy(folder: Path) -> None:
    _say("\nshuffled batches of numpy arrays, with three frames of each camera")
    print("pip install 'demoreel[torch]' brings LeRobotDataset, for torch's DataLoader")
    dataset = demoreel.open(folder, windows={FRONT: PAST, WRIST: PAST, "action": range(16)})
    random = np.random.default_rng(0)

    def epoch() -> Iterable[dict[str, Any]]:
        order = random.permutation(len(dataset))
        parts = np.array_split(order, len(order) // BATCH_SIZE)
        return (dataset.batch(part) for part in parts)

    _time_epochs(epoch)


def _time_epochs(epoch: Callable[[], Iterable[dict[str, Any]]]) -> None:
    """Load epochs for a few seconds, show what a batch is, and say how fast."""
    for key, value in next(iter(epoch())).items():
        if hasattr(value, "shape"):
            kind = str(value.dtype).removeprefix("torch.")
            print(f"  {key:<32} {kind:<8} {' x '.join(map(str, value.shape))}")
        else:
            print(f"  {key:<32} {type(value).__name__:<8} {value[0]!r}, ...")
    samples, epochs, started = 0, 0, time.perf_counter()
    while time.perf_counter() - started < LOADING_SECONDS:
        samples += sum(len(batch["index"]) for batch in epoch())
        epochs += 1
    took = time.perf_counter() - started
    print(f"{count(epochs, 'epoch')} in {took:.1f} s: {samples / took:.0f} samples/s")


def _compare_with_floor(folder: Path) -> None:
    _say("\nhow near that is to decoding the same images, and nothing else")
    speed = measure_speed(folder, window=len(PAST), batch_size=BATCH_SIZE, seconds=FLOOR_SECONDS)
    assert speed.floor_samples_per_s is not None
    assert speed.share is not None
    print(
        f"windows of {speed.window}, {count(speed.threads, 'thread')}: "
        f"{speed.samples_per_s:.0f} samples/s, floor {speed.floor_samples_per_s:.0f}, "
        f"that is {100 * speed.share:.0f} % of it"
    )


def _what_next(folder: Path) -> None:
    beside = Path(sys.executable).with_name("demoreel")
    installed = "demoreel" if shutil.which("demoreel") or not beside.exists() else _short(beside)
    _say("\nwhat to type next")
    print(f"  {installed} episodes {folder}")
    print(f"  {installed} frame {folder} 100 --camera {FRONT} -o frame.png")
    print(f"  {installed} bench {folder} --window 8")
    opening = f"import demoreel; ds = demoreel.open('{folder}')"
    print(f'  {_short(Path(sys.executable))} -i -c "{opening}"')
    print("  >>> ds[100]['observation.state'], ds.episode(3).column('action').shape")


def _short(path: Path) -> str:
    """Return a path as one would type it here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `make demo | head` ends quietly
    sys.exit(main(sys.argv[1:]))

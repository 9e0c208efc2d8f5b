"""Killing writers for real, and looking at what they leave.

``killed`` runs a function in a process of its own and ends it with SIGKILL; ``append_for_ever`` is
such a function; ``check_whole`` says whether what is on disk afterwards is a dataset, in every
file of it. Every row and every image follows from its episode and frame, so a test can tell
whether it is the one that was written, bit for bit.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import demoreel
from demoreel.errors import MetadataError
from demoreel.layouts.appending import Appender, open_appender
from demoreel.layouts.beside import read_histograms
from demoreel.layouts.writing import EpisodeDraft
from demoreel.media.encode import VideoEncoder, VideoSettings
from demoreel.media.remux import probe
from demoreel.model import Feature, Info
from demoreel.stats.running import LevelCounts
from demoreel.storage.commit.writer_lock import is_held
from demoreel.testing.factory import GatheredStats
from demoreel.testing.stamp import read_stamp, stamp

SIZE = (48, 64)
TASKS = ("pick", "place", "wait")
_SETTINGS = VideoSettings(codec="h264", preset="ultrafast")
_PRELOAD = [
    "support.crash_recording",
    "demoreel.layouts.v3.appender",
    "demoreel.record.recorder",
    "demoreel.media.remux",
]


def crash_info(*, cameras: int = 2, fps: float = 30, **fields: Any) -> Info:
    """Describe a small dataset for ``make_draft``; ``fields`` as of ``Info.new``."""
    height, width = SIZE
    details = _SETTINGS.feature_info(fps=fps, height=height, width=width)
    features = {
        "state": Feature("state", "float32", (3,)),
        "noise": Feature("noise", "float64", (2,)),
    }
    for number in range(cameras):
        key = f"observation.images.cam{number}"
        features[key] = Feature(key, "video", (*SIZE, 3), ["height", "width", "channels"], details)
    return Info.new(version="v3.0", fps=fps, features=features, robot_type="none", **fields)


def length_of(episode: int) -> int:
    """Return how many frames ``make_draft`` gives an episode: 1 to 4."""
    return 1 + (episode * 7 + 3) % 4


def columns_of(episode: int) -> dict[str, np.ndarray]:
    """Return the numbers of an episode."""
    frames = np.arange(length_of(episode))
    noise = np.random.default_rng(episode).normal(size=(len(frames), 2))
    state = np.stack([np.full(len(frames), episode), frames, np.sin(frames + episode)], axis=1)
    return {"state": state.astype(np.float32), "noise": noise}


def images_of(episode: int) -> list[np.ndarray]:
    """Return the images of an episode; all cameras see the same."""
    found = []
    for frame in range(length_of(episode)):
        image = np.full((*SIZE, 3), (episode * 40 + frame * 10) % 256, np.uint8)
        stamp(image, episode, frame)
        found.append(image)
    return found


def make_draft(appender: Appender, episode: int, scratch: Path) -> EpisodeDraft:
    """Return the draft of an episode; its videos are written into ``scratch``."""
    info = appender.info
    images, videos = images_of(episode), {}
    seen = {key: LevelCounts() for key in info.video_keys}
    for key in info.video_keys:
        path = scratch / f"{uuid.uuid4().hex}.mp4"
        height, width = SIZE
        with VideoEncoder(
            path, fps=info.fps, width=width, height=height, settings=_SETTINGS
        ) as video:
            for image in images:
                video.add(image)
                seen[key].add(image)
        videos[key] = path
    columns = columns_of(episode)
    tasks = [TASKS[episode % len(TASKS)]] * len(images)
    every = {**columns, **appender.default_columns(tasks)}
    stats = GatheredStats(info.features).add(every, seen)
    histograms = {key: counted.histogram() for key, counted in seen.items()}
    return EpisodeDraft(columns, tasks, videos, {}, stats, histograms)


def append_for_ever(
    report: Connection, root: Path, scratch: Path, merge: bool = True, most: int = 500
) -> None:
    """Append episodes, and report the number of each that is safe. To be killed."""
    appender = open_appender(root)
    report.send("begun")
    for _ in range(most):
        report.send(appender.append(make_draft(appender, appender.episodes, scratch)))
        if merge:
            appender.compact(finish=appender.episodes % 10 == 0)


def recompute_for_ever(report: Connection, root: Path, most: int = 100) -> None:
    """Compute statistics anew, again and again, and report each time. To be killed."""
    from demoreel.stats.recompute import recompute

    report.send("begun")
    for _ in range(most):
        recompute(root)
        report.send("done")


def killed(
    target: Callable[..., None], *arguments: Any, reports: int = 0, then: float = 0.0
) -> list[Any]:
    """Run ``target(report, *arguments)`` in a process and kill it with SIGKILL.

    The process is forked from one that has demoreel loaded, so that a round costs tens of
    milliseconds. The instant is counted in reports, so it does not depend on the machine's speed.

    Args:
        target: A function in a module that can be imported. It reports through the connection that
            it is given; its first report says that it has begun.
        *arguments: More arguments, which can be pickled.
        reports: How many more reports to wait for.
        then: How much longer to wait, as a share of the time that the last report took.

    Returns:
        All that it reported after the first, up to the end.

    Raises:
        EOFError: It ended before it had reported so much.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    found = []
    try:
        begin = time.monotonic()
        ours.recv()
        for _ in range(reports):
            begin = time.monotonic()
            found.append(ours.recv())
        process.join(then * (time.monotonic() - begin))
    finally:
        process.kill()
        process.join()
    try:
        while True:
            found.append(ours.recv())
    except EOFError:
        return found
    finally:
        ours.close()


def kill_again_and_again(
    target: Callable[..., None],
    root: Path,
    *arguments: Any,
    rounds: int,
    seed: int,
    check: Callable[..., int] | None = None,
) -> int:
    """Let ``target`` write to a dataset, kill it at a random instant, look, and so on.

    Args:
        target: As for ``killed``; reports the number of each episode that is safe.
        root: The dataset's folder.
        *arguments: More arguments of ``target``, after the folder.
        rounds: How often to kill it.
        seed: Decides the instants.
        check: Looks at the dataset and returns its episodes; ``check_whole`` if None.

    Returns:
        How many episodes there are in the end.

    Raises:
        AssertionError: An episode that was reported is not there, or more than one that was not is.
    """
    instant, there = random.Random(seed), 0
    for _ in range(rounds):
        reports = killed(
            target, root, *arguments, reports=instant.randrange(4), then=instant.uniform(0, 1.5)
        )
        assert reports == list(range(there, there + len(reports))), (there, reports)
        safe = there + len(reports)
        there = episodes_in(root, check=check or check_whole, images_from=max(0, safe - 4))
        assert there in (safe, safe + 1), (safe, there)
    return there


def episodes_in(root: Path, *, check: Callable[..., int], images_from: int) -> int:
    """Return what ``check`` returns, and 0 where there is no episode yet."""
    try:
        return check(root, images_from=images_from)
    except MetadataError as error:
        if error.what != "The dataset has no episodes yet.":
            raise
        return 0


@contextmanager
def files_may_not_grow(beyond: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes: a full disk, for users who may not mount one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (beyond, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def check_whole(root: Path, *, images_from: int = 0) -> int:
    """Open a dataset of ``make_draft``'s episodes; return how many there are.

    What a kill has left in the middle of a commit is finished first; a living writer does that.

    Args:
        root: The dataset's folder.
        pictures_from: Look at the images of the episodes from this one on.

    Raises:
        AssertionError: Two files disagree about what there is, or something is not as written.
        MetadataError: There is no episode.
    """
    if not is_held(root):
        demoreel.finish(root)
    dataset = demoreel.open(root)
    count = len(dataset.episodes)
    lengths = [length_of(episode) for episode in range(count)]
    frames = sum(lengths)
    assert len(dataset) == frames
    info = json.loads((root / "meta" / "info.json").read_text())
    assert (info["total_episodes"], info["total_frames"]) == (count, frames), info
    assert info["total_tasks"] == len(pq.read_table(root / "meta" / "tasks.parquet"))
    stats = json.loads((root / "meta" / "stats.json").read_text())
    assert stats["state"]["count"] == [frames], stats["state"]["count"]
    _check_metadata(root, lengths)
    _check_histograms(root, lengths, dataset.info)
    _check_tables(root, lengths)
    _check_videos(root, lengths, dataset.info)
    for episode in range(images_from, count):
        _check_episode(dataset, episode)
    return count


def check_rows(root: Path, *, images_from: int = 0) -> int:
    """Open a dataset of ``make_draft``'s episodes, in any layout; return how many there are.

    What a kill has left in the middle of a commit is finished first, as for ``check_whole``.

    Args:
        root: The dataset's folder.
        pictures_from: Look at the images of the episodes from this one on.

    Raises:
        AssertionError: A row or an image is not as written.
        MetadataError: There is no episode.
    """
    if not is_held(root):
        demoreel.finish(root)
    dataset = demoreel.open(root)
    count = len(dataset.episodes)
    lengths = [length_of(episode) for episode in range(count)]
    assert dataset.episodes.length.tolist() == lengths
    found = demoreel.open(root, cameras=()).batch(range(sum(lengths)))
    for key in ("state", "noise"):
        expected = np.concatenate([columns_of(episode)[key] for episode in range(count)])
        assert np.array_equal(found[key], expected), key
    for episode in range(images_from, count):
        _check_episode(dataset, episode)
    return count


def _check_metadata(root: Path, lengths: list[int]) -> None:
    names = ("episode_index", "length", "dataset_from_index", "dataset_to_index")
    found = _concatenated(root / "meta" / "episodes", *names)
    ends = np.cumsum(lengths)
    assert found["episode_index"].to_pylist() == list(range(len(lengths)))
    assert found["length"].to_pylist() == lengths
    assert found["dataset_to_index"].to_pylist() == ends.tolist()
    assert found["dataset_from_index"].to_pylist() == (ends - lengths).tolist()


def _check_histograms(root: Path, lengths: list[int], info: Info) -> None:
    found = {(each.camera, each.episode): each for each in read_histograms(root / "meta")}
    assert found.keys() == {(key, n) for key in info.video_keys for n in range(len(lengths))}
    for (_, episode), each in found.items():
        assert each.frames == lengths[episode]
        assert each.counts.sum() == each.frames * SIZE[0] * SIZE[1] * 3


def _check_tables(root: Path, lengths: list[int]) -> None:
    """What lerobot relies on: all tables in the order of their names are the rows in order."""
    found = _concatenated(root / "data", "index", "episode_index", "frame_index", "state", "noise")
    columns = [columns_of(episode) for episode in range(len(lengths))]
    assert found["index"].to_pylist() == list(range(sum(lengths)))
    assert found["episode_index"].to_pylist() == np.repeat(range(len(lengths)), lengths).tolist()
    assert found["frame_index"].to_pylist() == [n for length in lengths for n in range(length)]
    for key in ("state", "noise"):
        values = np.array(found[key].to_pylist()).reshape(sum(lengths), -1)
        assert np.array_equal(values, np.concatenate([column[key] for column in columns]))


def _check_videos(root: Path, lengths: list[int], info: Info) -> None:
    assert info.video_path is not None
    parts = ("chunk_index", "file_index", "from_timestamp")
    for camera in info.video_keys:
        names = [f"videos/{camera}/{part}" for part in parts]
        found = _concatenated(root / "meta" / "episodes", *names)
        expected: dict[str, int] = {}
        for length, *place in zip(lengths, *(found[n].to_pylist() for n in names), strict=True):
            chunk, file, begin = place
            name = info.video_path.format(video_key=camera, chunk_index=chunk, file_index=file)
            assert begin == expected.get(name, 0) / info.fps
            expected[name] = expected.get(name, 0) + length
        for name, frames in expected.items():
            assert probe(root / name)[1] == frames, name


def _check_episode(dataset: demoreel.Dataset, episode: int) -> None:
    begin = sum(length_of(before) for before in range(episode))
    for frame in range(length_of(episode)):
        sample = dataset[begin + frame]
        assert sample["task"] == TASKS[episode % len(TASKS)]
        for camera in dataset.cameras:
            assert read_stamp(sample[camera]) == (episode, frame)


def _concatenated(folder: Path, *names: str) -> pa.Table:
    tables = []
    for path in sorted(folder.glob("*/*.parquet")):
        with pq.ParquetFile(path) as parquet:
            tables.append(parquet.read(columns=list(names), use_threads=False))
    return pa.concat_tables(tables)

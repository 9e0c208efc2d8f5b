"""Writing ``meta/`` alone, for programs that write tables and videos of v3.0 themselves.

Every change is one commit (``storage/commit/journal.py``): a process that is killed leaves the
metadata as they were, or as they are to be.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.errors import ArgumentError, TargetExistsError
from demoreel.layouts.appending import only_writer
from demoreel.layouts.meta import listing_files, read_tasks
from demoreel.layouts.v3.files import FilePlace, files_of
from demoreel.layouts.v3.writer import stat_columns, write_tasks
from demoreel.layouts.writing import write_json
from demoreel.media.audio import tracks_of
from demoreel.media.remux import probe
from demoreel.media.video import open_video
from demoreel.model import Info, Stats, stats_to_json
from demoreel.model.stats import extend_stats
from demoreel.storage.commit.journal import Transaction, carry_out, transaction
from demoreel.storage.json_files import read_json
from demoreel.torch.info import InfoView
from demoreel.torch.place import recorded_root

if TYPE_CHECKING:
    from demoreel.torch.metadata import LeRobotDatasetMetadata

_MOST_ROWS = 200  # of a file that is written anew with every episode
_TEXTS = pa.list_(pa.string())


def begin(
    repo_id: str,
    root: str | os.PathLike[str] | None,
    *,
    fps: float,
    features: Mapping[str, Mapping[str, Any]],
    robot_type: str | None,
    use_videos: bool,
    **sizes: Any,
) -> Path:
    """Make a dataset's folder with an ``info.json``; return it. See the metadata's ``create``."""
    from demoreel.record.spec import describe

    info = describe(features, fps=fps, robot_type=robot_type, capture_times=False, **sizes)
    if info.video_keys and not use_videos:
        raise ArgumentError(
            f"Features contain video keys {list(info.video_keys)}, but use_videos is False.",
            hint="leave these features out, or set use_videos=True",
        )
    folder = recorded_root(repo_id) if root is None else Path(root)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise TargetExistsError(
            "There is already something where the dataset is to be.",
            hint="choose another folder",
            path=folder,
        ) from None
    try:
        _commit(folder, lambda changes: _write_info(changes, info.to_json(), folder))
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise
    return folder


def restate(root: Path, fields: Mapping[str, Any]) -> None:
    """Commit other fields of ``info.json``; those that are None are left out of it."""

    def write(changes: Transaction) -> None:
        raw = {**read_json(root / "meta" / "info.json"), **fields}
        _write_info(changes, {n: v for n, v in raw.items() if v is not None or n in _NULL}, root)

    _commit(root, write)


_NULL = ("robot_type", "video_path")  # fields that say null


def _write_info(changes: Transaction, raw: Mapping[str, Any], root: Path) -> None:
    Info.from_json(raw, where=str(root / "meta" / "info.json"))  # refuses what makes no sense
    write_json(changes.new("meta/info.json"), raw)


def _commit(root: Path, write: Callable[[Transaction], None]) -> None:
    with only_writer(root, "edited"), transaction(root) as changes:
        write(changes)
        changes.record()
        carry_out(root)


@dataclass(frozen=True, slots=True)
class _Totals:
    info: InfoView
    stats: Stats


class MetadataWriter:
    """Adds tasks and episodes to the metadata of a v3.0 dataset.

    The file of their rows is this object's own, and is written anew with each episode until it is
    full; files that were there before are not touched.

    Args:
        meta: The metadata, whose totals, tasks and statistics are kept true.
    """

    def __init__(self, meta: LeRobotDatasetMetadata) -> None:
        if meta.info.codebase_version != "v3.0" or meta.info.get("storage_format") == "lance":
            raise ArgumentError(
                "Episodes are added one by one to datasets of v3.0 only.",
                hint="demoreel.resume records to Lance datasets, too",
                dataset=meta.root,
            )
        self._meta = meta
        self._rows: list[dict[str, Any]] = []
        _, _, self._files = files_of(Info.from_json(meta.info.to_dict(), where=str(meta.root)))
        episodes = listing_files(meta.root / "meta" / "episodes")
        if episodes:
            self._files.upcoming = self._files.after(_place_of(episodes[-1]))

    def save_tasks(self, texts: Sequence[str]) -> None:
        """Give tasks that are new the next indices, and commit them."""
        import pandas as pd

        meta = self._meta
        known = {} if meta.tasks is None else _numbers(meta.tasks)
        fresh = [text for text in texts if text not in known]
        if not fresh:
            return
        upcoming = max(known.values(), default=-1) + 1
        tasks = known | {text: upcoming + place for place, text in enumerate(fresh)}
        path = meta.root / "meta" / "tasks.parquet"

        def write(changes: Transaction) -> None:
            there = {} if not path.exists() else {t: n for n, t in read_tasks(path).items()}
            write_tasks(changes.new("meta/tasks.parquet"), {**there, **tasks})
            info = read_json(meta.root / "meta" / "info.json")
            _write_info(changes, info, meta.root)

        _commit(meta.root, write)
        index = pd.Index(list(tasks), name="task")
        meta.tasks = pd.DataFrame({"task_index": list(tasks.values())}, index=index)

    def save_episode(
        self,
        index: int,
        length: int,
        tasks: list[str],
        stats: Mapping[str, Mapping[str, Any]],
        more: Mapping[str, Any],
    ) -> None:
        """Commit an episode."""
        meta, info = self._meta, self._meta.info
        if index != info.total_episodes:
            raise ArgumentError(
                f"The next episode is {info.total_episodes}, not {index}.", dataset=meta.root
            )
        known = {} if meta.tasks is None else _numbers(meta.tasks)
        unknown = [text for text in tasks if text not in known]
        if unknown:
            raise ArgumentError(
                f"The task {unknown[0]!r} has no index.", hint="save_episode_tasks([...]) first"
            )
        if length < 1:
            raise ArgumentError(f"An episode has at least one frame, not {length}.")
        numbers: Stats = {
            key: {name: np.asarray(value) for name, value in kinds.items()}
            for key, kinds in stats.items()
        }
        place = self._files.upcoming
        row: dict[str, Any] = {
            "episode_index": index,
            "tasks": tasks,
            "length": length,
            **more,
            **stat_columns(numbers),
            **self._files.columns(place),
            "dataset_from_index": info.total_frames,
            "dataset_to_index": info.total_frames + length,
        }
        before = meta.stats
        self._rows.append(row)
        after = _Totals(
            InfoView.from_dict(info.to_dict()),
            numbers if before is None else extend_stats(before, numbers),
        )
        after.info.total_episodes += 1
        after.info.total_frames += length
        after.info.total_tasks = len(known)
        after.info.splits = {"train": f"0:{index + 1}"}
        try:
            self._write(after)
        except BaseException:
            self._rows.pop()
            raise
        info.update(after.info)
        meta.stats = after.stats
        meta.latest_episode = {name: [value] for name, value in row.items()}
        meta.forget_episodes()

    def _write(self, after: _Totals) -> None:
        """Commit this object's file, and what is true of the dataset with it."""
        table, root = _table(self._rows), self._meta.root

        def write(changes: Transaction) -> None:
            target = changes.new(self._files.name_of(self._files.upcoming))
            pq.write_table(table, target, compression="snappy")
            write_json(changes.new("meta/stats.json"), stats_to_json(after.stats))
            _write_info(changes, after.info.to_dict(), root)

        _commit(root, write)
        if len(self._rows) >= _MOST_ROWS:
            self._files.skip()
            self._rows = []


def _numbers(tasks: Any) -> dict[str, int]:
    return {str(text): int(number) for text, number in tasks["task_index"].items()}


def _place_of(path: Path) -> FilePlace:
    chunk, file = (part.rpartition("-")[2] for part in (path.parent.name, path.stem))
    if not (chunk.isdecimal() and file.isdecimal()):
        raise ArgumentError(
            "A file of meta/episodes has a name that no other can follow.", file=path
        )
    return FilePlace(int(chunk), int(file))


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows of episodes; what one lacks is missing in it."""
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [_plain(row.get(name)) for row in rows]
        try:
            columns[name] = pa.array(values, _TEXTS if name == "tasks" else None)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            what = str(error).splitlines()[0]
            raise ArgumentError(
                f"{name!r} of an episode is no column with those before ({what})."
            ) from error
    return pa.table(columns)


def _plain(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return np.atleast_1d(value).tolist()
    return value.item() if isinstance(value, np.generic) else value


def video_info(path: Path, encoder: Any, *, fps: float) -> dict[str, Any]:
    """Return what LeRobot notes of a video, and of the settings that it was encoded with."""
    seen, _ = probe(path)
    found: dict[str, Any] = {
        "video.height": seen.height,
        "video.width": seen.width,
        "video.codec": seen.codec,
        "video.pix_fmt": seen.pix_fmt,
        "video.fps": fps,
        "video.channels": 1 if (seen.pix_fmt or "").startswith("gray") else 3,
        "has_audio": tracks_of(open_video(path)).has_audio,
    }
    noted = asdict(encoder) if is_dataclass(encoder) and not isinstance(encoder, type) else {}
    for name, value in noted.items():
        if name != "vcodec":
            found.setdefault(f"video.{name}", value)
    return {**found, "is_depth_map": "depth_min" in noted}

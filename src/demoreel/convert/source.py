"""What a conversion needs to know of its source: which videos there are, and whether it changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.edit.recent_rows import rows_of_source
from demoreel.errors import ConversionError
from demoreel.layouts.base import Column, Reader
from demoreel.layouts.lance_out import FiledVideo
from demoreel.model import DEFAULT_FEATURES, Info

_MB = 1024 * 1024
ROWS_AT_ONCE = 1 << 16
"""Rows that are read in one go, if episodes are not longer."""

_PICTURE_SHARE = 4  # pixels' bytes that a lossless picture takes one byte for; a guess


@dataclass(frozen=True, slots=True)
class SourceVideo:
    """A video of the source.

    Attributes:
        camera: Its camera.
        chunk: The ``chunk_index`` that it will have.
        file: The ``file_index`` that it will have.
        position: An episode that lies in it.
        size: Its bytes.
    """

    camera: str
    chunk: int
    file: int
    position: int
    size: int

    def open(self, reader: Reader) -> FiledVideo:
        """Open it and read its table of packets.

        Raises:
            VideoError: It is missing or broken, or is not what the metadata say.
        """
        video = reader.clip(self.position, self.camera).video
        return FiledVideo(self.camera, self.chunk, self.file, video)


def episode_numbers(reader: Reader, info: Info) -> Mapping[str, np.ndarray]:
    """Return which file every episode lies in, by v3.0's names of the columns.

    v3.0 and the Lance layouts say so themselves. For v2.x, where every episode has files of its
    own, videos are numbered by episode, and rows are gathered in tables of the usual size.
    """
    found = reader.episode_columns()
    if "data/chunk_index" in found:
        return found
    episodes, size = reader.episodes, info.chunks_size
    rows_in_file = max(1, int(info.data_files_size_in_mb * _MB / _bytes_of_row(info)))
    table = np.unique(episodes.start[:-1] // rows_in_file, return_inverse=True)[1]
    position = np.arange(len(episodes))
    columns = dict(found)
    columns |= {"data/chunk_index": table // size, "data/file_index": table % size}
    columns |= {"dataset_from_index": episodes.start[:-1], "dataset_to_index": episodes.start[1:]}
    for camera in info.video_keys:
        columns |= {
            f"videos/{camera}/chunk_index": position // size,
            f"videos/{camera}/file_index": position % size,
            f"videos/{camera}/from_timestamp": np.zeros(len(episodes)),
            f"videos/{camera}/to_timestamp": episodes.length / info.fps,
        }
    return columns


def _bytes_of_row(info: Info) -> int:
    total = 0
    for feature in info.features.values():
        if feature.is_numeric:
            total += feature.numpy_dtype.itemsize * int(np.prod(feature.shape, dtype=np.int64))
        elif feature.is_image:
            total += int(np.prod(feature.shape, dtype=np.int64)) // _PICTURE_SHARE
    return max(total, 1)


def list_videos(reader: Reader, numbers: Mapping[str, np.ndarray]) -> list[SourceVideo]:
    """Return every video that an episode names, by camera, chunk and file.

    Cost: a stat for each, or, for videos that lie in Lance, a look at its row.

    Raises:
        VideoError: One is missing.
    """
    found = []
    for camera in reader.info.video_keys:
        if reader.in_tables(camera):
            continue
        chunk = numbers[f"videos/{camera}/chunk_index"].astype(np.int64)
        number = chunk << 32 | numbers[f"videos/{camera}/file_index"].astype(np.int64)
        for which, position in zip(*np.unique(number, return_index=True), strict=True):
            size = _size(reader, int(position), camera)
            found.append(
                SourceVideo(camera, int(which) >> 32, int(which) & 0xFFFFFFFF, int(position), size)
            )
    return found


def _size(reader: Reader, position: int, camera: str) -> int:
    try:
        return os.stat(reader.root / reader.video_file(position, camera)).st_size
    except OSError:  # it lies in Lance, or is not there: then this says so
        return reader.clip(position, camera).video.file.size


def identity(root: Path) -> str:
    """Return a text that changes when a file of the dataset does: by names, sizes and times."""
    digest = hashlib.sha256(os.path.realpath(root).encode())
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files):
            try:
                status = os.stat(os.path.join(folder, name))
            except OSError:
                continue  # gone again, or a link that leads nowhere
            place = os.path.relpath(os.path.join(folder, name), root)
            digest.update(repr((place, status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest()


def unchanged(root: Path, before: str) -> None:
    """Refuse a source that is not what it was when its conversion was planned.

    Raises:
        ConversionError: It has changed.
    """
    if identity(root) != before:
        raise ConversionError(
            "The source has changed while it was converted.",
            hint="convert it again when nobody writes to it",
            dataset=root,
        )


class Rows:
    """The rows of some episodes, all columns but the cameras', handed out in order.

    Args:
        reader: The dataset.
        first: Position of the first episode.
        stop: One past the position of the last.
    """

    def __init__(self, reader: Reader, first: int, stop: int) -> None:
        self._reader = reader
        self._portions = iter(list(portions(reader, first, stop, ROWS_AT_ONCE)))
        self.row = int(reader.episodes.start[first])
        self._columns: dict[str, Column] = {}
        self._begin = self._end = self.row

    def take(self, count: int) -> dict[str, Any]:
        """Return the next rows."""
        parts = []
        while count:
            if self.row == self._end:
                self._load()
            step = min(count, self._end - self.row)
            place = slice(self.row - self._begin, self.row - self._begin + step)
            parts.append({key: column[place] for key, column in self._columns.items()})
            self.row += step
            count -= step
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _load(self) -> None:
        first, stop = next(self._portions)
        self._columns = dict(rows_of_source(self._reader, first, stop))
        start = self._reader.episodes.start
        self._begin, self._end = int(start[first]), int(start[stop])
        for key, column in default_columns(self._reader, first, stop).items():
            self._columns.setdefault(key, column)


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        key: np.concatenate([part[key] for part in parts])
        if isinstance(parts[0][key], np.ndarray)
        else [value for part in parts for value in part[key]]
        for key in parts[0]
    }


def portions(reader: Reader, first: int, stop: int, at_once: int) -> Iterator[tuple[int, int]]:
    """Cut a stretch of episodes into stretches of about so many rows; at least one episode each."""
    start = reader.episodes.start
    while first < stop:
        end = int(np.searchsorted(start, start[first] + at_once, side="right")) - 1
        end = min(max(end, first + 1), stop)
        yield first, end
        first = end


def default_columns(reader: Reader, first: int, stop: int) -> dict[str, np.ndarray]:
    """Return the columns that every dataset should have, for those whose info.json lacks some."""
    if all(key in reader.info.features for key in DEFAULT_FEATURES):
        return {}
    episodes = reader.episodes
    length = episodes.length[first:stop]
    row = np.arange(int(episodes.start[first]), int(episodes.start[stop]))
    frame = row - np.repeat(episodes.start[first:stop], length)
    return {
        "timestamp": (frame / reader.info.fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.repeat(episodes.episode_index[first:stop], length),
        "index": row,
        "task_index": np.zeros(len(row), np.int64),
    }

"""Records which files hold which episodes while episodes are appended.

Every appended episode begins with files of its own: a table, a video per camera, a table of
metadata. Merging makes larger ones of neighbours. This is the book-keeping of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from demoreel.media.remux import Signature
from demoreel.model import Info

MB = 1024 * 1024
_MOST_IN_A_CHUNK = 1000
"""File names have three digits, and lerobot sorts them as text."""


class FilePlace(NamedTuple):
    """The chunk and the number of a file."""

    chunk: int
    file: int


@dataclass(frozen=True, slots=True)
class FileRun:
    """Neighbouring episodes that fill one file, in their order.

    Attributes:
        first: The first episode.
        stop: One past the last.
        place: The file.
        size: Its bytes.
        signature: What decides whether a video can be joined with another; None if not known.
        fixed: Whether the file must stay as it is.
    """

    first: int
    stop: int
    place: FilePlace
    size: int
    signature: Signature | None = None
    fixed: bool = False

    @property
    def episodes(self) -> int:
        """How many they are."""
        return self.stop - self.first


@dataclass(slots=True)
class Files:
    """The files of one kind: tables, one camera's videos, or the episodes' metadata.

    Attributes:
        prefix: Of the columns of ``meta/episodes`` that name the file.
        name_of: Path of a file, relative to the dataset's folder.
        limit: Bytes that a merged file has at most.
        per_chunk: Files in a chunk folder.
        upcoming: The next file that has never been used.
        runs: The files that were appended here, in the order of their episodes.
    """

    prefix: str
    name_of: Callable[[FilePlace], str]
    limit: int
    per_chunk: int
    upcoming: FilePlace = field(default_factory=lambda: FilePlace(0, 0))
    runs: list[FileRun] = field(default_factory=list)

    def after(self, place: FilePlace) -> FilePlace:
        """Return the place that follows."""
        if place.file + 1 >= self.per_chunk:
            return FilePlace(place.chunk + 1, 0)
        return FilePlace(place.chunk, place.file + 1)

    def skip(self) -> FilePlace:
        """Return the upcoming place, and continue to the next."""
        place = self.upcoming
        self.upcoming = self.after(place)
        return place

    def columns(self, place: FilePlace) -> dict[str, int]:
        """Return the columns that name a file."""
        return place_columns(self.prefix, place)

    def add(self, run: FileRun) -> None:
        """Count in a file that was just committed at the upcoming place."""
        assert run.place == self.upcoming
        self.skip()
        self.runs.append(run)


def files_of(info: Info) -> tuple[Files, dict[str, Files], Files]:
    """Return the books of the tables, of each camera's videos, and of the metadata; all empty."""
    per_chunk = min(info.chunks_size, _MOST_IN_A_CHUNK)
    data_limit = int(info.data_files_size_in_mb * MB)
    tables = Files(
        "data",
        lambda place: info.data_path.format(chunk_index=place.chunk, file_index=place.file),
        data_limit,
        per_chunk,
    )
    videos = {}
    for camera in info.video_keys:
        videos[camera] = Files(
            f"videos/{camera}",
            partial(_video_name, info, camera),
            int(info.video_files_size_in_mb * MB),
            per_chunk,
        )
    metadata = Files("meta/episodes", episodes_name, data_limit, per_chunk)
    return tables, videos, metadata


def place_columns(prefix: str, place: tuple[Any, Any]) -> dict[str, Any]:
    """Return the columns of ``meta/episodes`` that name a file, or as arrays, many files."""
    return {f"{prefix}/chunk_index": place[0], f"{prefix}/file_index": place[1]}


def episodes_name(place: FilePlace) -> str:
    """Return the path of a file under ``meta/episodes``."""
    return f"meta/episodes/chunk-{place.chunk:03d}/file-{place.file:03d}.parquet"


def _video_name(info: Info, camera: str, place: FilePlace) -> str:
    assert info.video_path is not None
    return info.video_path.format(video_key=camera, chunk_index=place.chunk, file_index=place.file)

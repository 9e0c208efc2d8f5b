"""What a conversion will do, known from metadata before a byte is written."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.convert.metadata import target_info
from demoreel.convert.options import Options, To, Verify
from demoreel.convert.source import SourceVideo, episode_numbers, identity, list_videos, portions
from demoreel.errors import ArgumentError
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance_out import named_after
from demoreel.media.picture_encode import PictureCodec
from demoreel.model import Info
from demoreel.storage.atomic import refuse_overlap

_FORMAT = 1  # of what is written; a change makes half-written conversions begin anew
_PART_BYTES = (64 << 20, 1 << 30)  # of video, smallest and largest
_MOST_PARTS = 64
_ROWS = 1 << 18
_ROWS_WITH_PICTURES = 1 << 12
_PLAIN_NAME = re.compile(r"[\w][\w.-]*")


@dataclass(frozen=True, slots=True)
class VideoPart:
    """Videos that are written together."""

    name: str
    videos: tuple[SourceVideo, ...]

    @property
    def size(self) -> int:
        """Bytes of them all."""
        return sum(video.size for video in self.videos)


@dataclass(frozen=True, slots=True)
class RowPart:
    """Rows that are written together: stretches of episodes, by position.

    Attributes:
        name: Its name.
        runs: First position and one past the last, of each stretch.
        number: In v3.0, chunk and file index of the table.
    """

    name: str
    runs: tuple[tuple[int, int], ...]
    number: tuple[int, int] | None = None


@dataclass(frozen=True)
class Plan:
    """A conversion.

    Attributes:
        reader: The source.
        target: The folder to make.
        to: Its layout.
        table: Name of its table of rows; empty where the layout has fixed names.
        raw_info: Its ``info.json``.
        info: The same, checked.
        numbers: Where each episode lies in it.
        codec: How lance-frames' pictures are encoded; None for other layouts.
        link: Whether videos stay where they are.
        verify: How much is compared with the source.
        video_parts: Its videos.
        row_parts: Its rows, in order.
        source_identity: Changes when a file of the source does.
        fingerprint: Equal for two plans only if they write the same.
    """

    reader: Reader
    target: Path
    to: To
    table: str
    raw_info: Mapping[str, Any]
    info: Info
    numbers: Mapping[str, np.ndarray]
    codec: PictureCodec | None
    link: bool
    verify: Verify
    video_parts: tuple[VideoPart, ...]
    row_parts: tuple[RowPart, ...]
    source_identity: str
    fingerprint: str

    @property
    def frames(self) -> int:
        """Rows."""
        return self.reader.episodes.total_frames

    @property
    def videos(self) -> list[SourceVideo]:
        """All videos, in order."""
        return [video for part in self.video_parts for video in part.videos]

    @property
    def video_bytes(self) -> int:
        """Bytes of video to be copied: none if they are linked."""
        return 0 if self.link else sum(part.size for part in self.video_parts)

    @property
    def parts(self) -> int:
        """Into how many parts the work is cut."""
        return len(self.row_parts) + len(self.video_parts)

    def rows_of(self, part: RowPart) -> int:
        """Return how many rows a part has."""
        start = self.reader.episodes.start
        return int(sum(start[stop] - start[first] for first, stop in part.runs))


def make_plan(source: Path, target: Path, options: Options) -> Plan:
    """Open the source, refuse what cannot be, and plan the rest.

    Raises:
        ArgumentError: The source cannot become that, or the options do not go together.
        DemoreelError: The source is not readable.
    """
    to, link = options.to, options.link
    reader = open_reader(source)
    refuse_overlap(source, target)
    codec = _codec(reader, options)
    _refuse_impossible(reader, to, link)
    table = _table_name(source, to, options.table_name)
    raw = target_info(reader, to)
    info = Info.from_json(raw, where=str(target / "meta" / "info.json"))
    numbers = episode_numbers(reader, info)
    videos = [] if to == "lance-frames" else list_videos(reader, numbers)
    seen = identity(source)
    return Plan(
        reader=reader,
        target=target,
        to=to,
        table=table,
        raw_info=raw,
        info=info,
        numbers=numbers,
        codec=codec,
        link=link,
        verify=options.verify,
        video_parts=tuple(_video_parts(videos)),
        row_parts=tuple(_row_parts(reader, to, info, numbers)),
        source_identity=seen,
        fingerprint=_fingerprint(seen, to, table, link, str(codec), options.verify),
    )


def _fingerprint(*what: object) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, *what]).encode()).hexdigest()


def _codec(reader: Reader, options: Options) -> PictureCodec | None:
    if options.to != "lance-frames":
        refuse_codec(options)
        return None
    filmed = [key for key in reader.info.cameras if not reader.in_tables(key)]
    name = options.image_codec or ("jpeg" if filmed else "source")
    codec = PictureCodec(name, options.jpeg_quality, options.jpeg_subsampling)
    if codec.name == "source" and filmed:
        raise ArgumentError(
            f"The pictures of {filmed[0]!r} lie in videos: there are no source pictures to keep.",
            hint="choose jpeg, png or webp-lossless; or lance-video, which keeps the videos",
            dataset=reader.root,
        )
    return codec


def refuse_codec(options: Options) -> None:
    """Refuse to encode pictures anew where they stay as they are.

    Raises:
        ArgumentError: A codec is asked for.
    """
    if options.image_codec is not None:
        raise ArgumentError(
            f"image_codec is for lance-frames; {options.to} keeps pictures and videos as they are.",
            hint="leave it out",
        )


def _refuse_impossible(reader: Reader, to: To, link: bool) -> None:
    filmed = [key for key in reader.info.cameras if not reader.in_tables(key)]
    if to == "lance-video" and reader.info.cameras and not filmed:
        raise ArgumentError(
            "This dataset's pictures lie in its tables; it has no videos for lance-video to keep.",
            hint="convert it to lance-frames",
            dataset=reader.root,
        )
    if link and to not in ("lance-video", "lance-native"):
        raise ArgumentError(f"{to} has no videos that could stay where they are (link).")
    if link and not filmed:
        raise ArgumentError("This dataset has no videos that could be linked.", dataset=reader.root)


def _table_name(source: Path, to: To, wanted: str | None) -> str:
    if to in ("lance-native", "v3.0"):
        if wanted is not None:
            raise ArgumentError(f"{to} has no table that could be named.", hint="leave it out")
        return ""
    if wanted is None:
        return named_after(Path(os.path.realpath(source)).name)
    if not _PLAIN_NAME.fullmatch(wanted) or wanted.endswith(("_videos", ".lance")):
        raise ArgumentError(
            f"A table cannot be named {wanted!r}.",
            hint="letters, digits, '_', '-' and '.'; not ending in _videos or .lance",
        )
    return wanted


def _video_parts(videos: Sequence[SourceVideo]) -> Iterator[VideoPart]:
    smallest, largest = _PART_BYTES
    total = sum(video.size for video in videos)
    limit = min(max(total // _MOST_PARTS, smallest), largest)
    waiting: list[SourceVideo] = []
    number = held = 0
    for video in videos:
        if waiting and held + video.size > limit:
            yield VideoPart(f"videos-{number:05d}", tuple(waiting))
            waiting, number, held = [], number + 1, 0
        waiting.append(video)
        held += video.size
    if waiting:
        yield VideoPart(f"videos-{number:05d}", tuple(waiting))


def _row_parts(
    reader: Reader, to: To, info: Info, numbers: Mapping[str, np.ndarray]
) -> Iterator[RowPart]:
    if to == "v3.0":
        yield from _table_parts(numbers)
        return
    heavy = to == "lance-frames" or bool(info.image_keys)
    at_once = _ROWS_WITH_PICTURES if heavy else _ROWS
    for number, run in enumerate(portions(reader, 0, len(reader.episodes), at_once)):
        yield RowPart(f"rows-{number:05d}", (run,))


def _table_parts(numbers: Mapping[str, np.ndarray]) -> Iterator[RowPart]:
    """One part for each parquet file: its episodes, as stretches of those side by side."""
    chunk = numbers["data/chunk_index"].astype(np.int64)
    which = chunk << 32 | numbers["data/file_index"].astype(np.int64)
    order = np.argsort(which, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
        number = int(which[group[0]])
        runs = np.split(group, np.flatnonzero(np.diff(group) != 1) + 1)
        yield RowPart(
            f"data-{number >> 32:03d}-{number & 0xFFFFFFFF:03d}",
            tuple((int(run[0]), int(run[-1]) + 1) for run in runs),
            (number >> 32, number & 0xFFFFFFFF),
        )

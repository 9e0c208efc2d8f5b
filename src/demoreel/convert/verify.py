"""Reading a conversion back, before it is shown to anyone, and comparing it with its source.

Everything that is carried over verbatim is compared as a whole: numbers, texts, the bytes of videos
and of encoded pictures. Bytes of video are compared as they are copied (``compare_copy``), so that
the disk has work meanwhile; here, only those that an earlier attempt had copied. Pictures that were
encoded anew are compared by a sample of decoded frames: bit for bit, or for JPEG by how far their
brightness is off.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.convert.compare import (
    compare_frames,
    differs,
    same_column,
    sampled,
    unreadable,
)
from demoreel.convert.plan import Plan
from demoreel.convert.progress import Meter
from demoreel.convert.report import Verified
from demoreel.convert.source import ROWS_AT_ONCE, SourceVideo, portions
from demoreel.edit.recent_rows import rows_of_source
from demoreel.errors import ConversionError, DemoreelError
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance_reader import LanceReader
from demoreel.read.transcode import MOST_ROWS
from demoreel.storage.same_bytes import Comparer

_GLIMPSE = 1 << 12
_SAMPLED_FRAMES = 8
_SAMPLED_OF_THE_SAME_BYTES = 2  # of videos that were compared byte for byte


def verify(
    plan: Plan, folder: Path, meter: Meter, pool: Executor, compared: Collection[str]
) -> Verified:
    """Compare what was written with its source.

    Cost: reads every row of both, every byte of video of both that was not compared yet, and
    decodes a few frames; a sample reads a few episodes' rows, and the ends of every video.

    Args:
        plan: What was to be written.
        folder: Where it was.
        meter: Counts what was compared.
        pool: Threads that compare videos and frames.
        compared: Parts of video that were compared when they were copied.

    Raises:
        ConversionError: Something is not the same.
    """
    try:
        written = open_reader(folder)
        check = _Check(plan, written, meter, full=plan.verify == "full")
        check.metadata()
        looked = pool.submit(check.frames)
        videos = [
            pool.submit(check.video, video, again=part.name not in compared)
            for part in plan.video_parts
            for video in part.videos
        ]
        rows = check.rows()
        pictures = check.pictures()
        check.clips()
        frames, psnr = looked.result()
        size = sum(job.result() for job in videos)
    except ConversionError:
        raise
    except DemoreelError as error:
        raise unreadable(error, **error.where) from error
    return Verified(rows, len(videos), size, pictures, frames, psnr)


class _Check:
    """Two readers of what should be the same."""

    def __init__(self, plan: Plan, written: Reader, meter: Meter, *, full: bool) -> None:
        self._plan = plan
        self._source = plan.reader
        self._written = written
        self._meter = meter
        self._full = full

    def metadata(self) -> None:
        """Compare layout, episodes, tasks and features, and count the rows."""
        source, written = self._source, self._written
        same: dict[str, tuple[Any, Any]] = {
            "layout": (self._plan.to, written.layout),
            "episodes": (
                (source.episodes.episode_index.tolist(), source.episodes.length.tolist()),
                (written.episodes.episode_index.tolist(), written.episodes.length.tolist()),
            ),
            "tasks": (dict(source.tasks), dict(written.tasks)),
            "features": (set(self._plan.info.features), set(written.info.features)),
        }
        if isinstance(written, LanceReader):
            rows = written.tables["frames"].count_rows()
            same["rows"] = (source.episodes.total_frames, rows)
        for what, (wanted, found) in same.items():
            if wanted != found:
                raise self._differs(f"The {what} differ")

    def rows(self) -> int:
        """Compare numbers and texts, and return of how many rows."""
        compared = 0
        for first, stop in self._stretches():
            left = rows_of_source(self._source, first, stop)
            right = self._written.rows_once(first, stop)
            for key in left:
                if not same_column(left[key], right[key]):
                    raise self._differs(
                        f"Column {key!r} differs", episodes=f"{first} to {stop - 1}"
                    )
            count = int(self._source.episodes.start[stop] - self._source.episodes.start[first])
            self._meter.add_frames(count)
            compared += count
        return compared

    def _stretches(self) -> list[tuple[int, int]]:
        """Return the episodes to compare: all, or some."""
        total = len(self._source.episodes)
        if self._full:
            return list(portions(self._source, 0, total, ROWS_AT_ONCE))
        return [(position, position + 1) for position in sampled(total)]

    def pictures(self) -> int:
        """Compare encoded pictures that were to stay as they are, and return how many."""
        codec = self._plan.codec
        kept = codec is None or codec.name == "source"
        cameras = [key for key in self._plan.info.cameras if kept and self._source.in_tables(key)]
        start = self._source.episodes.start
        compared = 0
        for camera in cameras:
            for first, stop in self._stretches():
                for at in range(int(start[first]), int(start[stop]), MOST_ROWS):
                    self._meter.check()
                    rows = np.arange(at, min(at + MOST_ROWS, int(start[stop])))
                    if self._source.encoded(rows, camera) != self._written.encoded(rows, camera):
                        raise self._differs("Encoded pictures differ", camera=camera, row=at)
                    compared += len(rows)
        return compared

    def video(self, video: SourceVideo, *, again: bool) -> int:
        """Compare a video with its source, and return how many bytes of it were compared.

        That it is found in its new layout is seen by its ends; its bytes are compared if they
        have not been yet.
        """
        left = video.open(self._source).video
        right = self._reread(video)
        if left.file.size != right.size:
            raise self._differs("A video has another size", file=left.name)
        size = left.file.size
        glimpse = min(_GLIMPSE, size)
        for at in (0, size - glimpse):
            if left.file.read(at, glimpse) != right.read(at, glimpse):
                raise self._differs("A video's bytes differ", file=left.name, offset=at)
        if self._plan.link:  # the same file: it is enough that it is found
            return 2 * glimpse
        if again and self._full:
            self._compare_again(video)
        self._meter.add_bytes(size)
        return size if self._full else 2 * glimpse

    def _compare_again(self, video: SourceVideo) -> None:
        # Not through Lance, which reads at a fraction of the disk's speed: it has shown where.
        left = video.open(self._source).video
        copy = self._written.clip(video.position, video.camera).video.file
        different = Comparer().first_difference(
            left.file, 0, copy, 0, left.file.size, watch=lambda _: self._meter.check()
        )
        if different is not None:
            raise self._differs("A video's bytes differ", file=left.name, offset=different)

    def _reread(self, video: SourceVideo) -> Any:
        """Return a written video's bytes: through Lance itself where it lies there."""
        if isinstance(self._written, LanceReader):
            return self._written.blob(video.camera, video.chunk, video.file)
        return self._written.clip(video.position, video.camera).video.file

    def clips(self) -> None:
        """Count the frames of every video against the episodes that lie in it."""
        for camera in self._written.info.cameras:
            if self._written.in_tables(camera):
                continue
            for position in range(len(self._written.episodes)):
                self._meter.check()
                left = self._source.clip(position, camera)
                right = self._written.clip(position, camera)
                if left.first != right.first or left.video.index.frames != right.video.index.frames:
                    raise self._differs("A video has other frames", camera=camera)

    def frames(self) -> tuple[int, float | None]:
        """Compare a sample of decoded frames; return how many, and the worst PSNR of JPEG."""
        codec = self._plan.codec
        wanted = _SAMPLED_FRAMES if codec is not None else _SAMPLED_OF_THE_SAME_BYTES
        return compare_frames(
            self._source, self._written, frames=wanted, codec=codec, check=self._meter.check
        )

    def _differs(self, what: str, **where: Any) -> ConversionError:
        return differs(what, dataset=self._source.root, **where)

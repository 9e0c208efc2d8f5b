"""Reading a conversion back, before it is shown to anyone, and comparing it with its source.

Everything that is carried over verbatim is compared as a whole: numbers, texts, the bytes of videos
and of encoded pictures. Pictures that were encoded anew are compared by a sample of decoded frames:
bit for bit, or for JPEG by how far their brightness is off.
"""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.convert.plan import Plan
from demoreel.convert.progress import Meter
from demoreel.convert.report import Verified
from demoreel.convert.source import SourceVideo, portions
from demoreel.errors import ConversionError, DemoreelError
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance_reader import LanceReader
from demoreel.read.dataset import Dataset
from demoreel.read.transcode import MOST_ROWS

_ROWS_AT_ONCE = 1 << 16
_BYTES_AT_ONCE = 2 << 20  # larger ones leave the processor's cache
_GLIMPSE = 1 << 12
_SAMPLED_FRAMES = 8
_SAMPLED_OF_THE_SAME_BYTES = 3  # of videos that were compared byte for byte
_LUMA = np.array([0.299, 0.587, 0.114])
_HINT = "nothing was kept; the disk or the memory may be at fault: try again"


def verify(plan: Plan, folder: Path, meter: Meter, pool: Executor) -> Verified:
    """Compare what was written with its source.

    Cost: reads every row of both, every byte of video of both, and decodes a few frames.

    Args:
        plan: What was to be written.
        folder: Where it was.
        meter: Counts what was compared.
        pool: Threads that compare videos.

    Raises:
        ConversionError: Something is not the same.
    """
    try:
        written = open_reader(folder)
        check = _Check(plan, written, meter)
        check.metadata()
        videos = [pool.submit(check.video, video) for video in plan.videos]
        rows = check.rows()
        pictures = check.pictures()
        check.clips()
        frames, psnr = check.frames(folder)
        compared = sum(job.result() for job in videos)
    except ConversionError:
        raise
    except DemoreelError as error:
        raise ConversionError(
            f"What was written cannot be read back: {error.what}", hint=_HINT, **error.where
        ) from error
    return Verified(rows, len(videos), compared, pictures, frames, psnr)


class _Check:
    """Two readers of what should be the same."""

    def __init__(self, plan: Plan, written: Reader, meter: Meter) -> None:
        self._plan = plan
        self._source = plan.reader
        self._written = written
        self._meter = meter

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
        """Compare all numbers and texts, and return how many rows there were."""
        for first, stop in portions(self._source, 0, len(self._source.episodes), _ROWS_AT_ONCE):
            left = self._source.rows_once(first, stop)
            right = self._written.rows_once(first, stop)
            for key in left:
                if not _equal(left[key], right[key]):
                    raise self._differs(
                        f"Column {key!r} differs", episodes=f"{first} to {stop - 1}"
                    )
            count = int(self._source.episodes.start[stop] - self._source.episodes.start[first])
            self._meter.add_frames(count)
        return self._source.episodes.total_frames

    def pictures(self) -> int:
        """Compare encoded pictures that were to stay as they are, and return how many."""
        codec = self._plan.codec
        kept = codec is None or codec.name == "source"
        cameras = [key for key in self._plan.info.cameras if kept and self._source.in_tables(key)]
        total = self._source.episodes.total_frames
        for camera in cameras:
            for at in range(0, total, MOST_ROWS):
                self._meter.check()
                rows = np.arange(at, min(at + MOST_ROWS, total))
                if self._source.encoded(rows, camera) != self._written.encoded(rows, camera):
                    raise self._differs("Encoded pictures differ", camera=camera, row=at)
        return len(cameras) * total

    def video(self, video: SourceVideo) -> int:
        """Compare a video's bytes, read through its new layout, and return how many."""
        left = video.open(self._source).video
        right = self._reread(video)
        if left.file.size != right.size:
            raise self._differs("A video has another size", file=left.name)
        size = left.file.size
        if self._plan.link:  # the same file: it is enough that it is found
            ranges = [(0, min(_GLIMPSE, size)), (max(0, size - _GLIMPSE), min(_GLIMPSE, size))]
        else:
            ranges = [(at, min(_BYTES_AT_ONCE, size - at)) for at in range(0, size, _BYTES_AT_ONCE)]
        for at, length in ranges:
            if left.file.read(at, length) != right.read(at, length):
                raise self._differs("A video's bytes differ", file=left.name, offset=at)
            if not self._plan.link:
                self._meter.add_bytes(length)
        return sum(length for _, length in ranges)

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

    def frames(self, folder: Path) -> tuple[int, float | None]:
        """Compare a sample of decoded frames; return how many, and the worst PSNR of JPEG."""
        if not self._source.info.cameras:
            return 0, None
        left, right = Dataset(self._source.root), Dataset(folder)
        total, codec = len(left), self._plan.codec
        wanted = _SAMPLED_FRAMES if codec is not None else _SAMPLED_OF_THE_SAME_BYTES
        random = np.random.default_rng(0).integers(0, total, wanted - 2)
        chosen = np.unique([0, total - 1, *random.tolist()])
        lossy = codec is not None and codec.name == "jpeg"
        worst: float | None = None
        for row in chosen.tolist():
            self._meter.check()
            one, other = left[row], right[row]
            for camera in self._source.info.cameras:
                if not lossy or self._source.info.features[camera].is_depth:
                    if not np.array_equal(one[camera], other[camera], equal_nan=True):
                        raise self._differs("A decoded frame differs", camera=camera, row=row)
                    continue
                assert codec is not None
                near = _luma_psnr(one[camera], other[camera])
                worst = near if worst is None else min(worst, near)
                if near < _lowest_psnr(codec.quality):
                    raise self._differs(
                        f"A picture is too far from its source ({near:.1f} dB)",
                        camera=camera,
                        row=row,
                    )
        return len(chosen) * len(self._source.info.cameras), worst

    def _differs(self, what: str, **where: Any) -> ConversionError:
        return ConversionError(
            f"{what} between the source and what was written.",
            hint=_HINT,
            dataset=self._source.root,
            **where,
        )


def _equal(left: Any, right: Any) -> bool:
    if not isinstance(left, np.ndarray):
        return bool(left == right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    # As bytes: not-a-number equals itself then, and minus zero is not zero.
    one, other = np.ascontiguousarray(left), np.ascontiguousarray(right)
    return bool(np.array_equal(one.view(np.uint8), other.view(np.uint8))) if one.size else True


def _luma_psnr(left: np.ndarray, right: np.ndarray) -> float:
    """Return how near two pictures' brightness is, in dB; JPEG may coarsen colours at will."""
    if left.shape != right.shape:
        return 0.0
    difference = np.tensordot(_LUMA, left.astype(np.float64) - right, axes=(0, 0))
    error = float(np.mean(difference**2))
    return 99.0 if error == 0 else float(min(99.0, 10 * np.log10(255**2 / error)))


def _lowest_psnr(quality: int) -> float:
    """Return what JPEG of this quality reaches even on noise, with room to spare."""
    return 25.0 if quality >= 90 else 15.0 if quality >= 50 else 8.0

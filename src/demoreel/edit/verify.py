"""Reads a result back before it appears, and compares it with its sources.

Both are read as any reader would: every column of every row, and the bytes of every frame, found
through the metadata of each. Files and numbers may be others; rows, tasks and frames are not. Whole
videos were compared when they were copied (``compare_copy``); here, only those that an earlier
attempt had copied. What was re-encoded is compared by its pixels: frames of videos one by one,
images by a sample, bit for bit, or for JPEG by their brightness.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from demoreel.edit.compare import (
    compare_frames,
    differs,
    is_encoded,
    same_column,
    sampled,
    shows_the_same,
    unreadable,
)
from demoreel.edit.labels import labelled_keys
from demoreel.edit.plan import Plan
from demoreel.edit.sources import rows_of_source
from demoreel.edit.tables import default_columns
from demoreel.edit.tasks import copied_by
from demoreel.edit.verbatim import portions
from demoreel.edit.video_plan import VideoOut
from demoreel.errors import ConversionError, DemoreelError, refuse_shortage
from demoreel.layouts.base import Column, Reader
from demoreel.layouts.columns import FEW_BYTES, image_steps
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance.reader import LanceReader
from demoreel.media.images import ImageCodec
from demoreel.media.video import VideoClip
from demoreel.model import Feature
from demoreel.run.task import Engine, Task
from demoreel.stats.rows import ParquetTables, ResultRows
from demoreel.storage.local import Comparer

Verify = Literal["ends", "sample", "full", "none"]
"""How much is compared: the first and last frame of every clip, some clips, all, or nothing."""

_MANY = 1 << 20  # rows, whose numbers take longer to read than a process to start
_NUMBERED = ("episode_index", "frame_index", "index", "task_index")
_ROWS_AT_ONCE = 1 << 13
_ROWS_OF_LANCE = 1 << 16  # of which a read takes long to begin
_IMAGES_AT_ONCE = 256
_EPISODES_IN_JOB = 16
_SAMPLED_FRAMES = 8
_SAMPLED_OF_THE_SAME_BYTES = 2
_GLIMPSE = 1 << 12
_TELL_EVERY = 0.1  # seconds
_SHARES = 3  # for each job, so that the slowest is not waited for long


class VerifyProgress(Protocol):
    """What hears how far a comparison is, and may stop it."""

    def check(self) -> None:
        """Raise to stop."""

    def add_frames(self, count: int) -> None:
        """Count rows that were compared."""

    def add_bytes(self, count: int) -> None:
        """Count bytes of video that were compared."""

    def tell(self) -> None:
        """Say how far it is; called in the thread that verifies."""


class _Silent:
    def check(self) -> None: ...

    def add_frames(self, count: int) -> None: ...

    def add_bytes(self, count: int) -> None: ...

    def tell(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read back and found to be the same.

    Attributes:
        rows: Rows whose numbers and texts were compared, all of them.
        videos: Videos whose frames were counted and whose bytes were compared.
        video_bytes: Bytes compared.
        images: Encoded images compared byte for byte.
        frames: Decoded frames compared, in all cameras.
        lowest_psnr: Of images that a lossy codec made again, the worst brightness PSNR in dB; None
            where frames had to be equal bit for bit.
    """

    rows: int
    videos: int
    video_bytes: int
    pictures: int
    frames: int
    lowest_psnr: float | None


def verify_rows(
    plan: Plan, result: Reader, rows: ResultRows, *, full: bool, engine: Engine | None = None
) -> None:
    """Check that the result's rows are numbered as planned; in full, compare all values.

    Cost: reads four columns; in full, all rows twice.

    Args:
        plan: The plan.
        result: The result, open.
        rows: Its rows.
        full: Whether to compare all values.
        engine: What shares the reading of numbers out; None is this process.
    """
    _same("episodes", len(result.episodes), len(plan.clips))
    _same("frames", result.episodes.total_frames, int(plan.start[-1]))
    _check_numbers(plan, rows, set(result.tasks), engine)
    comparison = _Comparison(plan, result, _Silent())
    for first, stop in comparison.spans(range(len(plan.clips) if full else 0)):
        comparison.rows(first, stop)
        comparison.images(first, stop)


def verify_videos(plan: Plan, result: Reader, *, full: bool) -> None:
    """Compare the packets of the result's clips with the sources': the first and last, or all.

    Frames that were re-encoded are decoded and compared by PSNR.

    Cost: two small reads for each clip and camera; in full, all videos are read twice.
    """
    comparison = _Comparison(plan, result, _Silent())
    for camera in plan.video_plans:
        comparison.packets(camera, range(len(plan.clips)), ends=not full)


def verify_items(
    plan: Plan,
    dataset: Path,
    watch: VerifyProgress,
    pool: Executor,
    written: Collection[str],
    *,
    full: bool,
) -> Verified:
    """Compare a result with its only source, of which it has whole episodes.

    Cost: reads every row and every packet of both, and decodes a few frames; a sample reads those
    of a few episodes, and the ends of whole videos.
    """
    try:
        return _Comparison(plan, open_reader(dataset), watch).verify(pool, written, full=full)
    except ConversionError:
        raise
    except DemoreelError as error:
        refuse_shortage(error)
        raise unreadable(error, **error.where) from error


class _Comparison:
    """A result and its sources, open."""

    def __init__(self, plan: Plan, written: Reader, watch: VerifyProgress) -> None:
        self._plan = plan
        self._verbatim = plan.verbatim is not None
        self._written = written
        self._watch = watch
        self._positions = plan.positions.tolist()
        self._in_order = threading.Lock()

    def verify(self, pool: Executor, written: Collection[str], *, full: bool) -> Verified:
        """Compare all of it, or a sample, in several threads."""
        self._metadata()
        plan = self._plan
        chosen = range(len(self._positions)) if full else sampled(len(self._positions))
        looked: Future[tuple[int, float | None]] | None = None
        if plan.is_unchanged:
            looked = pool.submit(self._frames)
        if self._verbatim:
            packets = [
                partial(self._whole, video, full=full, again=full and task not in written)
                for task, video in copied_by(plan)
            ]
            packets += [partial(self._places, camera) for camera in plan.video_plans]
        else:
            packets = [
                partial(self.packets, camera, chosen[at : at + _EPISODES_IN_JOB])
                for camera in plan.video_plans
                for at in range(0, len(chosen), _EPISODES_IN_JOB)
            ]
        # In turn: comparing bytes leaves the interpreter to the threads that compare rows.
        videos: list[Future[int]] = []
        tables: list[Future[tuple[int, int]]] = []
        for span, video in itertools.zip_longest(self.spans(chosen), packets):
            tables += [pool.submit(self._table, *span)] if span is not None else []
            videos += [pool.submit(video)] if video is not None else []
        self._wait([*tables, *videos, *([looked] if looked is not None else [])])
        counts = [job.result() for job in tables]
        frames, psnr = looked.result() if looked is not None else (0, None)
        return Verified(
            rows=sum(rows for rows, _ in counts),
            videos=len(plan.videos),
            video_bytes=sum(job.result() for job in videos),
            pictures=sum(images for _, images in counts),
            frames=frames,
            lowest_psnr=psnr,
        )

    def _wait(self, jobs: list[Future[Any]]) -> None:
        """Wait for threads, and say now and then how far they are."""
        pending = set(jobs)
        while pending:
            done, pending = wait(pending, timeout=_TELL_EVERY, return_when=FIRST_COMPLETED)
            for job in done:
                job.result()
            self._watch.tell()

    def _table(self, first: int, stop: int) -> tuple[int, int]:
        rows = self.rows(first, stop)
        with self._in_order:  # of a large row group, a step back costs a fresh start
            return rows, self.images(first, stop)

    def _metadata(self) -> None:
        plan, written, info = self._plan, self._written, self._written.info
        source = plan.readers[0]
        lengths = np.diff(plan.start).tolist()
        numbers = source.episodes.episode_index if self._verbatim else np.arange(len(lengths))
        same: dict[str, tuple[Any, Any]] = {
            "layout": (plan.layout, written.layout),
            "episodes": (lengths, written.episodes.length.tolist()),
            "numbers of episodes": (numbers.tolist(), written.episodes.episode_index.tolist()),
            "features": (set(plan.info.features), set(info.features)),
            "totals": ((len(lengths), sum(lengths)), (info.total_episodes, info.total_frames)),
        }
        if self._verbatim:
            same["tasks"] = dict(source.tasks), dict(written.tasks)
        if isinstance(written, LanceReader):
            same["rows"] = sum(lengths), written.tables["frames"].count_rows()
        for what, (wanted, found) in same.items():
            if wanted != found:
                raise differs(f"The {what} differ", dataset=source.root)

    # Rows

    def spans(self, chosen: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield spans of chosen clips whose rows stand side by side in a source, too."""
        if not len(chosen):
            return
        numbers = np.array(chosen)
        places = np.array(self._positions)[numbers]
        sources = np.array([self._plan.clips[number].source for number in chosen])
        apart = ~np.array([self._is_plain(number) for number in chosen])
        breaks = (np.diff(numbers) != 1) | (np.diff(places) != 1) | (np.diff(sources) != 0)
        breaks |= apart[:-1] | apart[1:]
        for group in np.split(np.arange(len(numbers)), np.flatnonzero(breaks) + 1):
            first, stop = int(places[group[0]]), int(places[group[-1]]) + 1
            moved = int(numbers[group[0]]) - first
            reader = self._plan.readers[int(sources[group[0]])]
            most = _ROWS_OF_LANCE if isinstance(self._written, LanceReader) else _ROWS_AT_ONCE
            for begin, end in portions(reader, first, stop, most):
                yield begin + moved, end + moved

    def _is_plain(self, number: int) -> bool:
        """Whether a clip is a whole episode, at its own rate, with its own tasks."""
        clip, reader = self._plan.clips[number], self._plan.readers[self._plan.clips[number].source]
        length = int(reader.episodes.length[self._positions[number]])
        whole = self._plan.frames[number] == range(length)
        own = clip.task is None and clip.labels is None
        return whole and own and reader.info.fps == self._plan.info.fps

    def rows(self, first: int, stop: int) -> int:
        """Compare the rows of the clips ``first`` to ``stop`` - 1; return how many."""
        plan, clip = self._plan, self._plan.clips[first]
        reader, view = plan.readers[clip.source], plan.views[clip.source]
        begin = self._positions[first]
        theirs = default_columns(reader, begin, begin + stop - first)
        theirs.update(rows_of_source(reader, begin, begin + stop - first))
        plain = self._is_plain(first)
        if not plain:
            theirs = {key: _chosen(column, plan.frames[first]) for key, column in theirs.items()}
        numbered = {} if self._verbatim else self._numbered(first, stop)
        labelled = labelled_keys(clip.labels)
        for key, column in self._written.rows_once(first, stop).items():
            same = True
            if key in labelled:
                continue  # it is what was said, and not what the source has
            if key in numbered:
                same = same_column(column, numbered[key])
            elif key == "task_index" and not self._verbatim:
                same = self._same_tasks(column, theirs[key], first)
            elif key == "timestamp" and isinstance(column, np.ndarray) and not self._verbatim:
                same = not plain or same_column(column, np.asarray(theirs[key], column.dtype))
            elif plain or not plan.info.features[key].is_language:  # which is moved in time
                origin = key if self._verbatim else view.origin.get(key)
                same = origin is None or same_column(column, theirs[origin])
            if not same:
                raise differs(
                    f"Column {key!r} differs",
                    dataset=reader.root,
                    episodes=f"{first} to {stop - 1}",
                )
        count = int(plan.start[stop] - plan.start[first])
        self._watch.add_frames(count)
        return count

    def _numbered(self, first: int, stop: int) -> dict[str, np.ndarray]:
        """Return the columns that count from 0, whatever the source's did."""
        start = self._plan.start
        index = np.arange(int(start[first]), int(start[stop]))
        lengths = np.diff(start[first : stop + 1])
        return {
            "index": index,
            "episode_index": np.repeat(np.arange(first, stop), lengths),
            "frame_index": index - np.repeat(start[first:stop], lengths),
        }

    def _same_tasks(self, mine: Column, theirs: Column, number: int) -> bool:
        """Whether every row has the text that it should, whatever its number."""
        clip = self._plan.clips[number]
        changes = self._plan.cutlist.sources[clip.source].tasks
        own, places = np.unique(np.asarray(mine), return_inverse=True)
        texts = np.array(self._written.tasks.texts(own), object)[places.reshape(-1)]
        if clip.task is not None:
            return bool((texts == clip.task).all())
        other, places = np.unique(np.asarray(theirs), return_inverse=True)
        wanted = [changes.get(t, t) for t in self._plan.readers[clip.source].tasks.texts(other)]
        return bool(np.array_equal(texts, np.array(wanted, object)[places.reshape(-1)]))

    def images(self, first: int, stop: int) -> int:
        """Compare the encoded images that were to stay as they are; return how many."""
        plan, clip = self._plan, self._plan.clips[first]
        reader, view = plan.readers[clip.source], plan.views[clip.source]
        every = np.arange(int(plan.start[first]), int(plan.start[stop]))
        theirs = int(reader.episodes.start[self._positions[first]]) + every - every[0]
        if not self._is_plain(first):
            theirs = int(reader.episodes.start[self._positions[first]]) + np.array(
                plan.frames[first]
            )
        cameras = {key: origin for key in self._kept_images if (origin := view.origin.get(key))}
        for camera, origin in cameras.items():
            for at, to in image_steps(
                self._written.encoded, every, [camera], _IMAGES_AT_ONCE, most_bytes=FEW_BYTES
            ):
                self._watch.check()
                own = self._written.encoded(every[at:to], camera)
                if own != reader.encoded(theirs[at:to], origin):
                    where = {"camera": camera, "row": int(every[at]), "dataset": reader.root}
                    raise differs("Encoded images differ", **where)
        return len(cameras) * len(every)

    @property
    def _kept_images(self) -> list[str]:
        """The cameras whose encoded images were to stay as they are."""
        if self._plan.layout != "lance-frames":
            return list(self._plan.info.image_keys)
        return list(self._plan.info.cameras) if self._codec is None else []

    @property
    def _codec(self) -> ImageCodec | None:
        """How images were re-encoded; None if they were not."""
        codec = self._plan.form.images_as
        return None if codec.name == "source" else codec

    # Videos

    def _whole(self, video: VideoOut, *, full: bool, again: bool) -> int:
        """Compare a video that was to stay as it is, and return how many bytes of it.

        That it is found in its new layout is seen by its ends; its bytes are compared if they
        have not been yet.
        """
        source = self._plan.readers[0]
        left = source.clip(video.episode, video.camera).video
        where = {"dataset": source.root, "file": left.name}
        if again and video.whole != "linked":
            # Not through Lance, which reads at a fraction of the disk's speed.
            copy = self._written.clip(video.episode, video.camera).video.file
            different = Comparer().first_difference(
                left.file, 0, copy, 0, left.file.size, watch=lambda _: self._watch.check()
            )
            if different is not None:
                raise differs("A video's bytes differ", offset=different, **where)
        right: Any
        if isinstance(self._written, LanceReader):
            right = self._written.blob(video.camera, video.chunk, video.file)
        else:
            right = self._written.clip(video.episode, video.camera).video.file
        size = left.file.size
        if size != right.size:
            raise differs("A video has another size", **where)
        glimpse = min(_GLIMPSE, size)
        for at in (0, size - glimpse):
            if left.file.read(at, glimpse) != right.read(at, glimpse):
                raise differs("A video's bytes differ", offset=at, **where)
        if video.whole == "linked":  # the same file: it is enough that it is found
            return 2 * glimpse
        self._watch.add_bytes(size)
        return size if full else 2 * glimpse

    def _places(self, camera: str) -> int:
        """Check that episodes are where they did in videos that stayed as they are."""
        source = self._plan.readers[0]
        for position in range(len(self._written.episodes)):
            self._watch.check()
            left, right = source.clip(position, camera), self._written.clip(position, camera)
            if left.first != right.first or left.video.index.frames != right.video.index.frames:
                raise differs("A video has other frames", camera=camera, dataset=source.root)
        return 0

    def packets(self, camera: str, numbers: Sequence[int], *, ends: bool = False) -> int:
        """Compare a camera's packets in some clips, and return how many bytes.

        Args:
            camera: The camera.
            numbers: The clips.
            ends: Whether only their first and last frames are compared.
        """
        comparer, total, plan = Comparer(), 0, self._plan
        for number in numbers:
            self._watch.check()
            mine = self._written.clip(number, camera)
            if number in plan.video_plans[camera].blank:
                continue
            clip = plan.clips[number]
            reader = plan.readers[clip.source]
            key = str(plan.views[clip.source].origin[camera])
            last = len(plan.frames[number]) - 1
            every = sorted({0, last}) if ends else range(last + 1)
            frames = self._copied(camera, number, mine, reader, key, every)
            if not len(frames):
                continue
            theirs = reader.clip(self._positions[number], key)
            their_frames = np.array(plan.frames[number])[frames]
            for at, their_at, length in _runs(mine, theirs, frames, their_frames):
                different = comparer.first_difference(
                    theirs.video.file, their_at, mine.video.file, at, length
                )
                if length < 0 or different is not None:
                    where = {"camera": camera, "episode": number, "dataset": reader.root}
                    raise differs("An image differs", **where)
                total += length
            self._watch.add_bytes(int(mine.video.index.size[_packets(mine, frames)].sum()))
        return total

    def _copied(
        self,
        camera: str,
        number: int,
        mine: VideoClip,
        reader: Reader,
        key: str,
        every: Sequence[int],
    ) -> np.ndarray:
        """Return the frames that were copied; compare those that were encoded by their pixels."""
        plan, position = self._plan, self._positions[number]
        of_camera = plan.video_plans[camera]
        if reader.in_tables(key):
            encoded = list(every)
        elif of_camera.encoded.get(number):
            encoded = [frame for frame in every if is_encoded(of_camera, number, mine, frame)]
        else:
            return np.array(every)
        for frame in encoded:
            self._watch.check()
            theirs = plan.frames[number][frame]
            if not shows_the_same(mine, frame, reader, position, key, theirs):
                raise differs(
                    "An image that was re-encoded differs too much",
                    camera=camera,
                    episode=number,
                    frame=frame,
                    dataset=reader.root,
                )
        return np.setdiff1d(np.array(every), encoded)

    def _frames(self) -> tuple[int, float | None]:
        encoded = [key for key, camera in self._plan.video_plans.items() if camera.encoded]
        return compare_frames(
            self._plan.readers[0],
            self._written,
            frames=_SAMPLED_FRAMES if encoded or self._codec else _SAMPLED_OF_THE_SAME_BYTES,
            codec=self._codec,
            check=self._watch.check,
            encoded=encoded,
        )


def _chosen(column: Column, frames: Sequence[int]) -> Column:
    return column[list(frames)] if isinstance(column, np.ndarray) else [column[f] for f in frames]


def _packets(place: VideoClip, frames: np.ndarray) -> np.ndarray:
    return np.asarray(place.video.index.packet_of[place.frames(frames)])


def _runs(
    mine: VideoClip, theirs: VideoClip, frames: np.ndarray, their_frames: np.ndarray
) -> Iterator[tuple[int, int, int]]:
    """Yield where the bytes of these frames are in both, in spans without a gap in either.

    A length of -1 says that there are no such spans: sizes or the order of packets differ.
    """
    one, other = _packets(mine, frames), _packets(theirs, their_frames)
    order = np.argsort(one)
    sizes = mine.video.index.size[one][order]
    their_sizes = theirs.video.index.size[other][order]
    if not np.array_equal(sizes, their_sizes) or (np.diff(other[order]) < 0).any():
        yield 0, 0, -1
        return
    at, their_at = mine.video.index.offset[one][order], theirs.video.index.offset[other][order]
    gap = (at[:-1] + sizes[:-1] != at[1:]) | (their_at[:-1] + sizes[:-1] != their_at[1:])
    firsts = np.concatenate([[0], np.flatnonzero(gap) + 1])
    lasts = np.concatenate([firsts[1:], [len(at)]]) - 1
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        yield int(at[first]), int(their_at[first]), int(at[last] + sizes[last] - at[first])


# Numbers


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise ConversionError(f"The result has {found} {what}; {wanted} were planned.")


def _check_numbers(plan: Plan, rows: ResultRows, tasks: set[int], engine: Engine | None) -> None:
    """Check what was renumbered."""
    _same("rows", rows.frames, int(plan.start[-1]))
    features = [plan.info.features[key] for key in _NUMBERED]
    parts: Sequence[ResultRows] = [rows]
    jobs: int = getattr(engine, "jobs", 1)
    if isinstance(rows, ParquetTables) and rows.frames >= _MANY and jobs > 1:
        parts = rows.divided(_SHARES * jobs)  # an open Lance table goes to no other process
    if engine is None or len(parts) == 1:
        check_numbers(rows, features, 0, plan.start, tasks)
        return
    first = np.cumsum([0, *(part.frames for part in parts)]).tolist()
    work = [
        Task(
            f"numbers-{number:05d}",
            check_numbers,
            (part, features, first[number], plan.start, tasks),
            weight=part.frames,
        )
        for number, part in enumerate(parts)
    ]
    for _ in engine.run(work):
        pass


def check_numbers(
    rows: ResultRows, features: Sequence[Feature], first: int, start: np.ndarray, tasks: set[int]
) -> dict[str, Any]:
    """Check some consecutive rows: a task's work.

    Args:
        rows: The rows.
        features: The columns that were renumbered.
        first: Where the first of these rows stands in the result.
        start: Where each episode of the result is to begin, and the last to end.
        tasks: The numbers that tasks have.
    """
    for part in rows.portions(features):
        index = np.arange(first, first + len(part["index"]))
        episode = np.searchsorted(start, index, side="right") - 1
        wanted = {"episode_index": episode, "frame_index": index - start[episode], "index": index}
        for key, values in wanted.items():
            if not np.array_equal(part[key].reshape(-1), values):
                raise ConversionError(f"The column {key!r} of the result is not as planned.")
        unknown = set(np.unique(part["task_index"]).tolist()) - tasks
        if unknown:
            raise ConversionError(f"Rows name task {unknown.pop()}, which there is none of.")
        first += len(index)
    return {}

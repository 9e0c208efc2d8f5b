"""Comparing item by item, where episodes were put together or taken apart.

Files and numbers are others then; rows, tasks and pictures are not. Both datasets are read as any
reader would: every column of every row, and the bytes of every picture, found through the metadata
of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.convert.compare import compare_frames, differs, same_column, sampled, unreadable
from demoreel.convert.progress import Meter
from demoreel.convert.report import Verified
from demoreel.convert.source import default_columns, portions
from demoreel.edit.encode.check import is_encoded, shows_the_same
from demoreel.edit.plan import Plan
from demoreel.edit.recent_rows import rows_of_source
from demoreel.errors import ConversionError, DemoreelError
from demoreel.layouts.base import Clip, Column, Reader
from demoreel.layouts.detect import open_reader
from demoreel.read.transcode import MOST_ROWS
from demoreel.storage.same_bytes import Comparer

_ROWS_AT_ONCE = 1 << 13
_EPISODES_IN_JOB = 16
_SAMPLED_FRAMES = 2


def verify_items(
    plan: Plan, dataset: Path, meter: Meter, pool: Executor, *, full: bool
) -> Verified:
    """Compare a result with its source, episode by episode.

    Cost: reads every row and every packet of both, and decodes a few frames; a sample reads those
    of a few episodes.

    Args:
        plan: The cut: whole episodes of one source.
        dataset: What was written.
        meter: Counts what was compared.
        pool: Threads.
        full: Whether to compare everything.

    Raises:
        ConversionError: Something is not the same.
    """
    try:
        return _Items(plan, open_reader(dataset), meter, full=full).verify(pool)
    except ConversionError:
        raise
    except DemoreelError as error:
        raise unreadable(error, **error.where) from error


class _Items:
    def __init__(self, plan: Plan, written: Reader, meter: Meter, *, full: bool) -> None:
        self._plan = plan
        self._source = plan.readers[0]
        self._written = written
        self._meter = meter
        self._full = full
        self._positions = plan.positions.tolist()

    def verify(self, pool: Executor) -> Verified:
        self._metadata()
        numbers = list(range(len(self._positions)))
        chosen = numbers if self._full else sampled(len(numbers))
        looked: Future[tuple[int, float | None]] | None = None
        if self._is_all and not any(f.encoded for f in self._plan.footage.values()):
            looked = pool.submit(self._frames)
        packets = [
            partial(self._packets, camera, chosen[at : at + _EPISODES_IN_JOB])
            for camera in self._plan.footage
            for at in range(0, len(chosen), _EPISODES_IN_JOB)
        ]
        rows = [
            partial(self._table, first, stop)
            for first, stop in _stretches(self._positions, chosen, self._source)
        ]
        # In turn: comparing bytes leaves the interpreter to those who compare rows.
        videos: list[Future[int]] = []
        tables: list[Future[tuple[int, int]]] = []
        for table, video in itertools.zip_longest(rows, packets):
            tables += [pool.submit(table)] if table is not None else []
            videos += [pool.submit(video)] if video is not None else []
        counts = [job.result() for job in tables]
        compared = sum(job.result() for job in videos)
        frames, _ = looked.result() if looked is not None else (0, None)
        return Verified(
            rows=sum(rows for rows, _ in counts),
            videos=len(self._plan.videos),
            video_bytes=compared,
            pictures=sum(pictures for _, pictures in counts),
            frames=frames,
            lowest_psnr=None,
        )

    def _table(self, first: int, stop: int) -> tuple[int, int]:
        return self._rows(first, stop), self._pictures(first, stop)

    @property
    def _is_all(self) -> bool:
        return bool(self._positions == list(range(len(self._source.episodes))))

    def _metadata(self) -> None:
        written, info = self._written, self._written.info
        lengths = self._source.episodes.length[self._plan.positions].tolist()
        same: dict[str, tuple[Any, Any]] = {
            "layout": (self._plan.layout, written.layout),
            "episodes": (lengths, written.episodes.length.tolist()),
            "numbers of episodes": (
                list(range(len(lengths))),
                written.episodes.episode_index.tolist(),
            ),
            "features": (set(self._plan.info.features), set(info.features)),
            "totals": (
                (len(lengths), sum(lengths)),
                (info.total_episodes, info.total_frames),
            ),
        }
        for what, (wanted, found) in same.items():
            if wanted != found:
                raise self._differs(f"The {what} differ")

    def _rows(self, first: int, stop: int) -> int:
        """Compare the rows of the episodes ``first`` to ``stop`` - 1 of what was written."""
        begin = self._positions[first]
        theirs = dict(rows_of_source(self._source, begin, begin + stop - first))
        theirs |= {
            key: column
            for key, column in default_columns(self._source, begin, begin + stop - first).items()
            if key not in theirs
        }
        mine = self._written.rows_once(first, stop)
        wanted = self._numbered(first, stop)
        for key, column in mine.items():
            if key == "task_index":
                same = self._same_tasks(column, theirs[key])
            else:
                same = same_column(column, wanted.get(key, theirs.get(key, [])))
            if not same:
                raise self._differs(f"Column {key!r} differs", episodes=f"{first} to {stop - 1}")
        count = int(self._plan.start[stop] - self._plan.start[first])
        self._meter.add_frames(count)
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

    def _same_tasks(self, mine: Column, theirs: Column) -> bool:
        """Whether every row has the same text, whatever its number."""
        own, places = np.unique(np.asarray(mine), return_inverse=True)
        other, their_places = np.unique(np.asarray(theirs), return_inverse=True)
        texts = np.array(self._written.tasks.texts(own), object)
        their_texts = np.array(self._source.tasks.texts(other), object)
        return bool(np.array_equal(texts[places], their_texts[their_places]))

    def _pictures(self, first: int, stop: int) -> int:
        """Compare the encoded pictures that lie in tables."""
        start = self._plan.start
        offset = int(self._source.episodes.start[self._positions[first]]) - int(start[first])
        for camera in self._plan.info.image_keys:
            for at in range(int(start[first]), int(start[stop]), MOST_ROWS):
                self._meter.check()
                rows = np.arange(at, min(at + MOST_ROWS, int(start[stop])))
                theirs = self._source.encoded(rows + offset, camera)
                if self._written.encoded(rows, camera) != theirs:
                    raise self._differs("Encoded pictures differ", camera=camera, row=at)
        return len(self._plan.info.image_keys) * int(start[stop] - start[first])

    def _packets(self, camera: str, numbers: list[int]) -> int:
        """Compare a camera's packets in some episodes, and return how many bytes."""
        comparer, total = Comparer(), 0
        for number in numbers:
            self._meter.check()
            mine = self._written.clip(number, camera)
            theirs = self._source.clip(self._positions[number], camera)
            frames = self._copied(camera, number, mine)
            for at, their_at, length in _runs(mine, theirs, frames):
                different = comparer.first_difference(
                    theirs.video.file, their_at, mine.video.file, at, length
                )
                if length < 0 or different is not None:
                    raise self._differs("A picture differs", camera=camera, episode=number)
                total += length
            self._meter.add_bytes(int(mine.video.index.size[_packets(mine, frames)].sum()))
        return total

    def _copied(self, camera: str, number: int, mine: Clip) -> np.ndarray:
        """Return the frames that were copied; compare those that were encoded by their pixels."""
        footage, position = self._plan.footage[camera], self._positions[number]
        every = range(len(self._plan.frames[number]))
        if not footage.encoded.get(number):
            return np.array(every)
        encoded = [frame for frame in every if is_encoded(footage, number, mine, frame)]
        for frame in encoded:
            self._meter.check()
            if not shows_the_same(mine, frame, self._source, position, camera, frame):
                raise self._differs(
                    "A picture that was encoded anew differs too much",
                    camera=camera,
                    episode=number,
                    frame=frame,
                )
        return np.setdiff1d(np.array(every), encoded)

    def _frames(self) -> tuple[int, float | None]:
        return compare_frames(
            self._source,
            self._written,
            frames=_SAMPLED_FRAMES,
            codec=None,
            check=self._meter.check,
        )

    def _differs(self, what: str, **where: Any) -> ConversionError:
        return differs(what, dataset=self._source.root, **where)


def _stretches(
    positions: list[int], chosen: list[int], source: Reader
) -> Iterator[tuple[int, int]]:
    """Yield stretches of chosen episodes that stand side by side in the source, too."""
    numbers = np.array(chosen)
    places = np.array(positions)[numbers]
    breaks = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(places) != 1)) + 1
    for group in np.split(np.arange(len(numbers)), breaks):
        first, stop = int(places[group[0]]), int(places[group[-1]]) + 1
        moved = int(numbers[group[0]]) - first
        for begin, end in portions(source, first, stop, _ROWS_AT_ONCE):
            yield begin + moved, end + moved


def _packets(place: Clip, frames: np.ndarray) -> np.ndarray:
    return np.asarray(place.video.index.packet_of[place.frames(frames)])


def _runs(mine: Clip, theirs: Clip, frames: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield where the bytes of these frames lie in both, in stretches without a gap in either.

    A length of -1 says that there are no such stretches: sizes or the order of packets differ.
    """
    if not len(frames):
        return
    one, other = _packets(mine, frames), _packets(theirs, frames)
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

"""One batch: a take of rows, a plan of images, one round of decoding."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from demoreel.layouts.base import Column, Reader
from demoreel.model.depth import DepthUnit
from demoreel.read.cameras import Allocate, Camera, Prepared, Size
from demoreel.read.pool import DecodePool, Job
from demoreel.read.windows import Expanded, expand
from demoreel.storage.forks import renew_in_children
from demoreel.storage.threads import think_ahead

Batch = dict[str, Any]
"""Feature key -> a column with one entry per sample: an array, or a list for text."""

_MOST = 8  # announced batches that are kept until they are read


class BatchReader:
    """Turns positions in the dataset into batches.

    Args:
        reader: The dataset's layout.
        cameras: Cameras to decode; the others are left out of the samples.
        offsets: Frame offsets by feature key.
        size: Height and width to scale images to.
        depth_unit: Unit of depth images.
        threads: Decoding threads; None chooses.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        cameras: Sequence[str],
        offsets: Mapping[str, np.ndarray],
        size: Size | None,
        depth_unit: DepthUnit,
        threads: int | None,
    ) -> None:
        self._reader = reader
        self._offsets = dict(offsets)
        features = reader.info.features
        self._cameras = {key: Camera(reader, features[key], size, depth_unit) for key in cameras}
        self._columns = [key for key, f in features.items() if not f.is_camera]
        videos = [key for key in cameras if features[key].is_video]
        rest = [key for key in features if key not in videos]
        self._order = videos + [k for k in rest if k in self._cameras or k in self._columns]
        self.pool = DecodePool(threads)
        self._ahead = _Ahead() if reader.is_remote else None

    def read(
        self,
        rows: np.ndarray,
        *,
        allocate: Allocate = np.empty,
    ) -> Batch:
        """Return the samples at these positions.

        Args:
            rows: Positions in the dataset.
            allocate: Makes the arrays that images are decoded into.
        """
        windows = self._windows(rows)
        values: dict[str, Column] = {}
        jobs: list[Iterator[Job]] = []
        cameras, others = self._begun(rows, windows)
        for key, prepared in cameras.items():
            images, more = prepared.fill(allocate)
            if key in windows:
                images = images.reshape(*windows[key].rows.shape, *images.shape[1:])
            values[key] = images
            jobs.append(more)
        if others is None:
            self.pool.run(
                itertools.chain(*jobs), meanwhile=lambda: values.update(self._rows(rows, windows))
            )
        else:
            self.pool.run(itertools.chain(*jobs))
            values.update(others.result())
        batch: Batch = {key: values[key] for key in self._order}
        batch.update({f"{key}_is_pad": window.is_pad for key, window in windows.items()})
        tasks = values.get("task_index")
        if isinstance(tasks, np.ndarray):
            now = self._now(tasks, windows.get("task_index"))
            batch["task"] = self._reader.tasks.texts(now)
        return batch

    def prefetch(self, rows: np.ndarray) -> None:
        """Begin to fetch what a batch of these positions will need.

        Returns at once. The next ``read`` of exactly these positions, in this order, finds it.
        """
        if self._ahead is not None:
            self._ahead.begin(rows, lambda: self._plan(rows, self._windows(rows)))

    def _windows(self, rows: np.ndarray) -> dict[str, Expanded]:
        episodes = self._reader.episodes
        positions = episodes.positions_of_rows(rows)
        start, stop = episodes.start[positions], episodes.start[positions + 1]
        return {key: expand(rows, offs, start, stop) for key, offs in self._offsets.items()}

    def _begun(
        self, rows: np.ndarray, windows: Mapping[str, Expanded]
    ) -> tuple[dict[str, Prepared], Future[dict[str, Column]] | None]:
        """Return the images, ready to be decoded, and the other columns if they are under way."""
        if self._ahead is None:
            return self._prepare(rows, windows), None
        plan = self._ahead.take(rows) or self._plan(rows, windows)
        return plan.images, plan.rows

    def _plan(self, rows: np.ndarray, windows: Mapping[str, Expanded]) -> _Plan:
        """Begin to fetch all that a batch needs, at the same time."""
        others = think_ahead(lambda: self._rows(rows, windows))
        return _Plan(self._prepare(rows, windows), others)

    def _prepare(self, rows: np.ndarray, windows: Mapping[str, Expanded]) -> dict[str, Prepared]:
        wanted = {
            key: windows[key].rows.reshape(-1) if key in windows else rows for key in self._cameras
        }
        if self._ahead is not None:
            self._reader.expect(wanted)
        return {key: camera.prepare(wanted[key]) for key, camera in self._cameras.items()}

    def _rows(self, rows: np.ndarray, windows: Mapping[str, Expanded]) -> dict[str, Column]:
        plain = [key for key in self._columns if key not in windows]
        values = self._reader.rows(rows, plain)
        for key in self._columns:
            if key in windows:
                wanted = windows[key].rows
                column = self._reader.rows(wanted.reshape(-1), [key])[key]
                values[key] = _folded(column, wanted.shape)
        return values

    def _now(self, tasks: np.ndarray, window: Expanded | None) -> np.ndarray:
        """Return each sample's task; of a window of tasks, the one nearest to now."""
        if window is None:
            return tasks
        offsets = self._offsets["task_index"]
        return tasks[:, int(np.argmin(np.abs(offsets)))]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A batch of which all bytes are on their way.

    Attributes:
        images: What only has to be decoded, by camera.
        rows: The other columns.
    """

    images: dict[str, Prepared]
    rows: Future[dict[str, Column]]


class _Ahead:
    """The batches that are being prepared."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin anew in a forked child: what is under way will never arrive there."""
        self._plans: OrderedDict[bytes, Future[_Plan]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, rows: np.ndarray, prepare: Callable[[], _Plan]) -> None:
        """Begin to prepare a batch, unless that has begun."""
        key = rows.tobytes()
        with self._lock:
            if key not in self._plans:
                self._plans[key] = think_ahead(prepare)
                while len(self._plans) > _MOST:
                    self._plans.popitem(last=False)

    def take(self, rows: np.ndarray) -> _Plan | None:
        """Return the plan of a batch, when it is ready; None if it was not announced."""
        if not self._plans:
            return None
        with self._lock:
            future = self._plans.pop(rows.tobytes(), None)
        return None if future is None else future.result()


def _folded(column: Column, shape: tuple[int, ...]) -> Column:
    if isinstance(column, np.ndarray):
        return column.reshape(*shape, *column.shape[1:])
    samples, offsets = shape
    return [column[at * offsets : (at + 1) * offsets] for at in range(samples)]


def sample_of(batch: Batch, place: int) -> dict[str, Any]:
    """Return one sample of a batch; numbers stay arrays, also single ones."""
    return {
        key: np.asarray(column[place]) if isinstance(column, np.ndarray) else column[place]
        for key, column in batch.items()
    }

"""``Dataset``: the public class for reading, on top of layouts and batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import numpy as np
import pyarrow as pa

from demoreel.errors import (
    ArgumentError,
    DatasetBusyError,
    DatasetChangedError,
    OutOfRangeError,
    UnknownKeyError,
    count,
    nearest,
    refuse_shortage,
)
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.media.decode import DecodePool
from demoreel.model import Episodes, Feature, Info, Stats, Tasks
from demoreel.model.clocks import ROWS
from demoreel.model.depth import DepthUnit
from demoreel.read.batch import (
    Batch,
    BatchReader,
    PoolBatch,
    Recycler,
    Windows,
    frame_offsets,
    sample_of,
)
from demoreel.read.cameras import Allocate, Size
from demoreel.read.episode import EpisodeView
from demoreel.read.follow import (
    ATTEMPTS,
    MOVED,
    Known,
    first_info,
    first_tasks,
    has_changed,
    known_of,
    refuse_other,
    refuse_unknown,
    same_places,
)
from demoreel.storage.external import AllowExternal, allow_external, listed_prefixes
from demoreel.storage.folder import DatasetFolder, dataset_folder
from demoreel.storage.local import openings
from demoreel.storage.place import RemotePlace

if TYPE_CHECKING:
    from demoreel.read.pool import SpanPool

T = TypeVar("T")


class Dataset:
    """A dataset opened in place; made by ``demoreel.open``.

    Behaves like a sequence of samples. A sample is a dict of numpy arrays: images are
    (channels, height, width), uint8; a window adds a leading axis and a ``KEY_is_pad`` mask. Text,
    language and the ``task`` are Python values.

    Pickling moves the arguments of ``open``, not the data; every process opens files of its own.
    Other processes may append to the dataset and merge its files meanwhile: samples stay the same.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | DatasetFolder,
        *,
        episodes: Iterable[int] | None = None,
        cameras: Iterable[str] | None = None,
        image_size: Size | None = None,
        windows: Windows | None = None,
        tolerance_s: float = 1e-4,
        depth_unit: DepthUnit = "mm",
        decode_threads: int | None = None,
        version: int | None = None,
        tag: str | None = None,
        tables: str | os.PathLike[str] | RemotePlace | None = None,
        filter: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        allow_external: AllowExternal | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
    ) -> None:
        # Iterables are listed first: pickling must be able to hand them on.
        self._arguments: dict[str, Any] = {
            # With the copy of a remote one's metadata: other processes ask for nothing.
            "folder": dataset_folder(
                root,
                storage_options=storage_options,
                cache_dir=cache_dir,
                cache_size=cache_size,
                with_versions=version is not None or tag is not None,
            ),
            "episodes": None if episodes is None else [int(number) for number in episodes],
            "cameras": None if cameras is None else _listed(cameras),
            "image_size": image_size,
            "windows": {key: list(values) for key, values in (windows or {}).items()},
            "tolerance_s": tolerance_s,
            "depth_unit": depth_unit,
            "decode_threads": decode_threads,
            "version": version,
            "tag": tag,
            "tables": _place_of(tables),
            "filter": filter,
            "allow_external": listed_prefixes(allow_external),
        }
        self._open()

    def _open_reader(self) -> Reader:
        args = self._arguments
        self._allow_external(args["allow_external"])
        return open_reader(
            self.folder, version=args["version"], tag=args["tag"], tables=args["tables"]
        )

    def _open(self, known: Known | None = None) -> None:
        args = self._arguments
        self.folder: DatasetFolder = args["folder"]
        self.root: Path = self.folder.local
        self._reader = (
            self._open_reader()
            if known is None
            else self._opened_again(lambda reader: refuse_unknown(reader, known))
        )
        # A remote dataset is a copied state that does not grow; its episodes may not be here yet.
        self._first: tuple[int, int] | None = None
        if known is not None:
            self._first = known.episodes, known.tasks[0]
        elif self.folder.grows:
            self._first = len(self._reader.episodes), len(self._reader.tasks)
        self._confirmed = -1
        self.cameras = self._chosen_cameras(args["cameras"])
        self._selected = self._chosen_episodes(args["episodes"])
        if args["filter"] is not None:
            self._keep_matching(args["filter"])
        self.offsets = frame_offsets(
            args["windows"],
            known=self._window_keys(),
            fps=self.fps,
            tolerance_s=args["tolerance_s"],
        )
        if known is not None:
            self._keep_first(known.episodes)
        self.memory = Recycler()
        self.pool: SpanPool | None = None
        self._batches = self._batches_of(self._reader)

    def _batches_of(self, reader: Reader) -> BatchReader:
        args = self._arguments
        return BatchReader(
            reader,
            cameras=self.cameras,
            offsets=self.offsets,
            size=args["image_size"],
            depth_unit=args["depth_unit"],
            threads=args["decode_threads"],
        )

    def _allow_external(self, prefixes: list[str]) -> None:
        """Allow the tables to refer to these prefixes, in every process that opens this dataset."""
        tables = self._arguments["tables"]
        allow_external(self.folder.uri, prefixes)
        if self.folder.tables is not None:  # the Hub's has no commit in its name
            allow_external(self.folder.tables, prefixes)
        if tables is not None:
            folder, _, name = str(tables).rpartition("/")
            allow_external(folder if name.endswith(".lance") else tables, prefixes)

    def __getstate__(self) -> dict[str, Any]:
        known = None if self._first is None else known_of(self._reader, *self._first)
        return {**self._arguments, "known": known}

    def __setstate__(self, state: dict[str, Any]) -> None:
        known = state.get("known")
        self._arguments = {key: value for key, value in state.items() if key != "known"}
        self._open(known)

    def changed(self, **arguments: Any) -> Self:
        """Return the same episodes of this dataset, opened with other arguments.

        Args:
            **arguments: Those of ``Dataset``; ``windows`` in seconds or frames, as there.
        """
        made = object.__new__(type(self))
        made.__setstate__({**self.__getstate__(), **arguments})
        return made

    def following(self, read: Callable[[], T]) -> T:
        """Return the result of ``read``, from the dataset in its current state.

        If another process has moved files meanwhile, such as a recorder that merges small ones, the
        dataset is opened again and ``read`` is called once more; it must use ``reader`` anew.
        Episodes that were added later are not included. Costs a comparison, and some calls of
        ``stat`` if files were opened.

        Args:
            read: Reads from ``reader``; may be called several times.

        Raises:
            DatasetChangedError: The dataset is another one than was opened.
        """
        for _ in range(ATTEMPTS):
            reader, whole = self._reader, False
            try:
                found = read()
                if reader.state is None:  # each object is pinned
                    return found
                whole, opened = True, openings()
                if opened == self._confirmed or reader.is_as_opened:
                    self._confirmed = opened
                    return found
            except (*MOVED, RuntimeError) as error:
                refuse_shortage(error)
                if not isinstance(error, MOVED) or not has_changed(reader):
                    raise
            self._follow(reader)
            # Episodes were added, and those that were read are where they were before and after.
            if whole and same_places(reader, self._reader):
                return found
        raise self._busy()

    def _busy(self) -> DatasetBusyError:
        return DatasetBusyError(
            "Another process replaces the dataset's files faster than they can be read.",
            hint="read again later",
            dataset=self.root,
        )

    def _opened_again(self, refuse: Callable[[Reader], None]) -> Reader:
        """Open the dataset in its current state, and let ``refuse`` compare it with before."""
        for _ in range(ATTEMPTS):
            reader = self._open_reader()
            try:
                refuse(reader)
                if reader.is_as_opened:
                    return reader
            except (*MOVED, DatasetChangedError) as error:
                refuse_shortage(error)
                if not has_changed(reader):  # else its files may have moved meanwhile
                    raise
        raise self._busy()

    def _follow(self, before: Reader) -> None:
        """Switch to the current state, which must begin with the episodes of the previous one."""
        if self._reader is not before:
            return  # another thread did it
        reader = self._opened_again(lambda now: refuse_other(before, now))
        self._keep_first(len(before.episodes), of=len(reader.episodes))
        self._batches = self._batches_of(reader)
        self._reader = reader
        self._confirmed = -1
        for name in ("episodes", "info", "tasks"):  # the first says in which files they were
            self.__dict__.pop(name, None)

    def _keep_first(self, episodes: int, of: int | None = None) -> None:
        """Keep the first episodes, without those that were added later."""
        there = len(self._reader.episodes) if of is None else of
        if self._selected is None and there > episodes:
            self._selected = np.arange(episodes)

    def _chosen_cameras(self, wanted: list[str] | None) -> tuple[str, ...]:
        known = self.info.cameras
        if wanted is None:
            return known
        for key in wanted:
            if key not in known:
                raise UnknownKeyError(
                    f"There is no camera {key!r}.", hint=nearest(key, known), dataset=self.root
                )
        return tuple(key for key in known if key in wanted)

    def _chosen_episodes(self, wanted: list[int] | None) -> np.ndarray | None:
        """Return positions of the chosen episodes, in the dataset's order."""
        if wanted is None:
            return None
        if not wanted:
            raise ArgumentError("episodes= is empty.", hint="leave it out to read all")
        every = self._reader.episodes
        return np.unique(np.array([every.position_of(number) for number in wanted]))

    def _keep_matching(self, condition: str) -> None:
        """Keep the episodes with a frame that meets a condition; other processes get their list."""
        from demoreel.read.sql import episodes_where

        self._selected = episodes_where(self._reader, self._positions, condition)
        chosen = self._reader.episodes.episode_index[self._selected].tolist()
        self._arguments = {**self._arguments, "episodes": chosen, "filter": None}

    @property
    def _positions(self) -> np.ndarray:
        """Positions of the chosen episodes in the layout."""
        return np.arange(len(self._reader.episodes)) if self._selected is None else self._selected

    def _window_keys(self) -> list[str]:
        features = self.info.features
        return [key for key, f in features.items() if not f.is_camera or key in self.cameras]

    @cached_property
    def info(self) -> Info:
        """What ``meta/info.json`` said when the dataset was opened."""
        return self._reader.info if self._first is None else first_info(self._reader, *self._first)

    @property
    def features(self) -> Mapping[str, Feature]:
        """Every feature by key."""
        return self.info.features

    @property
    def layout(self) -> str:
        """How the dataset is stored, e.g. ``v3.0``."""
        return self._reader.layout

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.info.fps

    @cached_property
    def tasks(self) -> Tasks:
        """Task texts by index, as of when the dataset was opened."""
        return (
            self._reader.tasks if self._first is None else first_tasks(self._reader, self._first[1])
        )

    @property
    def stats(self) -> Stats | None:
        """Statistics of the whole dataset as stored, or None; of all episodes that are there."""
        return self._reader.stats

    @property
    def uri(self) -> str | None:
        """Where the dataset is, if that is remote; ``root`` then is a copy of its metadata."""
        return None if self.folder.grows else self.folder.uri

    @property
    def is_remote(self) -> bool:
        """Whether its images are in an object store or on the Hub."""
        return self._reader.is_remote

    @property
    def reader(self) -> Reader:
        """The layout underneath, for tools that need more than samples; see ``following``."""
        return self._reader

    @property
    def batch_reader(self) -> BatchReader:
        """Plans and reads batches of positions in the layout; see ``following``."""
        return self._batches

    @property
    def image_size(self) -> Size | None:
        """Height and width that images are scaled to; None if they are not."""
        size: Size | None = self._arguments["image_size"]
        return size

    @property
    def decode_pool(self) -> DecodePool:
        """The threads that decode."""
        return self._batches.pool

    @cached_property
    def episodes(self) -> Episodes:
        """The chosen episodes; ``start`` and ``stop`` count in this selection."""
        every = self._reader.episodes
        if self._selected is None:
            return every
        selected = self._selected
        return Episodes(
            every.episode_index[selected],
            every.length[selected],
            details=lambda place: _details(every, int(selected[place])),
            where=str(self.root),
        )

    def __len__(self) -> int:
        return self.episodes.total_frames

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Batch:
        """Return the sample at ``index``, or the batch of a slice.

        Raises:
            OutOfRangeError: There is no such frame.
        """
        if isinstance(index, slice):
            return self.batch(range(*index.indices(len(self))))
        return sample_of(self.batch([index]), 0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def batch(
        self,
        indices: Iterable[int] | np.ndarray,
        *,
        allocate: Allocate | None = None,
        decode_device: Any = "cpu",
    ) -> Batch:
        """Return many samples at once, each key with a leading axis.

        Cost: reads the rows once; decodes each image once, also if several samples use it;
        spans of video decode on ``decode_threads`` threads.

        Args:
            indices: Frame numbers in this dataset; negative ones count from the end. Batches in
                their ``upcoming``, if they have that (``demoreel.torch.PrefetchBatchSampler``), are
                fetched meanwhile. A batch of a ``PoolOrder`` (``demoreel.torch.ReuseSampler``)
                takes its images from memory where they are decoded.
            allocate: Makes the arrays that images are decoded into; by default, memory of
                batches that have been dropped serves again.
            decode_device: Where videos are decoded: ``"cpu"``; ``"cuda"``, ``"cuda:1"`` or a
                ``torch.device``, a GPU; ``"auto"``, a GPU if there is one; or a ``PacketDecoder``
                (``demoreel.read.packets``). Images of cameras that the GPU decodes are torch
                tensors in its memory, all else is numpy. In a DataLoader worker they are packets,
                which ``demoreel.torch.to_device`` decodes. Images of a ``PoolOrder`` are decoded by
                the CPU.

        Raises:
            OutOfRangeError: An index is out of range.
            ArgumentError: There is no such device.
            MissingExtraError: torch or PyNvVideoCodec is not installed.
            ShortageError: The GPU's memory does not suffice.
        """
        decoder = None
        if decode_device not in (None, "cpu"):
            from demoreel.read.packets import packet_decoder

            decoder = packet_decoder(decode_device)
        upcoming = getattr(indices, "upcoming", ())
        if upcoming:
            self.prefetch(indices)  # before the others: it is needed first
        for following in upcoming:
            self.prefetch(following)
        rows = self.rows_of(indices)
        pooled = None
        if isinstance(indices, PoolBatch):
            from demoreel.read.pool import SpanPool

            self.pool = self.pool or SpanPool(self._arguments["decode_threads"])
            pooled = partial(self.pool.read, indices, indices.in_rows(self.rows_of), rows)
        batch = self.following(
            lambda: self._batches.read(
                rows, allocate=allocate or self.memory, pooled=pooled, decoder=decoder
            )
        )
        if decoder is not None:
            from demoreel.read.packets import decoded

            decoded(batch, decoder)
        return batch

    def prefetch(self, indices: Iterable[int] | np.ndarray) -> None:
        """Start to fetch the data of a batch, if the dataset is remote.

        Returns at once; the next ``batch`` of exactly these indices uses that data. Does nothing
        for a local dataset.

        Args:
            indices: Frame numbers, as for ``batch``.

        Raises:
            OutOfRangeError: An index is out of range.
        """
        self._batches.prefetch(self.rows_of(indices))

    def rows_of(self, indices: Iterable[int] | np.ndarray) -> np.ndarray:
        """Translate this dataset's frame numbers into positions in the layout.

        Args:
            indices: Frame numbers, as for ``batch``.

        Raises:
            OutOfRangeError: An index is out of range.
        """
        numbers = _as_numbers(indices)
        total = len(self)
        least, greatest = int(numbers.min()), int(numbers.max())
        if least < -total or greatest >= total:
            wrong = (numbers < -total) | (numbers >= total)
            raise OutOfRangeError(
                f"There is no frame {int(numbers[wrong][0])}.",
                hint=f"the dataset has {total} frames"
                + ("" if self._selected is None else " in the chosen episodes"),
                dataset=self.root,
            )
        if least < 0:
            numbers = np.where(numbers < 0, numbers + total, numbers)
        if self._selected is None:
            return numbers
        place = self.episodes.positions_of_rows(numbers)
        first = self._reader.episodes.start[self._selected[place]]
        return np.asarray(first + numbers - self.episodes.start[place])

    def episode(self, number: int) -> EpisodeView:
        """Return one episode.

        Args:
            number: Its ``episode_index``.

        Raises:
            OutOfRangeError: There is no such episode, or it was not chosen.
        """
        self.episodes.position_of(number)
        return EpisodeView(self, self._reader.episodes.position_of(number))

    def capture_times(self, episode: int, camera: str | None = None) -> np.ndarray | None:
        """Return the capture times of an episode's frames, in nanoseconds since 1970.

        They are kept by demoreel's recorder, beside the data or in a column, and follow every cut
        and conversion.

        Cost: reads the files of capture times, and the episode's numbers, which must be those that
        the times were kept with.

        Args:
            episode: Its ``episode_index``.
            camera: A camera whose own times are wanted; None gives those of the rows.

        Returns:
            One int64 for each frame, -1 where a camera gave none; None where no times were kept.

        Raises:
            OutOfRangeError: There is no such episode, or it was not chosen.
            UnknownKeyError: There is no such camera.
        """
        from demoreel.layouts.capture_times import capture_times

        if camera is not None and camera not in self._reader.info.cameras:
            raise UnknownKeyError(
                f"There is no camera {camera!r}.",
                hint=nearest(camera, self._reader.info.cameras),
                dataset=self.root,
            )
        self.episodes.position_of(episode)

        def read() -> np.ndarray | None:
            place = self._reader.episodes.position_of(episode)
            return capture_times(self._reader, place, ROWS if camera is None else camera)

        return self.following(read)

    def sql(self, query: str) -> pa.Table:
        """Run an SQL query on the chosen episodes, at the version that is open.

        Cost: reads the columns that the query names. The result is held in memory; nothing is
        written, and no other file can be read.

        Args:
            query: One SELECT in DuckDB's SQL, over the tables ``frames`` (a row a frame, dots in
                names become underscores; quoted, ``"observation.state"`` works too), ``episodes``,
                ``tasks`` and ``videos``. Arrays count from 1. Images are left out.

        Raises:
            ArgumentError: The query is not one SELECT, or DuckDB does not accept it.
            TableError: A table is missing or damaged.
            MissingExtraError: DuckDB is not installed.
        """
        from demoreel.read.sql import query as answer

        return self.following(lambda: answer(self._reader, self._positions, query))

    def to_ray(
        self,
        *,
        columns: Iterable[str] | None = None,
        cameras: Iterable[str] = (),
        encoded: bool = False,
        blocks: int | None = None,
    ) -> Any:
        """Return the chosen episodes as a ``ray.data.Dataset``, a row an episode.

        A row has ``episode_index``, ``length``, ``task`` (the first), ``tasks``, and for every
        other column an array of (length, ...), or a list for text and language. Windows do not
        apply.

        Cost: nothing is read here. Workers read an episode when its row is wanted, from the path
        that the dataset has here: all machines must see it there. Needs the extra ``ray``.

        Args:
            columns: Only these columns; None is all but the cameras.
            cameras: Cameras whose images belong to the rows: (length, channels, height, width),
                as in samples. An episode is then held in a worker's memory, decoded.
            encoded: Give images encoded instead, a list of bytes: as they are in the tables,
                those from videos as PNG (depth of 16 bits, in millimetres).
            blocks: Into how many blocks Ray divides the episodes; None leaves it to Ray.

        Raises:
            UnknownKeyError: There is no such column or camera.
            MissingExtraError: Ray Data is not installed.
        """
        from demoreel.read.to_ray import to_ray

        return to_ray(
            self,
            columns=None if columns is None else _listed(columns),
            cameras=_listed(cameras),
            encoded=encoded,
            blocks=blocks,
        )

    def push_to_hub(self, repo_id: str, **options: Any) -> Any:
        """Publish the dataset on the Hub, in one commit, and return what was done.

        Args:
            repo_id: ``me/my_task``; made if it is not there.
            **options: Those of ``demoreel.push``: ``private``, ``tags``, ``branch``, ``license``,
                ``force``, ``dry_run`` and others.

        Raises:
            DemoreelError: As ``demoreel.push``; a dataset that was opened with some of its
                episodes is refused.
        """
        import demoreel  # publishing is a room above this one

        return demoreel.push(self, repo_id, **options)

    def __repr__(self) -> str:
        return (
            f"<Dataset {self.uri or self.root.name}: {self.layout}, "
            f"{count(len(self.episodes), 'episode')}, {count(len(self), 'frame')}, "
            f"{self.fps:g} fps, {count(len(self.cameras), 'camera')}>"
        )


def _details(every: Episodes, position: int) -> dict[str, Any]:
    episode = every[position]
    names = ("tasks", "data_file", "video_files", "extra")
    return {name: getattr(episode, name) for name in names}


def _listed(keys: Iterable[str]) -> list[str]:
    return [keys] if isinstance(keys, str) else list(keys)


def _as_numbers(indices: Iterable[int] | np.ndarray) -> np.ndarray:
    array = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices))
    if array.size == 0:
        raise ArgumentError("A batch of no frames was asked for.")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        what = array.dtype if array.ndim == 1 else f"an array of the shape {array.shape}"
        raise ArgumentError(f"Frame numbers must be integers in one list, not {what}.")
    return array.astype(np.int64)


def _place_of(tables: str | os.PathLike[str] | RemotePlace | None) -> Path | RemotePlace | None:
    return tables if tables is None or isinstance(tables, RemotePlace) else Path(tables)

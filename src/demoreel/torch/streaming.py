"""``StreamingLeRobotDataset``: the items of ``LeRobotDataset`` one by one, in an exact order."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader

from demoreel.errors import ArgumentError, DemoreelWarning
from demoreel.read.order import FrameOrder, Share
from demoreel.read.reuse import PoolForm, pool_form
from demoreel.storage.external import AllowExternal
from demoreel.torch.dataset import LeRobotDataset, Transform
from demoreel.torch.metadata import LeRobotDatasetMetadata
from demoreel.torch.place import is_dataset, place_of_type, recorded_root, remote_uri
from demoreel.torch.stream_pass import (
    Pass,
    PassProgress,
    Position,
    SharedPosition,
    checked_seed,
    pool_order,
    rank_and_world_size,
)

if TYPE_CHECKING:
    from demoreel.torch.device import DecodeDevice


class StreamFacts:
    """Attributes of the map-style dataset that reads the items."""

    dataset: LeRobotDataset

    @property
    def repo_id(self) -> str:
        """What the dataset is called."""
        return self.dataset.repo_id

    @property
    def root(self) -> Path:
        """Where the dataset lies."""
        return self.dataset.root

    @property
    def meta(self) -> LeRobotDatasetMetadata:
        """The dataset's metadata."""
        return self.dataset.meta

    @property
    def revision(self) -> str:
        """The dataset's revision."""
        return self.dataset.revision

    @property
    def episodes(self) -> list[int] | None:
        """The chosen episodes; None if all."""
        return self.dataset.episodes

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Every feature's entry in ``info.json``."""
        return self.dataset.features

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.dataset.fps

    @property
    def num_frames(self) -> int:
        """Frames in the chosen episodes: samples of an epoch, all ranks together."""
        return self.dataset.num_frames

    @property
    def num_episodes(self) -> int:
        """Chosen episodes."""
        return self.dataset.num_episodes

    @property
    def tolerance_s(self) -> float:
        """How far windows may be off the grid."""
        return self.dataset.tolerance_s

    @property
    def hf_dataset(self) -> Any:
        """The rows as a Hugging Face dataset; see ``LeRobotDataset``."""
        return self.dataset.hf_dataset

    @property
    def delta_timestamps(self) -> dict[str, list[float]] | None:
        """Windows in seconds."""
        return self.dataset.delta_timestamps

    @property
    def delta_indices(self) -> dict[str, list[int]] | None:
        """Windows in frames."""
        return self.dataset.delta_indices

    @property
    def depth_output_unit(self) -> str:
        """Unit of depth images and their statistics."""
        return self.dataset.depth_output_unit

    @property
    def decode_device(self) -> torch.device:
        """Where videos are decoded that this device can decode."""
        return self.dataset.decode_device

    @property
    def image_transforms(self) -> Transform | None:
        """What is applied to images."""
        return self.dataset.image_transforms


class StreamLoader:
    """Batches of a stream in its order, from workers that live through all epochs.

    Made by ``StreamingLeRobotDataset.loader``. Workers read ahead, so what they have read is more
    than what the training has seen. Here only what was handed out counts, and ``state_dict`` is
    right whatever is under way.

    Args:
        stream: The dataset.
        num_workers: Processes that read; 0 reads in this one.
        options: Of torch's ``DataLoader``.
    """

    def __init__(
        self, stream: StreamingLeRobotDataset, num_workers: int, options: Mapping[str, Any]
    ) -> None:
        self.dataset = stream
        self.num_workers = num_workers
        self._loader: DataLoader[dict[str, Any]] = DataLoader(
            stream,
            batch_size=None,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            **options,
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Begin a pass where the dataset stands; see ``StreamingLeRobotDataset.__iter__``."""
        if not self.num_workers:
            return iter(self._loader)  # the dataset itself counts
        return _Delivery(self.dataset, self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch; see the dataset's method."""
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training stands: after the last batch that was handed out."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from there; see the dataset's method."""
        self.dataset.load_state_dict(state)


class _Delivery(Iterator[dict[str, Any]]):
    """Counts what workers deliver. After an error it goes on where it stood, and never just ends.

    Args:
        stream: Is told how far the training has come.
        loader: Its workers read.
    """

    def __init__(self, stream: StreamingLeRobotDataset, loader: DataLoader[dict[str, Any]]) -> None:
        self._stream = stream
        self._loader = loader
        self._is_over = False
        self._begin()

    def _begin(self) -> None:
        self._progress = self._stream.start_pass(max(1, self._loader.num_workers))
        self._batches: Iterator[dict[str, Any]] | None = iter(self._loader)

    def __next__(self) -> dict[str, Any]:
        if self._is_over:
            raise StopIteration
        if self._batches is None:
            self._stream.go_to(self._progress.position)
            self._begin()
        assert self._batches is not None
        try:
            batch = next(self._batches)
        except StopIteration:
            self._is_over = True
            self._stream.end_pass(self._progress.begin)
            raise
        except Exception as error:
            # Other workers are further already; all of them begin again at what is missing.
            self._batches = None
            # torch's frames would keep the workers from being let go; their words are in the error.
            raise error.with_traceback(None) from None
        self._progress.delivered += 1
        return batch


_AT_ONCE = 32  # samples that are read together where no batch size is known


class StreamingLeRobotDataset(StreamFacts, torch.utils.data.IterableDataset[dict[str, Any]]):
    """An iterable over a dataset in place: every item once per epoch, in an order that is exact.

    The items are those of ``LeRobotDataset``, read by it. The shuffle is global: a permutation of
    all frames that is computed, not stored. Which frame comes when follows from the seed, the
    epoch, the step, the rank and the number of ranks, and from nothing else; not from workers.

    A pass that comes to its end moves the dataset on to the next epoch. A pass that was broken off
    does not: the next one begins where it began. In the workers of a plain ``DataLoader`` nothing
    can come back to this object, so call ``set_epoch`` before each pass, as for torch's
    ``DistributedSampler``; ``loader()`` needs no such care.

    Memory: a batch, and the next one's bytes; nothing grows with the number of frames.

    Args:
        repo_id: ``me/my_task``: the dataset in ``HF_LEROBOT_HOME``, else on the Hub; or, alone, a
            dataset's folder or URI.
        root: The dataset's folder or URI.
        episodes: Read only these.
        image_transforms: Applied to each image (or window of images), depth excepted.
        delta_timestamps: Windows in seconds, by feature; multiples of 1/fps within ``tolerance_s``.
        tolerance_s: See ``delta_timestamps``.
        revision: A snapshot's revision.
        force_cache_sync: As in ``LeRobotDataset``.
        streaming: Read a dataset of the Hub where it lies, and download its metadata only. If
            False, its files are fetched first, as ``LeRobotDataset`` does.
        buffer_size: Accepted for compatibility: a global shuffle needs no buffer.
        max_num_shards: Accepted for compatibility: nothing is divided into shards.
        seed: Of the order.
        rng: Draws the seed, if given.
        shuffle: Whether frames come in random order, or from the first to the last.
        return_uint8: Give images as uint8.
        depth_output_unit: Unit of depth images.
        repo_type: ``dataset``, or ``bucket`` for one of the Hub's storage buckets.
        token: For the Hub; None uses ``HF_TOKEN`` or the login. It is not kept.
        batch_size: Give batches of this many, collated; use ``DataLoader(batch_size=None)``. If
            None, single samples.
        reuse: Memory for decoded images, e.g. ``"4GB"``, for all workers of this rank together.
            Every frame is then decoded about once, and batches are drawn from what lies in memory.
            The order then follows from the number of workers, too, and a state goes on with as
            many workers and ranks. See ``docs/training.md`` for what it costs in randomness.
        drop_last: Leave out a last batch that is shorter.
        even: Give every rank equally many samples: up to ``world_size - 1`` samples at the end of
            an epoch are left out, others in every epoch. If False, some ranks get one more.
        rank: Whose part to read; by default that of ``torch.distributed``, or of ``torchrun``.
        world_size: How many ranks there are.
        episode_filter: Keep the episodes whose metadata row satisfies this.
        cameras: Decode only these; the others are left out of the items.
        image_size: (height, width) to scale images to.
        decode_threads: By default every core in a main process and one in a DataLoader worker.
        decode_device: Where videos are decoded; see ``LeRobotDataset``. Wrap the loader in
            ``demoreel.torch.to_device``.
        gpu_memory_mb: Likewise.
        storage_options: Of a remote dataset; see ``demoreel.open``.
        allow_external: What the Lance tables may name outside the dataset; see ``demoreel.open``.
        cache_dir: Likewise.
        cache_size: Likewise.

    Raises:
        DatasetNotFoundError: There is no such dataset.
        ArgumentError: An argument that cannot be.
    """

    def __init__(
        self,
        repo_id: str | os.PathLike[str],
        root: str | os.PathLike[str] | None = None,
        episodes: Sequence[int] | None = None,
        image_transforms: Transform | None = None,
        delta_timestamps: dict[str, list[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        streaming: bool = True,
        buffer_size: int = 1000,
        max_num_shards: int = 16,
        seed: int = 42,
        rng: np.random.Generator | None = None,
        shuffle: bool = True,
        return_uint8: bool = False,
        depth_output_unit: Literal["mm", "m"] = "mm",
        *,
        repo_type: Literal["dataset", "bucket"] = "dataset",
        token: str | bool | None = None,
        batch_size: int | None = None,
        reuse: int | str | None = None,
        drop_last: bool = False,
        even: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        episode_filter: Callable[[dict[str, Any]], bool] | None = None,
        cameras: Sequence[str] | None = None,
        image_size: tuple[int, int] | None = None,
        decode_threads: int | None = None,
        decode_device: DecodeDevice = "cpu",
        gpu_memory_mb: int = 512,
        storage_options: Mapping[str, Any] | None = None,
        allow_external: AllowExternal | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
    ) -> None:
        self.batch_size = _checked_batch_size(batch_size)
        self.rank, self.world_size = rank_and_world_size(rank, world_size)
        seed = checked_seed(seed if rng is None else int(rng.integers(2**63)))
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
        self.even = bool(even)
        if reuse is not None and not shuffle:
            raise ArgumentError(
                "reuse= orders frames at random; shuffle=False asks for them as they lie.",
                hint="leave one of them out",
            )
        self.reuse = reuse
        self.streaming = bool(streaming)
        self.streaming_from_local = root is not None
        self.repo_type = repo_type
        self.buffer_size = buffer_size
        given = place_of_type(os.fspath(repo_id), root, repo_type)
        name, place, is_elsewhere = _named(os.fspath(repo_id), given)
        self.dataset = LeRobotDataset(
            name,
            place,
            episodes,
            episode_filter,
            image_transforms,
            delta_timestamps,
            tolerance_s,
            revision,
            force_cache_sync,
            return_uint8=return_uint8,
            depth_output_unit=depth_output_unit,
            cameras=cameras,
            image_size=image_size,
            decode_threads=decode_threads,
            decode_device=decode_device,
            gpu_memory_mb=gpu_memory_mb,
            token=token,
            stream=streaming and is_elsewhere,
            storage_options=storage_options,
            allow_external=allow_external,
            cache_dir=cache_dir,
            cache_size=cache_size,
        )
        self._position = SharedPosition(Position(seed, epoch=0))
        self._progress: PassProgress | None = None
        self._handed_out: PassProgress | None = None  # where a loader reads ahead of the training
        self._worker_state: Mapping[str, Any] | None = None
        self._pool_state: Mapping[str, int] | None = None
        if reuse is not None:
            self._pool(workers=1)  # a budget that is too small is an error here

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None, "_handed_out": None}

    @property
    def seed(self) -> int:
        """The seed of the order."""
        return self._position.get().seed

    @property
    def epoch(self) -> int:
        """The epoch that the next pass reads."""
        return self._position.get().epoch

    def __len__(self) -> int:
        """Batches (or samples) that this rank gets in a whole epoch."""
        share = self._share(consumed=0)
        return share.steps if self.batch_size else share.samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Begin a pass where the dataset stands: an epoch's begin, or where a state was saved.

        In a ``DataLoader`` worker, gives that worker's part: every W-th batch, or every W-th sample
        if there is no ``batch_size``.

        Raises:
            VideoError, TableError, ...: A frame cannot be read. The pass does not end by that: the
                next ``next`` tries the same frames again.
        """
        worker = torch.utils.data.get_worker_info()
        begin = self._position.get()
        self._handed_out = None
        progress = self._progress = PassProgress(begin, self._share(begin.consumed))
        finish = partial(self.end_pass, begin)
        if worker is None:
            progress.pool = self._pool_of_pass(1)
        else:
            progress.share = replace(progress.share, worker=worker.id, workers=worker.num_workers)
            progress.delivered = self._delivered_before(worker.num_workers)
            finish = partial(self._position.note_the_end, begin.epoch)
            if worker.id == 0 and self.shuffle and self._position.has_ended(begin.epoch):
                _warn_of_repetition(begin.epoch)
        before = progress.delivered
        if self.reuse is None:
            order = FrameOrder(self.num_frames, begin.seed, begin.epoch, self.shuffle)
            return Pass(self.dataset, order, progress, finish, before)
        share = progress.share
        lengths = self.dataset.reader.episodes.length
        form = self._pool(share.workers)
        pooled, before = pool_order(lengths, form, begin, share, delivered=before)
        return Pass(self.dataset, pooled, progress, finish, before)

    def _pool(self, workers: int) -> PoolForm:
        assert self.reuse is not None
        return pool_form(self.dataset.reader, self.reuse, pools=workers)

    def _pool_of_pass(self, workers: int) -> dict[str, int] | None:
        """Return what the order of a pass depends on, which must be as in a loaded state."""
        if self.reuse is None:
            return None
        ours = {"workers": workers, "ranks": self.world_size, "size": self.batch_size or 0}
        ours |= self._pool(workers).to_state()
        theirs = self._pool_state
        if theirs is not None and theirs != ours:
            raise ArgumentError(
                f"The state was saved with reuse= in an order of {dict(theirs)}; here it is of "
                f"{ours}.",
                hint="use the same budget, batch size, workers and ranks, or begin an epoch",
                dataset=self.root,
            )
        return ours

    def loader(
        self,
        *,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        multiprocessing_context: str | None = None,
        **options: Any,
    ) -> StreamLoader:
        """Return batches (or samples) from workers, with ``state_dict`` and ``load_state_dict``.

        Epochs advance by themselves, and workers live through all of them.

        Args:
            num_workers: Processes that read; 0 reads in this one.
            prefetch_factor: Batches that each worker reads ahead; torch's default is 2.
            pin_memory: Hand out batches in pinned memory.
            multiprocessing_context: How workers are started: ``"fork"``, ``"spawn"``, ...
            **options: More of torch's ``DataLoader``: ``timeout``, ``worker_init_fn``, ...
        """
        given = {**options, "pin_memory": pin_memory}
        if num_workers:
            given["prefetch_factor"] = prefetch_factor
            given["multiprocessing_context"] = multiprocessing_context
        return StreamLoader(self, num_workers, given)

    def make_frame(self, dataset_iterator: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the item of the next row of an iterator.

        Args:
            dataset_iterator: Gives rows that name a frame of the whole dataset by their ``index``.
        """
        for row in islice(dataset_iterator, 1):
            frame = int(row["index"])
            chosen = self.dataset.absolute_to_relative_idx
            yield self.dataset[frame if chosen is None else chosen[frame]]

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass begin with this epoch; also in workers that are already running.

        If the dataset is in that epoch, nothing happens: a state that was loaded stays.

        Raises:
            ArgumentError: There is no such epoch.
        """
        if not hasattr(epoch, "__index__") or epoch < 0:
            raise ArgumentError(f"epoch must be a whole number from 0, not {epoch!r}.")
        at = self._position.get()
        if int(epoch) != at.epoch:
            self.go_to(Position(at.seed, int(epoch)))

    def state_dict(self) -> dict[str, Any]:
        """Return where this stream stands: plain numbers, to be saved with a checkpoint.

        What counts is what was handed out here, by this dataset or its ``loader()``, times the
        number of ranks: save when all ranks have taken equally many steps, and any rank's state
        serves for all.
        """
        progress = self._handed_out or self._progress
        at = self._position.get() if progress is None else progress.position
        state: dict[str, Any] = at.to_state()
        state |= {"frames": self.num_frames, "shuffle": self.shuffle}
        if self.reuse is not None:
            pool = self._pool_state if progress is None else progress.pool
            state["reuse"] = None if pool is None else dict(pool)
        worker = torch.utils.data.get_worker_info()
        if worker is None or progress is None:
            return state
        # torchdata's StatefulDataLoader asks every worker, and gives each its own state back.
        part = {"workers": worker.num_workers, "delivered": progress.delivered}
        return {**state, **progress.begin.to_state(), "worker": part}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on where a state was saved, with any number of workers and ranks.

        The seed becomes that of the state.

        Raises:
            ArgumentError: The state is of another dataset, or other episodes.
        """
        position = Position.from_state(state, self.num_frames)
        ours = {"frames": self.num_frames, "shuffle": self.shuffle}
        if ("reuse" in state) != (self.reuse is not None):
            raise ArgumentError(
                "The state is of a stream with reuse=, and here is none, or the reverse.",
                hint="open the stream as it was, or begin an epoch",
                dataset=self.root,
            )
        for name, value in ours.items():
            if state.get(name) != value:
                raise ArgumentError(
                    f"The state was saved with {name}={state.get(name)!r}; here it is {value!r}.",
                    hint="open the same dataset and episodes, or begin anew",
                    dataset=self.root,
                )
        self.go_to(position)
        self._worker_state = state.get("worker")
        self._pool_state = state.get("reuse") if position.consumed else None

    def start_pass(self, workers: int) -> PassProgress:
        """Begin a pass whose batches workers read and ``loader()`` counts."""
        self._position.is_counted()
        begin = self._position.get()
        self._handed_out = None
        pool = self._pool_of_pass(workers)
        self._progress = PassProgress(begin, self._share(begin.consumed), pool=pool)
        return self._progress

    def end_pass(self, begin: Position) -> None:
        """Go on to the next epoch, if the dataset was not sent elsewhere meanwhile."""
        if self._position.get() == begin:
            self._move(Position(begin.seed, begin.epoch + 1))

    def note_read(self) -> Any:
        """Return how far the pass is, after a batch was read; see ``CountsBatches``."""
        return None if self._progress is None else replace(self._progress)

    def note_handed_out(self, read: Any, *, is_left: bool = False) -> None:
        """Let ``state_dict`` say that a training was given what had been read then."""
        if is_left and self._handed_out is not read:
            return  # the dataset was sent elsewhere meanwhile
        if is_left and self._position.get() != read.begin:
            self._move(read.begin)  # the epoch was read to its end, and not handed out
        self._handed_out = read

    def go_to(self, position: Position) -> None:
        """Let the next pass begin there, also in workers that are running."""
        self._move(position)
        self._handed_out = None

    def _move(self, position: Position) -> None:
        self._position.set(position)
        self._progress = None
        self._worker_state = None
        self._pool_state = None

    def _share(self, consumed: int) -> Share:
        return Share(
            self.num_frames,
            consumed=consumed,
            rank=self.rank,
            world_size=self.world_size,
            size=self.batch_size or _AT_ONCE,
            whole_batches=self.batch_size is not None,
            even=self.even,
            drop_last=self.drop_last,
        )

    def _delivered_before(self, workers: int) -> int:
        """Return what this worker had handed out when its own state was saved."""
        state, self._worker_state = self._worker_state, None
        if state is None:
            return 0
        if state["workers"] != workers:
            raise ArgumentError(
                f"The state is of one of {state['workers']} workers, and here are {workers}.",
                hint="use as many, or loader(), whose state goes with any number",
            )
        return int(state["delivered"])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(repo_id={self.repo_id!r}, num_frames={self.num_frames}, "
            f"epoch={self.epoch}, seed={self.seed}, rank={self.rank} of {self.world_size})"
        )


def _warn_of_repetition(epoch: int) -> None:
    warnings.warn(
        f"Epoch {epoch} is read again, in the same order: call set_epoch() before each pass of a "
        "DataLoader with workers, or use loader().",
        DemoreelWarning,
        stacklevel=3,
    )


def _checked_batch_size(size: int | None) -> int | None:
    if size is not None and (not hasattr(size, "__index__") or size < 1):
        raise ArgumentError(f"batch_size must be a whole number from 1, not {size!r}.")
    return None if size is None else int(size)


def _named(
    given: str, root: str | os.PathLike[str] | None
) -> tuple[str, str | os.PathLike[str] | None, bool]:
    """Return ``repo_id``, ``root``, and whether only the Hub can hold all of the dataset.

    The first argument may be either; a cache of the Hub may hold some episodes only.
    """
    if root is not None or remote_uri(given, None, None, stream=False) is not None:
        return given, root, False
    if Path(given).is_dir():
        return Path(given).resolve().name, given, False
    return given, None, not is_dataset(recorded_root(given))

"""``Mixture``: several datasets in one training run, in exact shares and an order that resumes."""

from __future__ import annotations

import gc
import os
import uuid
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from demoreel.errors import ArgumentError, OutOfRangeError
from demoreel.model import Info, Stats
from demoreel.read.interleave import MixtureOrder, MixturePosition, Weights
from demoreel.read.mixture import Missing, MixtureReader
from demoreel.read.mixture_file import mixture_arguments
from demoreel.read.part import Part
from demoreel.torch.collate import Allocator, Sample, TensorBatch, cut_samples, ring_of_this_worker
from demoreel.torch.dataset import Transform, image_dtype, video_device_of
from demoreel.torch.episodes import EpisodesView
from demoreel.torch.metadata import LeRobotDatasetMetadata
from demoreel.torch.recording import in_seconds
from demoreel.torch.ring import Ring
from demoreel.torch.stream_pass import checked_seed, rank_and_world_size

if TYPE_CHECKING:
    from demoreel.torch.device import DecodeDevice

__all__ = ["Mixture", "MixtureMetadata", "Part"]


class Mixture(torch.utils.data.Dataset[dict[str, Any]]):
    """Several datasets as one, for a plain ``DataLoader``.

    ``mixture[i]`` is the i-th sample of this rank from where the mixture stands; ``DataLoader``
    reads batches in that order with any number of workers, without shuffling: the order is random
    already. A pass is an epoch, and the next pass goes on after it. Nothing is skipped or given
    twice, also where a loop is left early.

    A sample has the features of all parts, and besides ``task``: ``dataset_index`` (its part),
    ``normalization_key``, ``KEY_is_missing`` of features that some part lacks, ``KEY_dim_is_pad``
    of padded ones, ``KEY_is_pad`` of windows. ``index`` and ``episode_index`` count in its own
    dataset, ``task_index`` in ``mixture.tasks``.

    Args:
        parts: Datasets, or paths and URIs of them.
        weights: How likely a sample is of a part: by its frames (``"length"``, the default), by
            their root (``"sqrt"``), all alike (``"equal"``), or numbers that are relative to one
            another. Otherwise every part has ``probability=``, ``repeat=`` or ``samples=``.
        temperature: Frames to this power: 1 is ``"length"``, 0.5 ``"sqrt"``, 0 ``"equal"``.
        delta_timestamps: Windows in seconds, by feature.
        cameras: Only these cameras, by their names in the mixture; None is all.
        pad: By feature, how many dimensions it has in all samples; zeros are added.
        missing: What becomes of a feature that some parts lack: ``"mask"`` fills it with zeros and
            adds ``KEY_is_missing``, ``"drop"`` leaves it out, ``"error"`` refuses the parts.
        image_size: (height, width) to scale all images to.
        seed: Of the order.
        shuffle: Whether parts are walked in a random order, or from their first frame to the last.
        rank: Whose samples; by default that of ``torch.distributed``, or of ``torchrun``. Where
            another library deals batches out (accelerate), give ``rank=0, world_size=1``.
        world_size: How many ranks there are.
        image_transforms: Applied to each image (or window of images), depth excepted.
        return_uint8: Give images as uint8 from 0 to 255.
        depth_output_unit: Unit of depth images.
        tolerance_s: How far windows may be off the grid of frames.
        samples_per_epoch: Samples of a pass, all ranks together; None is what the weights say.
        decode_threads: By default every core in a main process and one in a worker.
        decode_device: Where videos are decoded, as in ``LeRobotDataset``. Images of colour cameras
            then are there, also those that the CPU decodes. Wrap the loader in ``to_device``.
        gpu_memory_mb: Likewise.

    Raises:
        ArgumentError: The parts cannot be reconciled (every reason names both datasets), or an
            argument makes no sense.
        DatasetNotFoundError: There is no such dataset.
    """

    def __init__(
        self,
        parts: Sequence[Part | str],
        *,
        weights: Weights | None = None,
        temperature: float | None = None,
        delta_timestamps: dict[str, list[float]] | None = None,
        cameras: Iterable[str] | None = None,
        pad: Mapping[str, int] | None = None,
        missing: Missing = "mask",
        image_size: tuple[int, int] | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        image_transforms: Transform | None = None,
        return_uint8: bool = False,
        depth_output_unit: Literal["mm", "m"] = "mm",
        tolerance_s: float = 1e-4,
        samples_per_epoch: int | None = None,
        decode_threads: int | None = None,
        decode_device: DecodeDevice = "cpu",
        gpu_memory_mb: int = 512,
    ) -> None:
        self._video = video_device_of(decode_device, gpu_memory_mb)
        self.rank, self.world_size = rank_and_world_size(rank, world_size)
        seed = checked_seed(seed)
        self.shuffle = bool(shuffle)
        self.image_transforms = image_transforms
        self.return_uint8 = bool(return_uint8)
        self.depth_output_unit = depth_output_unit
        self.delta_timestamps = delta_timestamps
        self.tolerance_s = tolerance_s
        self.reader = MixtureReader(
            parts,
            weights=weights,
            temperature=temperature,
            windows=in_seconds(delta_timestamps),
            tolerance_s=tolerance_s,
            cameras=cameras,
            pad=pad,
            missing=missing,
            image_size=image_size,
            depth_unit=depth_output_unit,
            samples_per_epoch=samples_per_epoch,
            decode_threads=decode_threads,
        )
        none = (0,) * len(self.reader.parts)
        self._stand = _Stand(seed, MixturePosition(0, none, none))
        self._token = uuid.uuid4().hex  # a worker's copy has it too
        self._set_up()

    def _set_up(self) -> None:
        self._home = os.getpid()
        self._progress = _LoaderProgress()
        self._order: tuple[list[int], MixtureOrder] | None = None
        self._ring_of_process: tuple[int | None, Ring | None] = (None, None)
        _at_home[self._token] = self

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **changes: Any) -> Mixture:
        """Return the mixture that a YAML or JSON file describes.

        Args:
            path: The file. Its keys are the arguments of ``Mixture``; ``parts`` is a list of paths,
                or of the arguments of ``Part``. Paths are relative to the file's folder.
            **changes: Arguments that take the place of the file's.

        Raises:
            ArgumentError: The file cannot be read, or has a key that is no argument.
        """
        return cls(**{**mixture_arguments(path), **changes})

    def __getstate__(self) -> dict[str, Any]:
        kept = {**self.__dict__, "_order": None, "_ring_of_process": (None, None)}
        return {k: v for k, v in kept.items() if k not in ("_progress", "meta", "statistics")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()

    # The order

    @property
    def seed(self) -> int:
        """The seed of the order."""
        return self._stand.seed

    @property
    def parts(self) -> list[Part]:
        """What was asked for."""
        return [part.part for part in self.reader.parts]

    @property
    def probabilities(self) -> list[float]:
        """How likely a sample is of each part."""
        return self.reader.probabilities

    def __len__(self) -> int:
        """Samples of an epoch of this rank."""
        self._settle()  # samplers ask for the length when a pass begins
        return self._length()

    def with_whole_epochs(self) -> Mixture:
        """Let an epoch be so long that every frame of every part comes at least once; return self.

        For samplers that draw from one epoch's samples again and again.
        """
        parts = zip(self.reader.sizes, self.reader.weights, strict=True)
        total = sum(self.reader.weights)
        self.reader.epoch_samples = max(-(-n * total // weight) for n, weight in parts if weight)
        self.__dict__.pop("meta", None)
        return self

    def order(self, steps: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the part, and the frame of its dataset, of each of this rank's steps.

        Args:
            steps: Counted from the very beginning of the training; not from before the position of
                a state that was loaded.
        """
        wanted = np.asarray(steps, np.int64)
        order = self._current_order()
        if len(wanted) and wanted.min() < order.begin.step:
            raise OutOfRangeError(f"The order is known from step {order.begin.step} on.")
        parts, samples = order.at(wanted)
        frames = np.empty_like(samples)
        for part in self.reader.parts:
            own = parts == part.number
            frames[own] = part.frames(samples[own])
        return parts, frames

    def _current_order(self) -> MixtureOrder:
        stand = self._stand.numbers()
        if self._order is None or self._order[0] != stand:
            order = MixtureOrder(
                self.reader.sizes,
                self.reader.weights,
                seed=self._stand.seed,
                rank=self.rank,
                world_size=self.world_size,
                begin=self._stand.begin,
                shuffle=self.shuffle,
            )
            self._order = (stand, order)
        return self._order[1]

    # Reading

    def __getitem__(self, index: int) -> dict[str, Any]:
        total = self._length()
        if not -total <= index < total:
            raise OutOfRangeError(f"There is no sample {index}: an epoch has {total}.")
        return dict(self.__getitems__([index % total])[0])

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return many samples; ``DataLoader`` calls this with a whole batch.

        Cost: one plan for each part that occurs, and one round of decoding for all of them.
        """
        if self._is_at_home():
            self._progress.look(self)
        batch = self.read_batch(indices)
        items = cut_samples(batch, len(indices))
        if self.image_transforms is not None:
            for item in items:
                for key in self.reader.cameras:
                    is_depth = self.reader.features[key].is_depth
                    if not is_depth and isinstance(item[key], torch.Tensor):  # and no packets
                        item[key] = self.image_transforms(item[key])
        return items

    def read_batch(self, indices: Sequence[int]) -> TensorBatch:
        """Return samples as a batch of tensors, before ``image_transforms``."""
        steps = self._stand.step + np.asarray(indices, np.int64)
        parts, samples = self._current_order().at(steps)
        memory = Allocator(self.reader.memory, self._ring())
        decoder = image_dtype(self._video, is_uint8=self.return_uint8)
        allocate = memory.shared if self.return_uint8 or decoder else memory.private
        batch = self.reader.batch(parts, samples, allocate=allocate, decoder=decoder)
        tensors = {key: self._tensor(key, column, memory) for key, column in batch.items()}
        return _MixtureBatch(tensors, memory.blocks, self._token)

    def _tensor(self, key: str, column: Any, memory: Allocator) -> Any:
        if isinstance(column, list):
            return column
        tensor = torch.from_numpy(column) if isinstance(column, np.ndarray) else column
        known = self.reader.keys.get(key)
        if known is None or not known.feature.is_camera:
            return tensor
        if known.feature.is_video and tensor.ndim == 5 and tensor.shape[1] == 1:
            tensor = tensor.squeeze(1)  # as LeRobotDataset: no axis for a window of one video frame
        if tensor.dtype is not torch.uint8 or self.return_uint8:
            return tensor
        unit = torch.from_numpy(memory.shared(tuple(tensor.shape), np.dtype(np.float32)))
        return torch.div(tensor, 255.0, out=unit)

    @property
    def decode_device(self) -> torch.device:
        """Where videos are decoded that this device can decode."""
        return torch.device("cpu") if self._video is None else self._video.device

    @property
    def decoded_on(self) -> dict[str, dict[str, torch.device]]:
        """Where images are decoded, by part and camera, as the first frame of each tells.

        Cost: with ``decode_device=``, the packet index of one video of each, and one frame.
        """
        places = (torch.device("cpu"), self.decode_device)
        found = self.reader.decoded_by(self._video)
        return {part: {key: places[on] for key, on in own.items()} for part, own in found.items()}

    def _ring(self) -> Ring | None:
        process, ring = self._ring_of_process
        if process != os.getpid():
            ring = ring_of_this_worker()
            self._ring_of_process = (os.getpid(), ring)
        return ring

    # Where the training stands

    def state_dict(self) -> dict[str, Any]:
        """Return where the training stands: plain numbers, to be saved with a checkpoint.

        What counts is what a ``DataLoader`` has handed out in this process, not what its workers
        have read ahead. Save when all ranks have taken equally many steps; the state of one serves
        for all, with any number of ranks and workers.

        Cost: some ten milliseconds: torch's iterators are looked for among all objects.
        """
        self._progress.look(self)
        step = self._stand.step + self._progress.samples(self._length())
        at = self._current_order().position(step)
        return {
            "seed": self.seed,
            "step": at.step,
            "drawn": list(at.drawn),
            "taken": list(at.taken),
            "frames": self.reader.sizes,
            "weights": list(self.reader.weights),
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved; the seed becomes that of the state.

        Raises:
            ArgumentError: The state is of other parts, or other probabilities.
        """
        ours = {
            "frames": self.reader.sizes,
            "weights": list(self.reader.weights),
            "shuffle": self.shuffle,
        }
        for name, value in ours.items():
            if state.get(name) != value:
                raise ArgumentError(
                    f"The state was saved with {name}={state.get(name)!r}; here it is {value!r}.",
                    hint="use the same parts and probabilities, or begin anew",
                )
        numbers = [state.get("step"), *(state.get("drawn") or ()), *(state.get("taken") or ())]
        parts = len(self.reader.parts)
        if len(numbers) != 1 + 2 * parts or not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise ArgumentError(
                "This is no state of this mixture.", hint="give what state_dict() returned"
            )
        if sum(state["drawn"]) != state["step"]:
            raise ArgumentError("This is no state of this mixture: its numbers contradict.")
        at = MixturePosition(state["step"], tuple(state["drawn"]), tuple(state["taken"]))
        self._stand.move(at.step, seed=checked_seed(state.get("seed", -1)), begin=at)
        self._progress = _LoaderProgress()

    def note_read(self) -> Any:
        """Return how far the pass is, after a batch was read; see ``CountsBatches``."""
        return self._progress, self._progress.batches

    def note_handed_out(self, read: Any, *, is_left: bool = False) -> None:
        """Let ``state_dict`` say that a training was given what had been read then."""
        if read is not None:
            read[0].handed_out = read[1]

    def _length(self) -> int:
        return max(1, self.reader.epoch_samples // self.world_size)

    def _is_at_home(self) -> bool:
        """Whether this is not a worker's copy."""
        return self._home == os.getpid() and torch.utils.data.get_worker_info() is None

    def _settle(self) -> None:
        """Move on behind a pass that is over, or that was left."""
        if self._is_at_home() and self._progress.is_over(self._length()):
            self._stand.move(self._stand.step + self._progress.samples(self._length()))
            self._progress = _LoaderProgress()

    # What lerobot's training asks

    @cached_property
    def statistics(self) -> Any:
        """Statistics of the parts, of normalisation keys and of all: ``stats.mixture``.

        Cost: the first time, reads all columns of numbers.
        """
        from demoreel.stats.mixture import mixture_stats

        return mixture_stats(self.reader)

    @property
    def stats(self) -> Stats:
        """Statistics of all samples, as often as they are drawn, in lerobot's form."""
        merged: Stats = self.meta.stats or {}
        return merged

    @property
    def part_stats(self) -> list[Stats]:
        """Statistics of each part."""
        parts: list[Stats] = self.statistics.parts
        return parts

    @property
    def stats_by_key(self) -> dict[str, Stats]:
        """Statistics by ``normalization_key``."""
        found: dict[str, Stats] = self.statistics.by_key
        return found

    def normalized(self, batch: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
        """Return a batch in which features have mean 0 and deviation 1 in each part.

        Args:
            batch: A collated batch, with ``normalization_key``.
            keys: Features of numbers; others stay as they are.
        """
        found = dict(batch)
        for key in keys:
            values = batch[key]
            out = torch.zeros_like(values)
            for name in dict.fromkeys(batch["normalization_key"]):
                kinds = self.stats_by_key[name].get(key)
                if kinds is None:
                    continue  # the part lacks it: zeros
                rows = [n for n, own in enumerate(batch["normalization_key"]) if own == name]
                mean = torch.as_tensor(kinds["mean"], dtype=values.dtype)
                std = torch.as_tensor(kinds["std"], dtype=values.dtype)
                out[rows] = (values[rows] - mean) / std.clamp_min(1e-8)
            found[key] = out
        return found

    @cached_property
    def meta(self) -> MixtureMetadata:
        """Metadata under the names that lerobot's policies and training ask for."""
        return MixtureMetadata(self)

    @property
    def tasks(self) -> Mapping[int, str]:
        """The texts of ``task_index``."""
        return self.reader.tasks

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Every feature's entry, as ``info.json`` would hold it."""
        return self.meta.features

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.reader.fps

    @property
    def num_frames(self) -> int:
        """Samples of an epoch, all ranks together."""
        return self.reader.epoch_samples

    @property
    def num_episodes(self) -> int:
        """Episodes of all parts."""
        return sum(len(part.dataset.episodes) for part in self.reader.parts)

    @property
    def episodes(self) -> None:
        """None: parts choose their episodes themselves."""
        return None

    @property
    def absolute_to_relative_idx(self) -> None:
        """None: samples are counted as they come."""
        return None

    def set_image_transforms(self, image_transforms: Transform | None) -> None:
        """Apply this to images from now on."""
        self.image_transforms = image_transforms

    def __str__(self) -> str:
        return str(self.reader)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(parts={len(self.reader.parts)}, "
            f"num_frames={self.num_frames}, seed={self.seed}, rank={self.rank} of "
            f"{self.world_size})"
        )


class MixtureMetadata(LeRobotDatasetMetadata):
    """Metadata of a mixture: the features of its samples, and their statistics.

    ``episodes`` has one row, which spans an epoch: lerobot's samplers draw from it.
    """

    def __init__(self, mixture: Mixture) -> None:
        reader = mixture.reader
        self._mixture = mixture
        self._set_up()
        self.repo_id = "mixture"
        self.repo_type = "dataset"
        self.revision = "v3.0"
        self.root = Path(reader.parts[0].dataset.root)
        self._reader = None
        self._tasks = reader.tasks
        self._values = {}
        robots = {part.dataset.info.robot_type for part in reader.parts}
        raw = {
            "codebase_version": "v3.0",
            "robot_type": robots.pop() if len(robots) == 1 else None,
            "fps": int(reader.fps) if reader.fps == int(reader.fps) else reader.fps,
            "total_episodes": mixture.num_episodes,
            "total_frames": mixture.num_frames,
            "total_tasks": len(reader.tasks),
            "chunks_size": 1000,
            "splits": {},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
            "features": {key: feature.to_json() for key, feature in reader.features.items()},
        }
        self._model = Info.from_json(raw, where="mixture")

    def _load(self, reader: Any) -> None:
        """Do nothing: what there is follows from the mixture."""

    def _stats(self) -> Stats | None:
        merged: Stats = self._mixture.statistics.merged
        return {key: dict(kinds) for key, kinds in merged.items()}

    def _episode_rows(self) -> EpisodesView | None:
        import pyarrow as pa

        total = self._mixture.num_frames
        return EpisodesView(
            pa.table(
                {
                    "episode_index": [0],
                    "tasks": [list(self._mixture.tasks.values())],
                    "length": [total],
                    "dataset_from_index": [0],
                    "dataset_to_index": [total],
                }
            )
        )


class _Stand:
    """Where the next pass begins, in memory that workers see, also those that live on.

    Args:
        seed: Of the order.
        begin: Where the order begins.
    """

    def __init__(self, seed: int, begin: MixturePosition) -> None:
        self._numbers = torch.zeros(3 + 2 * len(begin.drawn), dtype=torch.int64)
        self._numbers.share_memory_()  # type: ignore[no-untyped-call]
        self.move(begin.step, seed=seed, begin=begin)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._numbers.share_memory_()  # type: ignore[no-untyped-call]  # a deep copy was not

    @property
    def step(self) -> int:
        """The step at which the pass begins."""
        return int(self._numbers[0])

    @property
    def seed(self) -> int:
        """The seed of the order."""
        return int(self._numbers[1])

    @property
    def begin(self) -> MixturePosition:
        """Where the order begins."""
        step, *counts = self._numbers[2:].tolist()
        half = len(counts) // 2
        return MixturePosition(step, tuple(counts[:half]), tuple(counts[half:]))

    def numbers(self) -> list[int]:
        """Return what the order follows from."""
        found: list[int] = self._numbers[1:].tolist()
        return found

    def move(
        self, step: int, *, seed: int | None = None, begin: MixturePosition | None = None
    ) -> None:
        """Let the next pass begin at a step."""
        if seed is not None:
            self._numbers[1] = seed
        if begin is not None:
            self._numbers[2:] = torch.tensor([begin.step, *begin.drawn, *begin.taken])
        self._numbers[0] = step


class _LoaderProgress:
    """How much of a pass a ``DataLoader`` has handed out.

    torch tells a map-style dataset nothing of that. But its iterator refers to the dataset, so it
    is found, and counts batches in ``_num_yielded``. A number that notes what is added to it takes
    that place: the count stays when a loop is left, and its iterator is gone.
    """

    def __init__(self) -> None:
        self._iterator: weakref.ref[Any] | None = None
        self._size = 1
        self.batches = 0
        self.handed_out: int | None = None  # where another loader reads ahead, which has fewer

    def look(self, mixture: Mixture) -> None:
        """Find the iterator that reads a mixture, if none is known that is under way."""
        if self._is_under_way():
            return
        for one in gc.get_referrers(mixture):
            owners = [one]
            if isinstance(one, dict) and "_num_yielded" in one:  # the fields of an iterator
                owners = gc.get_referrers(one)
            for owner in owners:
                if _reads(owner, mixture) and not isinstance(owner._num_yielded, _NotedCount):
                    mixture._settle()
                    mixture._progress._attach(owner)
                    return

    def _attach(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)
        self._size = getattr(iterator._index_sampler, "batch_size", 1) or 1
        self.batches = int(iterator._num_yielded)
        iterator._num_yielded = _NotedCount.of(self.batches, self)

    def _is_under_way(self) -> bool:
        iterator = None if self._iterator is None else self._iterator()
        # Workers that live on begin another pass with a plain 0.
        return iterator is not None and isinstance(iterator._num_yielded, _NotedCount)

    def samples(self, most: int) -> int:
        """Return how many samples of the pass were handed out."""
        batches = self.batches if self.handed_out is None else self.handed_out
        return min(most, batches * self._size)

    def is_over(self, most: int) -> bool:
        """Whether the pass is over, or was left."""
        if self._iterator is None:
            return False
        return not self._is_under_way() or self.samples(most) >= most


class _NotedCount(int):
    """A number that notes, where it is counted up, what it has become."""

    progress: _LoaderProgress

    @classmethod
    def of(cls, value: int, progress: _LoaderProgress) -> _NotedCount:
        """Return a number that notes for this."""
        made = cls(value)
        made.progress = progress
        return made

    def __add__(self, more: int) -> _NotedCount:
        made = _NotedCount.of(int(self) + more, self.progress)
        self.progress.batches = int(made)
        return made


def _reads(one: Any, mixture: Mixture) -> bool:
    return isinstance(one, _BaseDataLoaderIter) and vars(one).get("_dataset") is mixture


_at_home: weakref.WeakValueDictionary[str, Mixture] = weakref.WeakValueDictionary()


class _MixtureBatch(TensorBatch):
    """A batch that says at home, when it arrives from a worker, that a pass is under way."""

    def __init__(self, values: dict[str, Any], blocks: dict[int, Any], token: str) -> None:
        super().__init__(values, blocks)
        self._token = token

    def ready_to_travel(self) -> dict[str, Any]:
        """Return the batch as a worker sends it."""
        ready = super().ready_to_travel()
        if torch.utils.data.get_worker_info() is None:
            return ready
        return _TravellingBatch(ready, self._token)


class _TravellingBatch(dict[str, Any]):
    """A batch on its way out of a worker; a plain dict where it arrives."""

    def __init__(self, values: dict[str, Any], token: str) -> None:
        super().__init__(values)
        self.token = token

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.token, dict(self))


def _arrived(token: str, values: dict[str, Any]) -> dict[str, Any]:
    mixture = _at_home.get(token)
    if mixture is not None:
        mixture._progress.look(mixture)
    return values

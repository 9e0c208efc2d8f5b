"""``LeRobotDataset`` with the constructor and the items that LeRobot users know."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import numpy as np
import torch

from demoreel.errors import ArgumentError, ReadOnlyError
from demoreel.layouts.detect import open_reader
from demoreel.storage.external import AllowExternal
from demoreel.storage.folder import DatasetFolder, dataset_folder
from demoreel.torch.collate import Allocator, Sample, TensorBatch, cut_samples, ring_of_this_worker
from demoreel.torch.metadata import LeRobotDatasetMetadata
from demoreel.torch.place import DatasetPlace, found_dataset, remote_uri
from demoreel.torch.reader import ItemReader, RelativeIndices, raw_item
from demoreel.torch.recording import RecordingDataset, in_seconds
from demoreel.torch.ring import Ring

if TYPE_CHECKING:
    from demoreel.torch.device import DecodeDevice, VideoDevice

Transform = Callable[[torch.Tensor], torch.Tensor]

_THEIR_MODULE = "lerobot.datasets.lerobot_dataset"


class LooksLikeLeRobot:
    """Makes ``isinstance(ds, lerobot's LeRobotDataset)`` true, once lerobot is imported.

    Their class cannot be a base class: demoreel works without lerobot, and importing it takes
    seconds. But ``isinstance`` also asks an object for its ``__class__``, and that of these objects
    is then a class derived from both. Their type stays what it is, and so do their methods.
    """

    @property  # type: ignore[misc]  # object's can be set too
    def __class__(self) -> Any:
        """The class that this object is taken for; ``type(ds)`` is the one it has."""
        ours: Any = type(self)
        theirs = getattr(sys.modules.get(_THEIR_MODULE), "LeRobotDataset", None)
        return _child_of_both(ours, theirs) if isinstance(theirs, type) else ours

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The ordinary way compares __class__ with the type, and then refuses. Workers need not
        # have lerobot: only the type travels.
        return (_without_init, (type(self),), self.__getstate__())


def _without_init(kind: type[Any]) -> Any:
    return object.__new__(kind)


@lru_cache(maxsize=64)
def _child_of_both(ours: type[Any], theirs: type[Any]) -> type[Any]:
    if issubclass(ours, theirs):
        return ours
    names = {name: getattr(ours, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(ours.__name__, (ours, theirs), names)


class OpenOptions(TypedDict, total=False):
    """What all classes take that says how a dataset is read, wherever it lies."""

    episodes: Sequence[int] | None
    image_transforms: Transform | None
    delta_timestamps: dict[str, list[float]] | None
    tolerance_s: float
    revision: str | None
    return_uint8: bool
    episode_filter: Callable[[dict[str, Any]], bool] | None
    depth_output_unit: Literal["mm", "m"] | None
    cameras: Sequence[str] | None
    image_size: tuple[int, int] | None
    decode_threads: int | None
    allow_external: AllowExternal | None
    version: int | None
    tag: str | None


class LeRobotDataset(RecordingDataset, LooksLikeLeRobot, torch.utils.data.Dataset[dict[str, Any]]):
    """A dataset of any layout, on this machine or from the Hub, with lerobot 0.6.1's items.

    Items have lerobot's keys, dtypes, shapes and values: numbers as float32, int64 or bool,
    images as (channels, height, width), float32 in 0..1 or uint8, depth as float32, windows with
    a leading axis and a ``KEY_is_pad`` mask, and the ``task``. ``DataLoader`` fetches whole batches
    at once. Where lerobot is imported too, ``isinstance`` takes it for lerobot's own.

    Args:
        repo_id: ``me/my_task``. If ``root`` is None, the dataset is looked for in
            ``HF_LEROBOT_HOME/me/my_task``; else it is fetched from the Hub to the cache that
            lerobot uses, ``HF_LEROBOT_HOME/hub``: the metadata first, then the files that the
            chosen episodes and cameras need. What is there is not fetched again.
        root: The dataset's folder. If it holds something, the Hub is not asked; if not, it is made.
        episodes: Read only these; items keep the dataset's order.
        episode_filter: Keep the episodes whose metadata row satisfies this.
        image_transforms: Applied to each image (or window of images), depth excepted.
        delta_timestamps: Windows in seconds, by feature; multiples of 1/fps within ``tolerance_s``.
        tolerance_s: See ``delta_timestamps``. It never decides which image an item gets: frames
            are found by number.
        revision: A tag, a branch or a commit of the repository. None is the newest version that
            demoreel reads, v3.0 first. The Hub is not asked for a commit that is cached.
        force_cache_sync: Ask the Hub for something newer, wherever the dataset lies. A ``root``
            must have been pulled from there, and not been changed since.
        download_videos: False leaves the videos out; cameras that they hold cannot be read then.
        video_backend: Accepted for compatibility; videos are decoded from their packets.
        return_uint8: Give images as uint8 from 0 to 255, whether they lie in videos or in tables.
        depth_output_unit: Unit of depth images.
        batch_encoding_size: Other than 1, it makes ``add_frame`` append to the dataset, as
            ``resume`` does, from the first frame on. Deprecated, as in lerobot: use ``resume``.
        rgb_encoder: How such recording encodes; see ``resume``.
        depth_encoder: Likewise.
        encoder_threads: Likewise.
        streaming_encoding: True does what ``batch_encoding_size`` does.
        encoder_queue_maxsize: Accepted for compatibility, without effect.
        token: For the Hub; None uses ``HF_TOKEN`` or the login. It is not kept.
        cameras: Decode only these; the others are left out of the items.
        image_size: (height, width) to scale images to.
        decode_threads: By default every core in a main process and one in a DataLoader worker.
        decode_device: Where videos are decoded. ``"cpu"``; ``"cuda"`` (or ``"cuda:1"``, or a
            ``torch.device``): by NVDEC, so that items hold CUDA tensors. Workers then read packets
            only, and ``demoreel.torch.to_device(loader)`` decodes them in the training process.
            ``"auto"``: by the GPU if there is one. Cameras whose videos the GPU does not decode are
            decoded by the CPU; ``decoded_on`` tells. Colours differ from the CPU's by rounding.
        gpu_memory_mb: Memory of the GPU for frames on their way from the decoder to images; all
            datasets of a process share it.
        stream: Read the dataset where it lies on the Hub: nothing but its metadata is downloaded.
            ``repo_id`` or ``root`` may also be a URI (``s3://bucket/path``, ``gs://``, ``az://``,
            ``hf://...``), which is always read so.
        storage_options: Of a remote dataset; see ``demoreel.open``.
        allow_external: What the Lance tables may name outside the dataset; see ``demoreel.open``.
        cache_dir: Likewise.
        cache_size: Likewise.

    Raises:
        DatasetNotFoundError: The dataset is neither on this machine nor on the Hub, or it is not
            here and the Hub cannot be asked.
        UnsupportedVersionError: It has no version that demoreel reads; what it has, is listed.
        AccessError: The Hub requires another token.
        StoreError: The Hub does not answer as it should.
        ArgumentError: ``delta_timestamps`` are off the grid (all are listed), and the like.
    """

    _video: VideoDevice | None = None

    def __init__(
        self,
        repo_id: str,
        root: str | os.PathLike[str] | None = None,
        episodes: Sequence[int] | None = None,
        episode_filter: Callable[[dict[str, Any]], bool] | None = None,
        image_transforms: Transform | None = None,
        delta_timestamps: dict[str, list[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        download_videos: bool = True,
        video_backend: str | None = None,
        return_uint8: bool = False,
        depth_output_unit: Literal["mm", "m"] = "mm",
        batch_encoding_size: int = 1,
        rgb_encoder: Any = None,
        depth_encoder: Any = None,
        encoder_threads: int | None = None,
        streaming_encoding: bool = False,
        encoder_queue_maxsize: int = 30,
        *,
        token: str | bool | None = None,
        cameras: Sequence[str] | None = None,
        image_size: tuple[int, int] | None = None,
        decode_threads: int | None = None,
        decode_device: DecodeDevice = "cpu",
        gpu_memory_mb: int = 512,
        stream: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        allow_external: AllowExternal | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
    ) -> None:
        open_in = partial(
            self._open,
            episodes=episodes,
            image_transforms=image_transforms,
            delta_timestamps=delta_timestamps,
            tolerance_s=tolerance_s,
            revision=revision,
            return_uint8=return_uint8,
            episode_filter=episode_filter,
            depth_output_unit=depth_output_unit,
            cameras=cameras,
            image_size=image_size,
            decode_threads=decode_threads,
            allow_external=allow_external,
        )
        self._video = video_device_of(decode_device, gpu_memory_mb)
        uri = remote_uri(repo_id, root, revision, stream=stream)
        if uri is not None:
            options = dict(storage_options or {}) | ({"hf_token": token} if token else {})
            remote = dataset_folder(
                uri, storage_options=options, cache_dir=cache_dir, cache_size=cache_size
            )
            open_in(DatasetPlace.at(None if uri == repo_id else repo_id, remote))
            return
        if storage_options or cache_dir is not None or cache_size is not None:
            raise ArgumentError(
                "storage_options=, cache_dir= and cache_size= are for remote datasets.",
                hint="give a URI such as s3://bucket/path, or stream=True",
            )
        given = None if root is None else Path(root)
        with found_dataset(repo_id, given, revision, sync=force_cache_sync, token=token) as found:
            # Every argument is checked against the metadata before the large files are fetched.
            open_in(DatasetPlace(repo_id, DatasetFolder(found.folder)))
            folder = found.fetch(self.reader, videos=download_videos)
        if folder != self.root:
            open_in(DatasetPlace(repo_id, DatasetFolder(folder)))
        if streaming_encoding or batch_encoding_size != 1:
            self._record_when_asked(rgb_encoder, depth_encoder, encoder_threads)

    def _open(
        self,
        place: DatasetPlace,
        *,
        episodes: Sequence[int] | None = None,
        image_transforms: Transform | None = None,
        delta_timestamps: dict[str, list[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        return_uint8: bool = False,
        episode_filter: Callable[[dict[str, Any]], bool] | None = None,
        depth_output_unit: Literal["mm", "m"] | None = None,
        cameras: Sequence[str] | None = None,
        image_size: tuple[int, int] | None = None,
        decode_threads: int | None = None,
        allow_external: AllowExternal | None = None,
        version: int | None = None,
        tag: str | None = None,
    ) -> None:
        self.repo_id = place.repo_id
        self.root = place.folder.local
        if episode_filter is not None:
            episodes = self._filtered(episode_filter, episodes, revision, place)
        self.episodes = None if episodes is None else list(episodes)
        self._delta_timestamps = delta_timestamps
        self.tolerance_s = tolerance_s
        self.set_image_transforms(image_transforms)
        self._return_uint8 = return_uint8
        self._revision = revision
        self._depth_unit: Literal["mm", "m"] = depth_output_unit or "mm"
        self._image_size = image_size
        self._decode_threads = decode_threads
        self.reader = ItemReader(
            place.folder,
            episodes=self.episodes,
            cameras=cameras,
            image_size=image_size,
            windows=in_seconds(delta_timestamps),
            tolerance_s=tolerance_s,
            depth_unit=self._depth_unit,
            decode_threads=decode_threads,
            version=version,
            tag=tag,
            tables=place.tables,
            allow_external=allow_external,
        )
        self._ring_of_process: tuple[int | None, Ring | None] = (None, None)
        self._describe()

    def _read_as_recorded(self) -> None:
        """Read the dataset that was recorded, as this object was set."""
        meta = self.meta
        self._open(
            DatasetPlace(self.repo_id, DatasetFolder(self.root)),
            image_transforms=self.image_transforms,
            delta_timestamps=self.delta_timestamps,
            tolerance_s=self.tolerance_s,
            return_uint8=self._return_uint8,
            depth_output_unit=self._depth_unit,
        )
        # A script may hold the object that it had while it recorded.
        meta.follow(None)
        meta.rescale_depth_stats(self._depth_unit)
        self.meta = meta

    def _filtered(
        self,
        keep: Callable[[dict[str, Any]], bool],
        episodes: Sequence[int] | None,
        revision: str | None,
        place: DatasetPlace,
    ) -> list[int]:
        reader = open_reader(place.folder, tables=place.tables)
        meta = LeRobotDatasetMetadata(self.repo_id, self.root, revision, reader=reader)
        chosen = meta.filter_episodes(keep, None if episodes is None else list(episodes))
        if not chosen:
            raise ArgumentError("episode_filter keeps no episode.", dataset=self.root)
        return chosen

    def _describe(self) -> None:
        self.meta = LeRobotDatasetMetadata(
            self.repo_id, self.root, self._revision, reader=self.reader.reader
        )
        self.meta.rescale_depth_stats(self._depth_unit)
        self.revision = self.meta.revision
        self.reader.belong_to(self)

    def reopen(self) -> None:
        """Read the dataset's files anew, which an edit has changed; ``meta`` stays the object."""
        meta = self.meta
        self.reader = self.reader.changed(known=None)
        self._describe()
        meta.follow(None)
        meta.rescale_depth_stats(self._depth_unit)
        self.meta = meta

    def __getstate__(self) -> dict[str, Any]:
        if self._recorder is not None:
            raise ArgumentError(
                "A dataset that is being recorded stays in its process.",
                hint="open it again to read it elsewhere",
            )
        state = {**self.__dict__, "_ring_of_process": (None, None)}
        if "reader" in state:
            # Every process reads the metadata itself, except for what a script may have changed.
            state["_said"] = state.pop("meta").said
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        said = state.pop("_said", None)
        self.__dict__.update(state)
        if "reader" in state:
            if self.reader.has_owner:  # copy.copy() hands out the same object
                self.reader = self.reader.changed()
            self._describe()
            self.meta.say(said or {})

    @property
    def fps(self) -> float:
        """Frames per second."""
        return self.meta.fps

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Every feature's entry in ``info.json``."""
        return self.meta.features

    @property
    def num_frames(self) -> int:
        """Frames in the chosen episodes."""
        if self._recorder is not None:
            return self._recorder.num_frames
        return len(self.reader) if self.reader is not None else 0

    @property
    def num_episodes(self) -> int:
        """Chosen episodes."""
        if self._recorder is not None:
            return self._recorder.num_episodes
        return len(self.reader.episodes) if self.reader is not None else 0

    @property
    def delta_timestamps(self) -> dict[str, list[float]] | None:
        """Windows in seconds, by feature; assigning others changes the items from then on.

        Raises:
            ArgumentError: They are off the grid, or there is no such feature.
        """
        return self._delta_timestamps

    @delta_timestamps.setter
    def delta_timestamps(self, windows: dict[str, list[float]] | None) -> None:
        reader = self.reader
        if reader is not None:
            changed = reader.changed(
                windows=in_seconds(windows) or {}, tolerance_s=self.tolerance_s
            )
            changed.belong_to(self)
            if self._recorder is None:
                self.reader = changed
            else:
                self.__dict__["_opened"] = (self.__dict__["_opened"][0], changed)
        self._delta_timestamps = windows

    @property
    def delta_indices(self) -> dict[str, list[int]] | None:
        """Windows in frames."""
        return None if self.reader is None else self.reader.delta_indices

    @property
    def depth_output_unit(self) -> str:
        """Unit of depth images and their statistics."""
        return self._depth_unit

    @property
    def absolute_to_relative_idx(self) -> RelativeIndices | None:
        """Which item each frame of the chosen episodes is; None if all were chosen.

        lerobot's ``EpisodeAwareSampler`` counts frames of the whole dataset and asks for this.
        """
        return self._read().absolute_to_relative_idx

    @property
    def hf_dataset(self) -> Any:
        """The rows as a Hugging Face dataset, whose values are lerobot's tensors.

        Columns of cameras whose images lie in tables hold the number of the row, and the image is
        decoded when it is asked for; videos are no columns, as in lerobot.

        Cost: reads every row, images excepted, into memory, the first time.

        Raises:
            MissingExtraError: The package ``datasets`` is not installed.
        """
        return self._read().hf_dataset

    def get_raw_item(self, idx: int) -> dict[str, Any]:
        """Return one row of ``hf_dataset``: no videos, no windows, no transforms and no ``task``.

        Cost: one row, its images included.
        """
        return raw_item(self._read(), idx)

    def _read(self) -> ItemReader:
        """Return what reads items."""
        if self.reader is None:
            raise ReadOnlyError(
                "No episode is saved yet, so there is nothing to read.",
                hint="save_episode() saves one; finalize() ends the recording",
                dataset=self.root,
            )
        return self.reader

    def select_columns(self, column_names: str | list[str]) -> Any:
        """Return these columns of ``hf_dataset``."""
        return self.hf_dataset.select_columns(column_names)

    def set_image_transforms(self, image_transforms: Transform | None) -> None:
        """Apply this to images from now on."""
        if image_transforms is not None and not callable(image_transforms):
            raise TypeError("image_transforms must be callable or None.")
        self.image_transforms = image_transforms

    def clear_image_transforms(self) -> None:
        """Hand images out as they are."""
        self.image_transforms = None

    def __len__(self) -> int:
        return self.num_frames

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Return one item, or the list of a slice's."""
        if isinstance(index, slice):
            wanted = range(*index.indices(len(self)))
            return [dict(item) for item in self.__getitems__(wanted)] if wanted else []
        return dict(self.__getitems__([index])[0])

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return many items; ``DataLoader`` calls this with a whole batch.

        Planned once: one take of rows, each image decoded once. torch's ``default_collate`` then
        gets the batch as it was decoded, without a copy.
        """
        batch = self.read_batch(indices)
        items = cut_samples(batch, len(indices))
        if self.image_transforms is not None:
            for item in items:
                for key in self.reader.cameras:
                    # Packets are not images yet: ``to_device`` transforms what it decodes.
                    if key not in self.meta.depth_keys and isinstance(item[key], torch.Tensor):
                        item[key] = self.image_transforms(item[key])
        return items

    def read_batch(self, indices: Sequence[int]) -> TensorBatch:
        """Return a batch as tensors with a leading axis, before ``image_transforms``."""
        reader = self._read()
        memory = Allocator(reader.memory, self._ring())
        # Images that will become floats are decoded to memory that stays here.
        allocate = memory.shared if self._return_uint8 else memory.private
        if self._video is not None:
            allocate = memory.shared  # packets, which travel
        batch = reader.batch(indices, allocate=allocate, decode_device=self._decoder())
        tensors = {key: self._tensor(key, column, memory) for key, column in batch.items()}
        return TensorBatch(tensors, memory.blocks)

    def _ring(self) -> Ring | None:
        """Return this worker's shared blocks; made anew in every process."""
        process, ring = self._ring_of_process
        if process != os.getpid():
            ring = ring_of_this_worker()
            self._ring_of_process = (os.getpid(), ring)
        return ring

    def _tensor(self, key: str, column: Any, memory: Allocator) -> Any:
        if isinstance(column, list):
            return column
        feature = self.reader.features.get(key)
        if isinstance(column, np.ndarray):
            if feature is None or not feature.is_camera:
                return torch.from_numpy(_as_lerobot_numbers(column))
            column = torch.from_numpy(column)
        if feature is not None and feature.is_video and column.ndim == 5 and column.shape[1] == 1:
            column = column.squeeze(1)  # lerobot drops the axis of a window of one video frame
        # Depth, if not uint8; images of a device, which are as they should be, or packets.
        if column.dtype is not torch.uint8 or self._return_uint8:
            return column
        unit = torch.from_numpy(memory.shared(tuple(column.shape), np.dtype(np.float32)))
        return torch.div(column, 255.0, out=unit)

    def _decoder(self) -> VideoDevice | None:
        """Return what decodes videos to the dtype of the items; None is the CPU."""
        return image_dtype(self._video, is_uint8=self._return_uint8)

    @property
    def decode_device(self) -> torch.device:
        """Where videos are decoded that this device can decode."""
        return torch.device("cpu") if self._video is None else self._video.device

    @property
    def decoded_on(self) -> dict[str, torch.device]:
        """Where each camera's images are decoded, as its first frame tells.

        Cost: with ``decode_device=``, the packet index of one video of each camera, and one frame.
        """
        found = dict.fromkeys(self._read().cameras, torch.device("cpu"))
        if self._video is not None:
            from demoreel.read.packets import camera_form

            for key in found:
                form = camera_form(self.reader.reader, key)
                if form is not None and self._video.is_decoded(form):
                    found[key] = self._video.device
        return found

    def __repr__(self) -> str:
        layout = self.meta.revision if self.reader is None else self.reader.layout
        layout = "recording" if self._recorder is not None else layout
        return (
            f"{type(self).__name__}(repo_id={self.repo_id!r}, layout={layout!r}, "
            f"num_episodes={self.num_episodes}, num_frames={self.num_frames})"
        )


def video_device_of(wanted: DecodeDevice, memory_mb: int) -> VideoDevice | None:
    """Return the GPU that is to decode videos; None is the CPU, which needs nothing of it."""
    if wanted == "cpu" and memory_mb >= 1:
        return None
    from demoreel.torch.device import video_device

    return video_device(wanted, memory_mb=memory_mb)


def image_dtype(video: VideoDevice | None, *, is_uint8: bool) -> VideoDevice | None:
    """Return a device that gives images as uint8, or as float32 from 0 to 1."""
    dtype = torch.uint8 if is_uint8 else torch.float32
    return video if video is None or video.dtype is dtype else replace(video, dtype=dtype)


def _as_lerobot_numbers(column: np.ndarray) -> np.ndarray:
    """Return numbers in the dtypes that lerobot's items have: float32, int64, bool."""
    if column.dtype.kind == "f":
        return column.astype(np.float32, copy=False)
    if column.dtype.kind in "iu":
        return column.astype(np.int64, copy=False)
    return column

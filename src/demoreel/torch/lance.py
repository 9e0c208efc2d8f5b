"""The two classes for Lance datasets, with the constructors that their users know."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Unpack
from urllib.parse import unquote, urlsplit

import numpy as np
import torch

from demoreel.errors import ArgumentError
from demoreel.layouts.base import Reader
from demoreel.read.batch import BatchReader, expand
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.place import RemotePlace, is_object_store, remote_place
from demoreel.storage.remote.folder import open_remote
from demoreel.storage.threads import Threads
from demoreel.torch.collate import Allocator, TensorBatch
from demoreel.torch.dataset import LeRobotDataset, OpenOptions, video_device_of
from demoreel.torch.device import (
    DecodeDevice,
    DeviceImages,
    chosen_device,
    say_once,
)
from demoreel.torch.place import (
    DatasetPlace,
    PathLike,
    is_dataset,
    is_there,
    metadata_root,
    remote_uri,
    update_pulled,
)

_RIGHT_CLASS = {
    "lance-video": "LeRobotLanceVideoDataset",
    "lance-native": "LeRobotLanceVideoDataset",
    "lance-frames": "LeRobotLanceDataset",
}


class LanceOptions(OpenOptions, total=False):
    """The keyword arguments that both classes take; see ``LeRobotLanceVideoDataset``."""

    uri: str | None
    meta_root: PathLike | None
    table_name: str | None
    connect_kwargs: dict[str, Any] | None
    storage_options: dict[str, Any] | None
    video_backend: str | None
    download_videos: bool | None
    force_cache_sync: bool | None


class _LanceDataset(LeRobotDataset):
    """What both classes share: the places that they look in, and the layouts that they refuse."""

    _to: ClassVar[str]

    def __init__(
        self,
        repo_id: str | None = None,
        root: PathLike | None = None,
        *,
        uri: str | None = None,
        meta_root: PathLike | None = None,
        table_name: str | None = None,
        connect_kwargs: dict[str, Any] | None = None,
        storage_options: dict[str, Any] | None = None,
        video_backend: str | None = None,
        download_videos: bool | None = None,
        force_cache_sync: bool | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        unknown = options.keys() - OpenOptions.__annotations__.keys()
        if unknown:  # before anything is fetched
            raise TypeError(f"{type(self).__name__} takes no argument {min(unknown)!r}")
        place = find_place(
            repo_id,
            root,
            uri=uri,
            meta_root=meta_root,
            table_name=table_name,
            revision=options.get("revision"),
            storage_options=_options_of(connect_kwargs, storage_options),
            sync=bool(force_cache_sync),
        )
        self._open(place, **options)
        self._check_layout()

    def _check_layout(self) -> None:
        layout = self.reader.layout
        ours = type(self).__name__
        right = right_class(layout, filmed=bool(self.meta.video_keys))
        if right is None:
            raise ArgumentError(
                f"{ours} reads Lance datasets; this one is {layout}.",
                hint=f"LeRobotDataset reads it as it lies; to make it a Lance dataset: "
                f"demoreel convert {self.root} TARGET --to {self._to}",
                dataset=self.root,
            )
        if not isinstance(self, CLASSES[right]) and self.meta.camera_keys:
            raise ArgumentError(
                f"{ours} does not read this dataset, whose layout is {layout}.",
                hint=f"use demoreel.torch.{right}",
                dataset=self.root,
            )


class LeRobotLanceVideoDataset(_LanceDataset):
    """A Lance dataset whose images lie in videos: lance-video or lance-native.

    Its items are those of ``LeRobotDataset`` on the dataset that it was made from, bit for bit.

    Args:
        repo_id: ``me/my_task``: looked for in ``HF_LEROBOT_HOME``, else fetched from the Hub to the
            cache there, tables as a whole. A folder's path, given alone, is taken for ``root``.
        root: The folder of the tables and ``meta/``, or the table in it. If there is nothing and
            ``repo_id`` is given, the dataset is pulled to it.
        uri: The table of rows, ``.../NAME.lance``: a path, ``file://``, or in an object store
            ``s3://``, ``gs://`` or ``az://``, with the credentials that the environment has.
        meta_root: The folder on this machine that contains ``meta/``, where it does not lie beside
            the tables.
        table_name: Which table, where a folder holds several.
        revision: A tag, a branch or a commit of the repository.
        episodes: Read only these; items are counted from 0, as in ``LeRobotDataset``.
        delta_timestamps: Windows in seconds, by feature; multiples of 1/fps within ``tolerance_s``.
        image_transforms: Applied to each image (or window of images), depth excepted.
        tolerance_s: See ``delta_timestamps``. It never decides which image an item gets.
        return_uint8: Give video images as uint8.
        connect_kwargs: Of these, ``storage_options`` counts, as if given by itself.
        storage_options: What Lance is told of the object store beyond the environment, e.g.
            ``{"aws_region": "eu-west-1"}``; local tables need none. Processes that this one
            starts know them too; a pickle does not hold them.
        allow_external: What the tables may name outside the dataset; see ``demoreel.open``.
        video_backend: Accepted for compatibility; videos are decoded from their packets.
        download_videos: Accepted for compatibility; tables are fetched as a whole.
        force_cache_sync: Ask the Hub for something newer; a ``root`` must have been pulled from
            there, and not been changed since.
        depth_output_unit: Unit of depth images; millimetres if None.
        decoder_cache_size: Accepted for compatibility. Elsewhere it bounds the decoders that each
            worker keeps open, one per video. Here a thread has one decoder for all videos, and
            what is kept of a video is its list of packets, within a bound of its own.
        video_decoder_cache_size: Another name for it.
        decode_device: Where videos are decoded, and ``gpu_memory_mb``: as in ``LeRobotDataset``.
        gpu_memory_mb: Likewise.
        episode_filter: Keep the episodes whose metadata row satisfies this.
        cameras: Decode only these; the others are left out of the items.
        image_size: (height, width) to scale images to.
        decode_threads: By default every core in a main process and one in a DataLoader worker.
        version: The version of the table of rows to read; the newest if None.
        tag: The version with this name.

    Raises:
        DatasetNotFoundError: The dataset is neither on this machine nor on the Hub, or the URI's
            table not there.
        TableError: A table in an object store does not open: the store, the credentials.
        ArgumentError: It is of a layout that another class reads, which the error names;
            ``delta_timestamps`` are off the grid, and the like.
    """

    _to = "lance-video"

    def __init__(
        self,
        repo_id: str | None = None,
        root: PathLike | None = None,
        *,
        decoder_cache_size: int = 16,
        video_decoder_cache_size: int | None = None,
        decode_device: DecodeDevice = "cpu",
        gpu_memory_mb: int = 512,
        **options: Unpack[LanceOptions],
    ) -> None:
        for size in (decoder_cache_size, video_decoder_cache_size or decoder_cache_size):
            if not isinstance(size, int) or size < 1:
                raise ArgumentError(
                    f"decoder_cache_size must be a whole number from 1, not {size!r}."
                )
        self._video = video_device_of(decode_device, gpu_memory_mb)
        super().__init__(repo_id, root, **options)


class LeRobotLanceDataset(_LanceDataset):
    """A Lance dataset whose images lie encoded beside the rows: lance-frames.

    Its items are those of ``LeRobotDataset`` on the dataset that it was made from: images within
    what JPEG loses, or bit for bit where they were written without loss.

    Args:
        repo_id: See ``LeRobotLanceVideoDataset``, as for all arguments but the following.
        root: The folder of the table and ``meta/``, or the table in it.
        decode_device: Where JPEGs are decoded. ``"cuda"`` (or ``"cuda:1"``, or a ``torch.device``):
            by the GPU, into its memory, so that items hold CUDA tensors; in DataLoader workers
            that takes ``multiprocessing_context="spawn"``. ``"cpu"``: by libjpeg-turbo.
            ``"auto"``: by the GPU in a main process, if there is one; else by the CPU, which is
            said once per process.

    Raises:
        DatasetNotFoundError: The dataset is neither on this machine nor on the Hub.
        ArgumentError: It is of a layout that another class reads, which the error names; there is
            no such device; and the like.
        MissingExtraError: ``decode_device="cuda"`` without torchvision.
    """

    _to = "lance-frames"

    def __init__(
        self,
        repo_id: str | None = None,
        root: PathLike | None = None,
        *,
        decode_device: DecodeDevice = "auto",
        **options: Unpack[LanceOptions],
    ) -> None:
        super().__init__(repo_id, root, **options)
        self._device = chosen_device(decode_device)
        self._is_automatic = decode_device == "auto"
        self._on_device: tuple[tuple[int, Reader], _DeviceBatches | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_on_device": None}

    def read_batch(self, indices: Sequence[int]) -> TensorBatch:
        """Return a batch as tensors with a leading axis, before ``image_transforms``."""
        if self._batches_on_device() is None:
            return super().read_batch(indices)
        rows = self.reader.rows_of(indices)
        columns = self.reader.following(lambda: self._read_on_device(rows))
        memory = Allocator(self.reader.memory, None)
        tensors = {
            key: self._device_tensor(key, column)
            if isinstance(column, torch.Tensor)
            else self._tensor(key, column, memory)
            for key, column in columns.items()
        }
        return TensorBatch(tensors, {})

    def _read_on_device(self, rows: np.ndarray) -> dict[str, Any]:
        device = self._batches_on_device()
        assert device is not None
        return device.read(rows)

    def _device_tensor(self, key: str, images: torch.Tensor) -> torch.Tensor:
        filmed = self.reader.features[key].is_video
        if filmed and images.ndim == 5 and images.shape[1] == 1:
            images = images.squeeze(1)  # as in LeRobotDataset
        return images if filmed and self._return_uint8 else images.float().div_(255.0)

    def _batches_on_device(self) -> _DeviceBatches | None:
        """Return the GPU's part of reading in this process; None where the CPU decodes all."""
        if self._device is None:
            return None
        here = (os.getpid(), self.reader.reader)  # another process, or the dataset has moved
        if self._on_device is None or self._on_device[0] != here:
            self._on_device = (here, self._awakened(self._device))
        return self._on_device[1]

    def _awakened(self, device: torch.device) -> _DeviceBatches | None:
        if self._is_automatic and torch.utils.data.get_worker_info() is not None:
            say_once("decode_device='auto': in DataLoader workers, the CPU decodes")
            return None
        try:
            torch.zeros(1, device=device)
        except RuntimeError as error:
            if self._is_automatic:
                say_once(f"decode_device='auto': images are decoded by the CPU ({error})")
                return None
            raise ArgumentError(
                f"The device {device} cannot be used in this process ({error}).",
                hint="a forked worker cannot use the GPU of its parent: give the DataLoader "
                "multiprocessing_context='spawn' or num_workers=0, or decode_device='cpu'",
                dataset=self.root,
            ) from error
        return _DeviceBatches(self, device)


class _DeviceBatches:
    """Batches whose colour images a device decodes; all the rest is read as ever."""

    def __init__(self, dataset: LeRobotLanceDataset, device: torch.device) -> None:
        opened = dataset.reader
        self._keys = [key for key in opened.cameras if not opened.features[key].is_depth]
        self._reader = opened.reader
        self._offsets = opened.offsets
        self._images = DeviceImages(
            self._reader, self._keys, device=device, size=dataset._image_size
        )
        self._rest = BatchReader(
            self._reader,
            cameras=[key for key in opened.cameras if key not in self._keys],
            offsets=self._offsets,
            size=dataset._image_size,
            depth_unit=dataset._depth_unit,
            threads=dataset._decode_threads,
        )
        self._beside = Threads(1, "demoreel-rest")
        weakref.finalize(self, self._beside.close)

    def read(self, rows: np.ndarray) -> dict[str, Any]:
        rest = self._beside.submit(partial(self._rest.read, rows))  # while the device decodes
        episodes = self._reader.episodes
        positions = episodes.positions_of_rows(rows)
        start, stop = episodes.start[positions], episodes.start[positions + 1]
        batch: dict[str, Any] = {}
        for key in self._keys:
            wanted = rows
            if key in self._offsets:
                wanted = expand(rows, self._offsets[key], start, stop).rows
            images = self._images.read(wanted.reshape(-1), key)
            batch[key] = images.reshape(*wanted.shape, *images.shape[1:])
        return {**batch, **rest.result()}


def find_place(
    repo_id: str | None,
    root: PathLike | None,
    *,
    uri: str | None,
    meta_root: PathLike | None,
    table_name: str | None,
    revision: str | None,
    storage_options: Mapping[str, Any] | None = None,
    sync: bool = False,
) -> DatasetPlace:
    """Return where the arguments of a Lance class point.

    Args:
        repo_id: ``me/my_task``, looked for as lerobot does, and fetched from the Hub if it is not
            on this machine; or, alone, a folder or its URI.
        root: The folder of tables and ``meta/``, or the table in it. With ``repo_id``, it is
            pulled from the Hub if there is nothing.
        uri: The table of rows, ``.../NAME.lance``: a path, or a ``file://``, ``s3://``, ``gs://``
            or ``az://`` URI.
        meta_root: The folder that holds ``meta/``, if not beside the tables.
        table_name: Which table, where a folder holds several.
        revision: Of ``repo_id``.
        storage_options: What Lance is told of the object store.
        sync: Ask the Hub for something newer.
    """
    if root is not None and uri is not None:
        raise ArgumentError("root= and uri= both name a place.", hint="give one of them")
    if repo_id is None and root is None and uri is None:
        raise ArgumentError("No dataset was named.", hint="give root=, repo_id=, or uri=")
    named = uri if uri is not None else root
    remote = remote_uri(repo_id or "", named, revision, stream=False)
    if remote is not None:
        name = None if named is None else repo_id
        return _remote_place(remote, name, meta_root, table_name, storage_options)
    if uri is not None:
        given = _local_path(uri)
    elif root is not None:
        given = _local_path(os.fspath(root))
        if repo_id is not None and not is_there(given):
            from demoreel.hub.pull import pull

            pull(repo_id, given, revision=revision)
        elif sync:
            update_pulled(repo_id or given.name, given, revision)
    else:
        assert repo_id is not None
        if Path(repo_id).is_dir():
            given, repo_id = Path(repo_id), None
        else:
            given = metadata_root(repo_id, None, revision, sync=sync)
    tables = _table(given, table_name)
    folder = tables.parent if tables.suffix == ".lance" else tables
    home = folder if meta_root is None else Path(meta_root)
    if uri is not None and meta_root is None and not is_dataset(folder):
        raise ArgumentError(
            "There is no meta/ beside this table.",
            hint="say where it is: meta_root= names the folder that contains meta/",
            uri=uri,
        )
    lie_in = None if tables == home else tables
    return DatasetPlace(repo_id or home.name, DatasetFolder(home), lie_in)


def _remote_place(
    uri: str,
    repo_id: str | None,
    meta_root: PathLike | None,
    table_name: str | None,
    storage_options: Mapping[str, Any] | None,
) -> DatasetPlace:
    """Return a place in a store: a dataset's folder, or a table of rows."""
    if table_name is None and not uri.rstrip("/").endswith(".lance") and meta_root is None:
        return DatasetPlace.at(repo_id, open_remote(uri, storage_options=storage_options))
    if not is_object_store(uri):
        folder = uri.rpartition("/")[0] if uri.endswith(".lance") else uri
        return DatasetPlace.at(repo_id, open_remote(folder, storage_options=storage_options))
    table = _remote_table(remote_place(uri, storage_options), table_name)
    if meta_root is not None:
        home = Path(meta_root)
        return DatasetPlace(repo_id or home.name or table.stem, DatasetFolder(home), table)
    remote = open_remote(table.parent.uri, storage_options=storage_options)
    remote.fetch("meta/")
    return DatasetPlace(repo_id or table.stem, DatasetFolder(remote.local), table)


def _remote_table(given: RemotePlace, name: str | None) -> RemotePlace:
    if not given.is_table:
        if name is not None:
            return given / f"{name}.lance"
        raise ArgumentError(
            "This URI names no table.",
            hint="name the table of rows, .../NAME.lance, or add table_name=",
            uri=given,
        )
    if name is not None and name != given.stem:
        raise ArgumentError(f"table_name={name!r} is not the table that the URI names: {given}.")
    return given


def _table(given: Path, name: str | None) -> Path:
    if given.suffix == ".lance":
        if name is not None and name != given.stem:
            raise ArgumentError(
                f"table_name={name!r} is not the table that the path names: {given}."
            )
        return given
    return given if name is None else given / f"{name}.lance"


def _local_path(place: str) -> Path:
    parts = urlsplit(place)
    if "://" not in place:
        return Path(place)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    raise ArgumentError(f"Datasets are not read from {parts.scheme}://{parts.netloc}.")


def _options_of(
    connect_kwargs: dict[str, Any] | None, storage_options: dict[str, Any] | None
) -> dict[str, Any]:
    return {**((connect_kwargs or {}).get("storage_options") or {}), **(storage_options or {})}


CLASSES: dict[str, type[LeRobotDataset]] = {
    "LeRobotDataset": LeRobotDataset,
    "LeRobotLanceDataset": LeRobotLanceDataset,
    "LeRobotLanceVideoDataset": LeRobotLanceVideoDataset,
}


def right_class(layout: str, *, filmed: bool) -> str | None:
    """Return which of the Lance classes reads a layout; None if neither does."""
    if layout == "lance-native" and not filmed:
        return "LeRobotLanceDataset"
    return _RIGHT_CLASS.get(layout)

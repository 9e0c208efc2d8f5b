"""``Dataset.to_ray``: a Ray Dataset of episodes, read by the workers of the cluster."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demoreel.errors import ArgumentError, MissingExtraError, UnknownKeyError, nearest
from demoreel.media.images import ImageCodec, encode_image
from demoreel.model import Feature
from demoreel.storage.place import RemotePlace

if TYPE_CHECKING:
    from demoreel.read.dataset import Dataset

_MOST_OPEN = 4  # datasets that one worker keeps open
_MOST_DEPTH = np.iinfo(np.uint16).max


@dataclass(frozen=True, slots=True)
class _Order:
    """What a worker is to read of every episode.

    Attributes:
        state: The arguments that the dataset is opened with, pickled.
        columns: Columns.
        cameras: Cameras.
        encoded: Whether images are handed out encoded.
    """

    state: bytes
    columns: tuple[str, ...]
    cameras: tuple[str, ...]
    encoded: bool


def to_ray(
    dataset: Dataset,
    *,
    columns: Sequence[str] | None,
    cameras: Sequence[str],
    encoded: bool,
    blocks: int | None,
) -> Any:
    """Return the chosen episodes as a ``ray.data.Dataset``; see ``Dataset.to_ray``."""
    data = _import_ray_data()
    own = [key for key, feature in dataset.features.items() if not feature.is_camera]
    wanted = own if columns is None else list(columns)
    _refuse_unknown(wanted, own, "column", dataset.root)
    _refuse_unknown(cameras, dataset.info.cameras, "camera", dataset.root)
    if blocks is not None and blocks < 1:
        raise ArgumentError(f"blocks must be at least 1, not {blocks}.")
    order = _Order(_state(dataset, cameras), tuple(wanted), tuple(cameras), encoded)
    places = data.range(len(dataset.episodes), override_num_blocks=blocks)
    return places.map(_episode, fn_kwargs={"order": order})


def _import_ray_data() -> Any:
    try:
        import ray.data
    except ImportError as error:
        raise MissingExtraError(
            f"Ray Data is not installed ({error}).", hint="pip install 'demoreel[ray]'"
        ) from error
    return ray.data


def _refuse_unknown(wanted: Sequence[str], known: Sequence[str], what: str, root: Path) -> None:
    for key in wanted:
        if key not in known:
            raise UnknownKeyError(
                f"There is no {what} {key!r}.", hint=nearest(key, known), dataset=root
            )


def _state(dataset: Dataset, cameras: Sequence[str]) -> bytes:
    """Return what opens the dataset elsewhere: by full paths or its URI, and without windows."""
    arguments = {key: v for key, v in dataset.__getstate__().items() if key != "known"}
    folder = arguments.pop("folder")
    arguments |= {"cameras": list(cameras), "windows": {}}
    # Of a place, secrets do not travel; and the copy of the metadata is on this machine alone.
    arguments["root"] = folder.given
    for place in (arguments["root"], arguments["tables"]):
        if isinstance(place, RemotePlace) and place.secrets:
            raise ArgumentError(
                "Credentials that were given in storage_options= do not travel to Ray's workers.",
                hint="put them into the environment of every machine, and leave them out here",
                dataset=place.uri,
            )
    if folder.kept_in is not None:
        arguments["cache_dir"], arguments["cache_size"] = folder.kept_in
    if isinstance(arguments["tables"], Path):
        arguments["tables"] = arguments["tables"].absolute()
    arguments["decode_threads"] = arguments["decode_threads"] or 1  # a worker has one processor
    return pickle.dumps(arguments)


@lru_cache(maxsize=_MOST_OPEN)
def _opened(state: bytes) -> Dataset:
    from demoreel.read.dataset import Dataset

    arguments = pickle.loads(state)
    if isinstance(arguments["root"], RemotePlace):
        arguments["storage_options"] = dict(arguments["root"].options) or None
        arguments["root"] = arguments["root"].uri
    return Dataset(**arguments)


def _episode(row: Mapping[str, Any], order: _Order) -> dict[str, Any]:
    """Read one episode, in a worker."""
    dataset = _opened(order.state)
    episode = dataset.episodes[int(row["id"])]
    frames = np.arange(episode.start, episode.stop)
    rows = dataset.rows_of(frames)
    found: dict[str, Any] = dataset.following(lambda: dataset.reader.rows(rows, order.columns))
    kept = [key for key in order.cameras if order.encoded and dataset.reader.in_tables(key)]
    for key in kept:
        found[key] = dataset.following(partial(_encoded, dataset, rows, key))
    if set(order.cameras) - set(kept):
        batch = dataset.batch(frames)
        for key in order.cameras:
            if key not in kept:
                images = batch[key]
                feature = dataset.features[key]
                found[key] = _as_pngs(images, feature) if order.encoded else images
    return {
        **found,
        "episode_index": episode.index,
        "length": episode.length,
        "task": episode.tasks[0] if episode.tasks else "",
        "tasks": list(episode.tasks),
    }


def _encoded(dataset: Dataset, rows: np.ndarray, key: str) -> list[bytes]:
    return dataset.reader.encoded(rows, key)


def _as_pngs(images: np.ndarray, feature: Feature) -> list[bytes]:
    """Return images without loss; depth in whole millimetres (or metres, as they were opened)."""
    codec = ImageCodec("png")
    if feature.is_depth:
        whole = np.rint(images[:, 0]).clip(0, _MOST_DEPTH).astype(np.uint16)
        return [encode_image(image, codec) for image in whole]
    return [encode_image(image.transpose(1, 2, 0), codec) for image in images]

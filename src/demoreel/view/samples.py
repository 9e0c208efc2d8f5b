"""What a training loop gets: samples with windows and image sizes, from the same code."""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from demoreel.errors import ArgumentError
from demoreel.read.dataset import Dataset
from demoreel.view.datasets import ShownDataset
from demoreel.view.frames import jpeg_of

_MOST_OFFSETS = 512  # of a feature
_MOST_IMAGES = 64
_MOST_SIDE = 4096
_MOST_VALUES = 4096  # of a feature that are sent
_KEPT = 4

Windows = dict[str, list[float | int]]


def asked_windows(text: str) -> Windows:
    """Return the windows of a request: JSON, as ``delta_timestamps``."""
    try:
        asked = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"delta_timestamps is not JSON: {error}.", hint='as in {"action": [0, 0.1, 0.2]}'
        ) from None
    if not isinstance(asked, dict):
        raise ArgumentError("delta_timestamps is an object: a list of seconds for each feature.")
    for key, offsets in asked.items():
        if not isinstance(offsets, list) or not all(map(_is_offset, offsets)):
            raise ArgumentError(f"The window of {key[:80]!r} is not a list of seconds.")
        if len(offsets) > _MOST_OFFSETS:
            raise ArgumentError(f"The window of {key[:80]!r} has more than {_MOST_OFFSETS} frames.")
    return {key: [float(value) for value in offsets] for key, offsets in asked.items()}


def _is_offset(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and abs(value) < 1e6


def asked_size(text: str) -> tuple[int, int] | None:
    """Return the image size of a request, ``HEIGHTxWIDTH``; None where it is empty."""
    if not text.strip():
        return None
    try:
        height, width = (int(part) for part in text.lower().replace(",", "x").split("x"))
    except ValueError:
        raise ArgumentError(
            f"{text[:40]!r} is no image size.", hint="HEIGHTxWIDTH, as 224x224"
        ) from None
    if not (0 < height <= _MOST_SIDE and 0 < width <= _MOST_SIDE):
        raise ArgumentError(f"An image size is between 1 and {_MOST_SIDE}.")
    return height, width


class Samples:
    """Samples of the viewer's datasets; the last ones are kept, for the images of a page."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def sample(
        self, shown: ShownDataset, episode: int, frame: int, windows: Windows, size: Any
    ) -> tuple[Dataset, dict[str, Any]]:
        """Return a sample as training gets it, and the dataset that gave it.

        Cost: decodes the images of its windows.
        """
        whole = shown.open()
        images = sum(len(windows.get(camera, (0,))) for camera in whole.cameras)
        if images > _MOST_IMAGES:
            raise ArgumentError(f"{images} images are more than a page shows ({_MOST_IMAGES}).")
        told = json.dumps(windows, sort_keys=True), size
        opened = ("dataset", shown.id, shown.revision, *told)
        dataset = self._known(opened, lambda: whole.changed(windows=windows, image_size=size))
        position = whole.reader.episodes.position_of(episode)
        if not 0 <= frame < int(whole.reader.episodes.length[position]):
            raise ArgumentError(f"Episode {episode} has no frame {frame}.")
        index = int(whole.reader.episodes.start[position]) + frame
        sample = self._known((*opened, "sample", index), lambda: dataset[index])
        return dataset, sample

    def _known(self, key: tuple[Any, ...], make: Any) -> Any:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > 2 * _KEPT:
                self._kept.popitem(last=False)
        return made

    def told(
        self, shown: ShownDataset, episode: int, frame: int, windows: Windows, size: Any
    ) -> Any:
        """Return a sample as JSON: numbers and texts; of images what they are."""
        dataset, sample = self.sample(shown, episode, frame, windows, size)
        fields = []
        for key, value in sample.items():
            if key.endswith("_is_pad") and key.removesuffix("_is_pad") in dataset.offsets:
                continue
            offsets = dataset.offsets.get(key)
            field = {
                "key": key,
                "offsets": None if offsets is None else offsets.tolist(),
                "pads": None if offsets is None else np.asarray(sample[f"{key}_is_pad"]).tolist(),
                "is_camera": key in dataset.cameras,
            }
            fields.append(field | _value_of(value, key in dataset.cameras))
        return {"episode": episode, "frame": frame, "fps": dataset.fps, "fields": fields}

    def image(
        self,
        shown: ShownDataset,
        episode: int,
        frame: int,
        windows: Windows,
        size: Any,
        camera: str,
        place: int,
    ) -> bytes:
        """Return an image of a sample as JPEG, at the sample's size."""
        _, sample = self.sample(shown, episode, frame, windows, size)
        images = np.asarray(sample[camera])
        images = images[None] if camera not in windows else images
        if not 0 <= place < len(images):
            raise ArgumentError(f"The window of {camera!r} has no place {place}.")
        image = images[place]
        return jpeg_of(image[0] if len(image) == 1 else image.transpose(1, 2, 0))


def _value_of(value: Any, is_camera: bool) -> dict[str, Any]:
    if not isinstance(value, np.ndarray | np.generic):
        return {"type": type(value).__name__, "shape": None, "values": str(value)[:10_000]}
    array = np.asarray(value)
    told = {"type": str(array.dtype), "shape": list(array.shape)}
    if is_camera or array.dtype.kind not in "bifu":
        return told
    flat = array.reshape(-1)[:_MOST_VALUES].tolist()
    shown = [v if isinstance(v, int) or math.isfinite(v) else str(v) for v in flat]
    return {**told, "values": shown, "left_out": max(0, array.size - _MOST_VALUES)}

"""A small picture for a dataset's card: what each camera saw when episodes began."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demoreel.errors import DemoreelError
from demoreel.media.picture_encode import PictureCodec, encode_picture
from demoreel.read.dataset import Dataset

PICTURE = "demoreel/first_frames.jpg"
"""Where the picture lies in a repository."""

_COLUMNS = 5
_HEIGHT = 120
_GAP = 4
_MOST_CAMERAS = 8
_CODEC = PictureCodec("jpeg", quality=80)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ContactSheet:
    """A picture of first frames.

    Attributes:
        jpeg: The encoded picture.
        cameras: What its rows show, from top to bottom.
    """

    jpeg: bytes
    cameras: tuple[str, ...]


def contact_sheet(root: Path) -> ContactSheet | None:
    """Return a picture with a row a camera, and in it first frames of some episodes.

    Up to five episodes, spread over the dataset, and eight cameras. A camera whose pictures do not
    decode is left out: whether a dataset is sound is not decided here.

    Cost: decodes at most 40 pictures, in small; memory is a few of them.

    Returns:
        None where no camera can be shown.
    """
    rows, cameras = [], []
    dataset = Dataset(root, decode_threads=1)
    firsts = _first_frames(dataset)
    for camera in dataset.cameras[:_MOST_CAMERAS]:
        try:
            rows.append(_row(root, camera, dataset.features[camera].shape, firsts))
            cameras.append(camera)
        except DemoreelError as error:
            log.warning("the card shows no pictures of %s: %s", camera, error.what)
    if not rows:
        return None
    return ContactSheet(encode_picture(_stacked(rows), _CODEC), tuple(cameras))


def _first_frames(dataset: Dataset) -> list[int]:
    count = len(dataset.episodes)
    chosen = np.unique(np.linspace(0, count - 1, min(count, _COLUMNS)).round().astype(int))
    return [int(start) for start in dataset.episodes.start[chosen]]


def _row(root: Path, camera: str, shape: tuple[int, ...], firsts: list[int]) -> np.ndarray:
    height, width = _picture_size(shape)
    scale = min(1.0, _HEIGHT / height)
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    small = Dataset(root, cameras=[camera], image_size=size, decode_threads=1)
    pictures = [_as_rgb(np.asarray(picture)) for picture in small.batch(firsts)[camera]]
    gap = np.full((size[0], _GAP, 3), 255, np.uint8)
    parts = [part for picture in pictures for part in (picture, gap)]
    return np.concatenate(parts[:-1], axis=1)


def _picture_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return height and width, whether channels are declared last, first, or not at all."""
    if len(shape) == 3:
        shape = shape[1:] if shape[0] <= 4 < shape[2] else shape[:2]
    return int(shape[0]), int(shape[1])


def _as_rgb(picture: np.ndarray) -> np.ndarray:
    """Return a sample's picture (channels, height, width) as rows of RGB; depth becomes grey."""
    if picture.dtype != np.uint8:
        depth = np.nan_to_num(picture.astype(np.float64))
        span = float(depth.max() - depth.min())
        picture = ((depth - depth.min()) * (255 / span if span else 0)).astype(np.uint8)
    return np.moveaxis(np.broadcast_to(picture, (3, *picture.shape[1:])), 0, -1)


def _stacked(rows: list[np.ndarray]) -> np.ndarray:
    width = max(row.shape[1] for row in rows)
    parts: list[np.ndarray] = []
    for row in rows:
        padded = np.full((row.shape[0], width, 3), 255, np.uint8)
        padded[:, : row.shape[1]] = row
        parts += [padded, np.full((_GAP, width, 3), 255, np.uint8)]
    return np.concatenate(parts[:-1])

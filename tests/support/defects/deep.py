"""Defects that only show when images are decoded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demoreel.media.video import open_video
from support.defects.bases import FILM_LENGTHS
from support.defects.registry import defect
from support.defects.tools import DATA, edit_column, edit_info
from support.moving import film, movements, view

_VIDEO = "videos/observation.images.front/chunk-000/file-001.mp4"
_IMAGES = "observation.images.front"


def _images() -> list[np.ndarray]:
    """Return the images of the second episode, as they were filmed."""
    _, state = movements(1, FILM_LENGTHS[1])
    return [view(row, 1) for row in state]


def _film_again(root: Path, images: list[np.ndarray]) -> None:
    film(root / _VIDEO, images, fps=10)


def _overwrite_packet(path: Path, frame: int, content: Any) -> None:
    index = open_video(path).index
    packet = int(index.packet_of[frame])
    offset, size = int(index.offset[packet]), int(index.size[packet])
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content(size))


@defect("picture-undecodable", on="v3-film", deep=True)
def packet_of_noise(root: Path) -> None:
    noise = np.random.default_rng(0)
    _overwrite_packet(root / _VIDEO, 10, lambda size: noise.bytes(size))


@defect("picture-undecodable", on="v3-images", deep=True)
def image_cut_off(root: Path) -> None:
    def cut(images: list[Any]) -> None:
        images[5] = {**images[5], "bytes": images[5]["bytes"][:100]}

    edit_column(root / DATA, _IMAGES, cut)


@defect("video-decodes-short", on="v3-film", deep=True, also=("video-codec",))
def packet_without_an_image(root: Path) -> None:
    film(root / _VIDEO, _images(), fps=10, codec="av1")

    def nothing(size: int) -> bytes:
        """A temporal unit of AV1 that holds padding."""
        padding = size - 5
        return bytes([0x12, 0x00, 0x7A, padding & 0x7F | 0x80, padding >> 7]) + b"\x80" * padding

    _overwrite_packet(root / _VIDEO, 39, nothing)


@defect("picture-size", on="v3-images", deep=True)
def image_of_another_size(root: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 48), (90, 80, 70)).save(buffer, "PNG")

    def shrink(images: list[Any]) -> None:
        images[5] = {**images[5], "bytes": buffer.getvalue()}

    edit_column(root / DATA, _IMAGES, shrink)


@defect("picture-kind", on="v3-images", deep=True)
def colour_declared_as_depth(root: Path) -> None:
    def declare(info: dict[str, Any]) -> None:
        info["features"][_IMAGES]["info"] = {"is_depth_map": True}

    edit_info(root, declare)


@defect("picture-black", on="v3-film", deep=True)
def camera_covered(root: Path) -> None:
    images = _images()
    images[8:20] = [np.full_like(images[0], 3)] * 12
    _film_again(root, images)


@defect("picture-frozen", on="v3-film", deep=True)
def camera_hangs(root: Path) -> None:
    images = _images()
    images[12:34] = [images[12]] * 22
    film(root / _VIDEO, images, fps=10, gop=250)


@defect("picture-repeated", on="v3-film", deep=True)
def camera_at_half_the_rate(root: Path) -> None:
    images = _images()
    images[1::2] = images[::2]
    film(root / _VIDEO, images, fps=10, gop=250)


@defect("picture-jump", on="v3-film", deep=True)
def camera_knocked_over(root: Path) -> None:
    images = _images()
    images[22:] = [255 - np.rot90(image) for image in images[22:]]
    _film_again(root, [np.ascontiguousarray(image) for image in images])

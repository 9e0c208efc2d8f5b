"""The clean datasets that defects are put into: small, one of every layout."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demoreel.testing.factory import make_dataset
from support.moving import make_moving

if TYPE_CHECKING:
    from demoreel.convert.conversion import To

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
LENGTHS = (12, 9, 15)
FILM_LENGTHS = (40, 40, 40)
_SIZE = (64, 64)
_FEATURES = {
    "next.reward": {"dtype": "float32", "shape": [1]},
    "next.done": {"dtype": "bool", "shape": [1]},
    "observation.tactile": {"dtype": "float32", "shape": [2, 3]},
    "note": {"dtype": "string", "shape": [1]},
}
_COMMON: dict[str, Any] = {
    "episodes": LENGTHS,
    "features": _FEATURES,
    "tasks": ("pick it", "place it"),
}


def _films(path: Path, **options: Any) -> Path:
    cameras = {FRONT: _SIZE, WRIST: _SIZE}
    return make_dataset(path, cameras=cameras, **{**_COMMON, **options})


def _files(path: Path) -> Path:
    """A table and a video of each camera for every episode."""
    return _films(path, data_files_size_in_mb=0.001, video_files_size_in_mb=0.001)


def _images(path: Path) -> Path:
    return make_dataset(path, cameras=0, image_cameras={FRONT: _SIZE}, **_COMMON)


def _lance(to: To, source: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        from demoreel.convert.run import convert

        aside = path.with_name(f"{path.name}.source")
        source(aside)
        convert(aside, path, to=to, table_name=None if to == "lance-native" else "arm")
        shutil.rmtree(aside)
        return path

    return make


BASES: Mapping[str, Callable[[Path], Path]] = {
    "v3": _films,
    "v3-files": _files,
    "v3-images": _images,
    "v2": lambda path: _films(path, layout="v2.1"),
    "v2.0": lambda path: _films(path, layout="v2.0"),
    "v3-moves": make_moving,
    "v3-film": lambda path: make_moving(path, lengths=FILM_LENGTHS, films=True),
    "lance-video": _lance("lance-video", _files),
    "lance-native": _lance("lance-native", _files),
    "lance-frames": _lance("lance-frames", _images),
}
"""What makes each base at a path. None of them has an error or a warning."""


def make_base(name: str, path: Path) -> Path:
    """Make a clean dataset and return its folder; half a second.

    Args:
        name: One of ``BASES``.
        path: The folder to make.
    """
    return BASES[name](path)

"""The datasets that are damaged: one of every layout, a few frames long."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demoreel.testing.factory import make_dataset

if TYPE_CHECKING:
    from demoreel.convert.conversion import To

LENGTHS = (5, 3, 6)
"""Frames of the episodes."""

GROUP = 3
"""Most frames from keyframe to keyframe."""

_CAMERA, _OTHER = "observation.images.front", "observation.images.wrist"
_SIZE = (48, 64)
_COMMON: dict[str, Any] = {
    "episodes": LENGTHS,
    "tasks": ("pick it", "place it"),
    "features": {
        "next.done": {"dtype": "bool", "shape": [1]},
        "note": {"dtype": "string", "shape": [1]},
    },
}


def _film(**options: Any) -> Callable[[Path], Path]:
    return lambda path: make_dataset(path, cameras={_CAMERA: _SIZE}, **{**_COMMON, **options})


def _images(path: Path) -> Path:
    return make_dataset(path, cameras=0, image_cameras={_CAMERA: _SIZE}, **_COMMON)


def _lance(to: To, source: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        from demoreel.convert.run import convert

        aside = path.with_name(f"{path.name}.source")
        convert(source(aside), path, to=to)
        shutil.rmtree(aside)
        return path

    return make


BASES: Mapping[str, Callable[[Path], Path]] = {
    "v2.0": _film(layout="v2.0"),
    "v2.1": _film(layout="v2.1"),
    "v3": _film(b_frames=1, gop=GROUP),
    "v3-files": _film(data_files_size_in_mb=0.001, video_files_size_in_mb=0.001),
    "v3-av1": lambda path: make_dataset(
        path, cameras={_CAMERA: _SIZE, _OTHER: _SIZE}, codec="av1", **_COMMON
    ),
    "v3-images": _images,
    "lance-video": _lance("lance-video", _film()),
    "lance-frames": _lance("lance-frames", _images),
    "lance-native": _lance("lance-native", _film()),
}
"""What makes each base at a path."""


def make_bases(folder: Path, names: Iterable[str] = tuple(BASES)) -> dict[str, Path]:
    """Make bases in a folder, unless they are there; return where each is. Two seconds for all.

    Args:
        folder: The folder; made if need be.
        names: Which ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in names:
        found[name] = folder / name
        if not found[name].is_dir():
            BASES[name](found[name])
    return found

"""Datasets to convert, and ways to compare two of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demoreel
from demoreel.testing import make_dataset

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
LENGTHS = [7, 12, 3, 9]
FEATURES = {
    "next.done": {"dtype": "bool", "shape": [1]},
    "next.reward": {"dtype": "float64", "shape": [1]},
    "phase": {"dtype": "int64", "shape": [1]},
    "touch.grid": {"dtype": "float32", "shape": [4, 3]},
    "note": {"dtype": "string", "shape": [1]},
}


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that makes a dataset of a kind, once."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = _make(tmp_path_factory.mktemp("source") / kind.replace(".", "_"), kind)
        return made[kind]

    return make


def _make(path: Path, kind: str) -> Path:
    layout, _, images = kind.partition(" ")
    options: dict[str, Any] = {
        "videos": {"cameras": {FRONT: (48, 64), WRIST: (32, 32)}, "gop": 4},
        "images": {"cameras": 0, "image_cameras": {FRONT: (48, 64)}},
        "mixed": {"cameras": {FRONT: (48, 64)}, "image_cameras": {WRIST: (32, 48)}},
        "depth": {"cameras": {FRONT: (48, 64)}, "depth_cameras": {"depth.front": (48, 64)}},
        "": {"cameras": 0},
    }[images]
    if layout in ("v2.0", "v2.1", "v3.0"):
        return make_dataset(
            path,
            layout=layout,
            episodes=LENGTHS,
            features=FEATURES,
            language=layout == "v3.0",
            tasks=("pick it", "放下"),
            task_changes=True,
            data_files_size_in_mb=0.01,
            video_files_size_in_mb=0.01,
            **options,
        )
    source = _make(path.with_name("before"), f"v3.0 {images}")
    codec: Any = "png" if layout == "lance-frames" else None
    demoreel.convert(source, path, to=layout, image_codec=codec)  # type: ignore[arg-type]
    return path


@pytest.fixture(scope="session")
def assert_same_items() -> Callable[[Path, Path], None]:
    """A function that compares every item of two datasets, bit for bit."""

    def compare(left: Path, right: Path) -> None:
        one, other = demoreel.open(left), demoreel.open(right)
        assert len(one) == len(other)
        for index in range(len(one)):
            item, twin = one[index], other[index]
            assert set(item) == set(twin)
            for key, value in item.items():
                if isinstance(value, np.ndarray):
                    assert value.dtype == twin[key].dtype, key
                    np.testing.assert_array_equal(value, twin[key], err_msg=f"{key} of {index}")
                else:
                    assert value == twin[key], key

    return compare

"""Which values ``LeRobotDataset.add_frame`` takes: as lerobot, which is strict, in its words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from demoreel.errors import FrameValueError
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.model.clocks import clock_columns


def refuse_other_values(frame: Mapping[str, Any], features: Mapping[str, Feature]) -> None:
    """Refuse a frame that lerobot would refuse."""
    filled = {*DEFAULT_FEATURES, *clock_columns(features).values()}  # by the recorder
    expected = {key for key in features if key not in filled}
    missing = ({"task"} if "task" not in frame else expected) - frame.keys()
    extra = frame.keys() - features.keys() - {"task"}
    lines = []
    if missing or extra:
        lines.append("Feature mismatch in `frame` dictionary:")
        if missing:
            lines.append(f"Missing features: {_set(missing)}")
        if extra:
            lines.append(f"Extra features: {_set(extra)}")
    for key in features:
        if key in frame and key in expected:
            lines += _wrong(features[key], frame[key])
    if lines:
        raise FrameValueError(
            "\n".join(lines),
            hint="give an array of the declared dtype and shape for each feature, and a task",
        )


def _set(names: set[str]) -> str:
    return "{" + ", ".join(map(repr, sorted(names))) + "}"


def _wrong(feature: Feature, value: Any) -> Iterator[str]:
    """Yield a line for everything that is wrong with a value."""
    name, kind = feature.key, f"but type '{type(value)}' provided instead."
    if feature.is_string:
        if not isinstance(value, str):
            yield f"The feature '{name}' is expected to be of type 'str', {kind}"
        return
    if not feature.is_numeric and not feature.is_camera:
        return
    if hasattr(value, "detach"):  # a tensor, of which the recorder takes the array
        value = value.detach().cpu().numpy()
    if feature.is_numeric:
        if not isinstance(value, np.ndarray):
            expected = f"Expected type is '{feature.dtype}', {kind}"
            yield f"The feature '{name}' is not a 'np.ndarray'. {expected}"
            return
        of = f"The feature '{name}' of"
        if value.dtype != feature.numpy_dtype:
            yield f"{of} dtype '{value.dtype}' is not of the expected dtype '{feature.dtype}'."
        if value.shape != feature.shape:
            yield f"{of} shape '{value.shape}' does not have the expected shape '{feature.shape}'."
    elif isinstance(value, np.ndarray):
        height, width, channels = feature.image_shape
        orders = (channels, height, width), (height, width, channels)
        shapes = dict.fromkeys([*orders, feature.shape])
        if value.shape not in shapes and value.ndim == 3:
            either = " or ".join(f"'{shape}'" for shape in shapes if len(shape) == 3)
            yield (
                f"The feature '{name}' of shape '{value.shape}' does not have the expected shape "
                f"{either}."
            )

"""Checks frames from the robot, without changing them, and buffers them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from demoreel.errors import ArgumentError, UnknownKeyError, nearest
from demoreel.layouts.columns import to_arrow
from demoreel.layouts.persisted import most_text
from demoreel.model import DEFAULT_FEATURES, DepthCode, Feature, Info
from demoreel.model.clocks import ROWS, UNKNOWN, capture_key, clock_of
from demoreel.model.depth import DepthUnit, encode_depth, unit_of
from demoreel.model.numbers import cast_numbers
from demoreel.stats.running import LevelCounts

_MADE_HERE = frozenset(DEFAULT_FEATURES)
_FEWEST = 512  # rows that there is room for from the first


@dataclass(frozen=True, slots=True)
class CheckedFrame:
    """A frame that fits.

    Attributes:
        numbers: Numbers, in their declared dtype and shape.
        values: Text and language.
        images: For each camera height x width x 3 of uint8, or height x width of uint16 depth.
        task: What the robot is doing.
        clocks: When it was captured, by clock, where that is no column.
    """

    numbers: dict[str, np.ndarray]
    values: dict[str, Any]
    images: dict[str, np.ndarray]
    task: str
    clocks: dict[str, int] = field(default_factory=dict)


class FrameCheck:
    """Checks frames against a dataset's features.

    Args:
        info: The dataset's info.
        allow_nan: Take numbers that are not finite.
        times: Whether frames may say when they were captured, beside the columns.

    Attributes:
        units: The unit of each depth camera: as the dataset states it, or else by the dtype of the
            first frame.
    """

    def __init__(self, info: Info, *, allow_nan: bool = False, times: bool = True) -> None:
        self.allow_nan = allow_nan
        own = {key: f for key, f in info.features.items() if key not in _MADE_HERE}
        self._features = own
        # A capture time is the caller's to give, and ours where it is not given.
        self._required = frozenset(key for key in own if clock_of(key) is None)
        clocks = (ROWS, *info.cameras) if times else ()
        self._clocks = {key: c for c in clocks if (key := capture_key(c)) not in own}
        self.units: dict[str, DepthUnit] = {
            key: "m" if f.info["depth_unit"] == "m" else "mm"
            for key, f in own.items()
            if f.is_depth and f.info.get("depth_unit") is not None
        }
        self._makers: dict[str, Callable[[Feature, Any], Any]] = {
            key: _maker_of(feature) for key, feature in own.items()
        }

    def __call__(
        self, frame: Mapping[str, Any], *, task: str | None = None, number: int | None = None
    ) -> CheckedFrame:
        """Return the frame, checked; the images may share memory with the caller's.

        Args:
            frame: The values.
            task: What the robot is doing, if the frame does not say.
            number: Which frame of the episode it is, for errors.
        """
        self._check_keys(frame)
        checked = CheckedFrame({}, {}, {}, _task(frame.get("task", task)))
        for key, clock in self._clocks.items():
            if key in frame:
                checked.clocks[clock] = nanoseconds(frame[key], key)
        for key, feature in self._features.items():
            if key not in frame:
                continue
            try:
                value = self._makers[key](feature, frame[key])
                if feature.is_depth:
                    unit = self.units.setdefault(key, unit_of(value.dtype))
                    value = _stored_depth(feature, value, unit)
            except ArgumentError as error:
                raise type(error)(error.what, hint=error.hint, frame=number) from error
            if feature.is_camera:
                checked.images[key] = value
            elif feature.is_numeric:
                if not self.allow_nan and value.dtype.kind == "f" and not np.isfinite(value).all():
                    raise ArgumentError(
                        f"Feature {key!r} has a value that is not finite: {value.tolist()!r}.",
                        hint="correct the reading, or pass allow_nan=True",
                        frame=number,
                    )
                checked.numbers[key] = value
            else:
                checked.values[key] = value
        return checked

    def _check_keys(self, frame: Mapping[str, Any]) -> None:
        for key in frame:
            if key in _MADE_HERE and key != "timestamp":
                raise UnknownKeyError(f"{key!r} is made by the recorder; leave it out.")
            known = key in self._features or key in self._clocks
            if not known and key not in ("task", "timestamp"):
                raise UnknownKeyError(
                    f"The dataset declares no feature {key!r}.", hint=nearest(key, self._features)
                )
        missing = sorted(self._required.difference(frame))
        if missing:
            raise ArgumentError(f"The frame lacks {', '.join(map(repr, missing))}.")


def nanoseconds(value: Any, name: str) -> int:
    """Return a time as nanoseconds since 1970."""
    try:
        return int(np.array(int(value), np.int64))
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{name} must be nanoseconds since 1970, not {value!r}.") from error


def _task(task: object) -> str:
    if not isinstance(task, str):  # an empty text is one: `check` tells of it
        raise ArgumentError(
            f"The frame names no task ({task!r}).",
            hint='give it as frame["task"], or pass task= when recording begins',
        )
    _text_bytes(task, "The task")
    return task


def _text_bytes(text: str, name: str) -> int:
    """Return how many bytes a text takes in a table, which holds no half of a character."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        what = f"{name} is {text[:40]!r}, which is no text in UTF-8 ({error.reason})."
        raise ArgumentError(what) from error


def _maker_of(feature: Feature) -> Callable[[Feature, Any], Any]:
    if feature.is_depth:
        return _depth
    if feature.is_camera:
        return _image
    if feature.is_string:
        return _text
    return _language if feature.is_language else _number


def _number(feature: Feature, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(f"Feature {feature.key!r} has no array: {error}.") from error
    if array.shape != feature.shape and array.shape != feature.item_shape:
        raise ArgumentError(
            f"Feature {feature.key!r} has the shape {array.shape}; {feature.shape} was declared."
        )
    fitting = cast_numbers(array, feature, rows=False)
    # A copy: the robot's driver may use its array again.
    return np.array(fitting).reshape(feature.item_shape)


def _text(feature: Feature, value: Any) -> str:
    if not isinstance(value, str):
        raise ArgumentError(f"Feature {feature.key!r} is text; {type(value).__name__} was given.")
    _text_bytes(value, f"Feature {feature.key!r}")
    return value


def _language(feature: Feature, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise ArgumentError(
            f"Feature {feature.key!r} is a list of language rows; {type(value).__name__} was given."
        )
    to_arrow([value], feature, length=1)  # what no table holds would keep the episode unsaved
    return copy.deepcopy(list(value))


def _image(feature: Feature, value: Any) -> np.ndarray:
    image = np.asarray(value)
    height, width, channels = feature.image_shape
    if image.shape == (channels, height, width) and image.shape != (height, width, channels):
        image = image.transpose(1, 2, 0)
    if image.shape != (height, width, channels):
        raise ArgumentError(
            f"Camera {feature.key!r} gave an image of shape {np.shape(value)}; "
            f"{(height, width, channels)} was declared."
        )
    if image.dtype == np.uint8:
        return image
    if image.dtype.kind == "f":
        if not (np.isfinite(image).all() and image.min() >= 0 and image.max() <= 1):
            raise ArgumentError(
                f"Camera {feature.key!r} gave an image of floats that are not all in 0..1."
            )
        return (image * 255).astype(np.uint8)
    raise ArgumentError(
        f"Camera {feature.key!r} gave an image of {image.dtype}; uint8 is recorded."
    )


def _depth(feature: Feature, value: Any) -> np.ndarray:
    depth = np.asarray(value)
    height, width, _ = feature.image_shape
    if depth.shape not in ((height, width), (height, width, 1), (1, height, width)):
        raise ArgumentError(
            f"Depth camera {feature.key!r} gave an image of shape {depth.shape}; "
            f"{(height, width)} was declared."
        )
    depth = depth.reshape(height, width)
    if depth.dtype.kind not in "iuf" or depth.dtype.itemsize < 2:
        raise ArgumentError(
            f"Depth camera {feature.key!r} gave {depth.dtype}; uint16 millimetres or float metres "
            "are recorded."
        )
    return depth


def _stored_depth(feature: Feature, depth: np.ndarray, unit: DepthUnit) -> np.ndarray:
    """Return depth as it is stored: codes of a video, or an image's values in the camera's unit."""
    if feature.is_image and unit == "m":
        metres = depth if depth.dtype.kind == "f" else depth * 0.001
        return metres.astype(np.float32)
    if feature.is_image:
        return _whole_millimetres(feature, depth)
    code = feature.depth_code
    assert code is not None
    if depth.dtype == np.uint16:  # a table lookup: the logarithm of every pixel would be 10 ms
        return np.take(_code_of_millimetres(code), depth)
    return encode_depth(depth, code)


@lru_cache(maxsize=16)
def _code_of_millimetres(code: DepthCode) -> np.ndarray:
    return encode_depth(np.arange(1 << 16, dtype=np.uint16), code)


def _whole_millimetres(feature: Feature, depth: np.ndarray) -> np.ndarray:
    """Return depth as the 16-bit image that an image camera stores: no value is lost."""
    if depth.dtype == np.uint16:
        return depth
    millimetres = np.rint(depth * 1000.0) if depth.dtype.kind == "f" else depth
    if not ((millimetres >= 0) & (millimetres < 1 << 16)).all():
        raise ArgumentError(
            f"Depth camera {feature.key!r} gave a depth that 16 bits of millimetres cannot hold."
        )
    return millimetres.astype(np.uint16)


@dataclass(slots=True)
class EpisodeBuffer:
    """An episode on its way to a commit; frames of video cameras are with their encoders.

    Attributes:
        tasks: The task of every row.
        columns: Every column that is no camera, numbers as arrays; empty until the episode ends.
            It stays the same object: by it, an appender recognises an episode that is given again.
        images: The encoded images of image cameras, likewise.
        counts: The statistics of those.
        times: When the rows were captured, by clock; empty until the episode ends.
        ended: Whether it has all its frames.
    """

    tasks: list[str] = field(default_factory=list)
    columns: dict[str, Any] = field(default_factory=dict)
    images: dict[str, list[bytes]] = field(default_factory=dict)
    counts: Mapping[str, LevelCounts] = field(default_factory=dict)
    times: Mapping[str, np.ndarray] = field(default_factory=dict)
    ended: bool = False
    _text: int = 0  # bytes of text
    _numbers: dict[str, np.ndarray] = field(default_factory=dict)  # longer than there are rows
    _values: dict[str, list[Any]] = field(default_factory=dict)
    _clocks: dict[str, dict[int, int]] = field(default_factory=dict)  # times by row

    def __len__(self) -> int:
        return len(self.tasks)

    def refuse_long(self, frame: CheckedFrame) -> None:
        """Refuse a frame with which the episode has more text than a saved one is read with."""
        most = most_text(len(self) + 1)
        if self._text + _bytes_of(frame) > most:
            raise ArgumentError(
                f"With this frame the episode has more than {most} bytes of text.",
                hint="record shorter episodes, or keep long texts in a file of their own",
                frame=len(self),
            )

    def add(self, frame: CheckedFrame) -> None:
        """Add one frame's row."""
        place = len(self.tasks)
        self._text += _bytes_of(frame)
        for key, value in frame.numbers.items():
            column = self._numbers.get(key)
            if column is None or len(column) == place:
                column = self._numbers[key] = _twice_as_long(column, value)
            column[place] = value
        for key, value in frame.values.items():
            self._values.setdefault(key, []).append(value)
        for clock, time in frame.clocks.items():
            self._clocks.setdefault(clock, {})[place] = time
        self.tasks.append(frame.task)

    @property
    def rows(self) -> dict[str, Any]:
        """The values of the rows there are, by column, as they were added."""
        numbers = {key: column[: len(self)] for key, column in self._numbers.items()}
        return {**numbers, **self._values}

    def with_rows(self, frames: Iterable[CheckedFrame]) -> EpisodeBuffer:
        """Return the episode with other values in its rows; capture times stay."""
        other = EpisodeBuffer(_clocks={clock: dict(times) for clock, times in self._clocks.items()})
        for frame in frames:
            other.refuse_long(frame)
            other.add(frame)
        return other

    def end(self, images: dict[str, list[bytes]], counts: Mapping[str, LevelCounts]) -> None:
        """Note that the last frame was added, and what image cameras have made."""
        self.columns, self.images, self.counts = self.rows, images, counts
        self.times = {
            clock: np.array([times.get(row, UNKNOWN) for row in range(len(self))], np.int64)
            for clock, times in self._clocks.items()
        }
        self.ended = True


def _bytes_of(frame: CheckedFrame) -> int:
    texts = (v if isinstance(v, str) else repr(v) for v in frame.values.values())
    return sum(len(text.encode()) for text in (frame.task, *texts))


def _twice_as_long(column: np.ndarray | None, value: np.ndarray) -> np.ndarray:
    before = np.empty((0, *value.shape), value.dtype) if column is None else column
    return np.concatenate(
        [before, np.empty((max(_FEWEST, len(before)), *value.shape), value.dtype)]
    )

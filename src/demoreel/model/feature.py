"""One feature of a dataset: a column of numbers, strings or language, or a camera."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demoreel.errors import MetadataError
from demoreel.model.depth import DepthCode
from demoreel.model.limits import refuse_above

LANGUAGE_KEYS = ("language_persistent", "language_events")
"""Columns of lists of structs; recognised by name, as LeRobot does."""

DEFAULT_FEATURES: Mapping[str, str] = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
"""Columns that every dataset has, and their dtypes."""

_MOST_DIMENSIONS = 32  # numpy's arrays have 64, and a batch of windows needs some more
_MOST_CHANNELS = 64
_LONGEST_DTYPE = 32  # numpy parses longer ones as programs of a kind
_LONGEST_KEY = 512  # a folder's name has 255 bytes, and a key may be several
_LONGEST_QUOTE = 60

MASK = "{}_is_missing"
"""The feature that says where another was filled because its source has none."""


@dataclass(frozen=True, slots=True)
class Feature:
    """What ``info.json`` says of one feature.

    Attributes:
        key: Its name, e.g. ``observation.images.front``.
        dtype: A numpy dtype's name, or ``video``, ``image``, ``string``, ``language``.
        shape: Shape of one frame's value; ``(1,)`` is a scalar; cameras are height, width,
            channels or, with ``names`` that say so, channels first.
        names: Names of the dimensions, in whatever form the recorder wrote.
        info: Camera details (codec, pixel format, depth coding).
        extra: Every other field, kept so that writing gives it back.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, key: str, raw: object, *, where: str) -> Feature:
        """Check and read one entry of ``features``.

        Raises:
            MetadataError: The entry has no dtype or shape, or they make no sense.
        """
        _check_key(key, where)
        if not isinstance(raw, Mapping):
            raise MetadataError(f"Feature {key!r} is not an object.", file=where)
        known = {"dtype", "shape", "names", "info"}
        dtype = raw.get("dtype")
        shape = raw.get("shape")
        if not isinstance(dtype, str):
            raise MetadataError(f"Feature {key!r} has no dtype.", file=where)
        info = raw.get("info") or raw.get("video_info") or {}
        feature = cls(
            key=key,
            dtype="language" if key in LANGUAGE_KEYS else dtype,
            shape=_checked_shape(key, shape, where),
            names=raw.get("names"),
            info=info if isinstance(info, Mapping) else {},
            extra={name: value for name, value in raw.items() if name not in known},
        )
        feature._check(where)
        return feature

    def _check(self, where: str) -> None:
        if self.is_camera:
            if len(self.shape) not in (2, 3) or self.image_shape[2] > _MOST_CHANNELS:
                raise MetadataError(
                    f"Camera {self.key!r} has shape {quoted(list(self.shape))}; "
                    "height, width and channels were expected.",
                    file=where,
                )
            height, width, _ = self.image_shape
            refuse_above(
                "IMAGE_PIXELS",
                height * width,
                f"Camera {self.key!r} has shape {quoted(list(self.shape))}: pixels",
                file=where,
            )
        elif self.is_numeric and not _is_number_type(self.dtype):
            raise MetadataError(
                f"Feature {self.key!r} has the unknown dtype {quoted(self.dtype)}.",
                hint="numpy's numbers, bool, string, image, video and language are readable",
                file=where,
            )
        else:
            refuse_above(
                "VALUES",
                math.prod(self.shape),
                f"Feature {self.key!r} has the shape {quoted(list(self.shape))}: numbers a frame",
                file=where,
            )
        try:
            _ = self.depth_code
        except (TypeError, ValueError, OverflowError) as error:
            raise MetadataError(
                f"Depth camera {self.key!r} has a range that is no number ({error}).", file=where
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return the entry as ``info.json`` holds it."""
        raw: dict[str, Any] = {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "names": self.names,
        }
        if self.info and self.extra.get("video_info") != self.info:
            raw["info"] = dict(self.info)
        raw.update(self.extra)
        return raw

    @property
    def is_video(self) -> bool:
        """A camera whose frames are in videos."""
        return self.dtype == "video"

    @property
    def is_image(self) -> bool:
        """A camera whose frames are encoded images in the tables."""
        return self.dtype == "image"

    @property
    def is_camera(self) -> bool:
        """A camera, depth or not, in video or in images."""
        return self.is_video or self.is_image

    @property
    def is_depth(self) -> bool:
        """A depth camera."""
        video_info = self.extra.get("video_info")
        old = video_info if isinstance(video_info, Mapping) else {}
        return self.is_camera and bool(
            self.info.get("is_depth_map")
            or self.info.get("video.is_depth_map")
            or old.get("video.is_depth_map")
        )

    @property
    def is_string(self) -> bool:
        """A column of text."""
        return self.dtype == "string"

    @property
    def is_language(self) -> bool:
        """A column of lists of language rows."""
        return self.dtype == "language"

    @property
    def is_numeric(self) -> bool:
        """A column of numbers or booleans of one shape."""
        return not (self.is_camera or self.is_string or self.is_language)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of a numeric feature."""
        return np.dtype(self.dtype)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of the value in an item: ``(1,)`` columns are scalars there."""
        return () if self.shape == (1,) else self.shape

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """A camera's (height, width, channels), whichever order the metadata uses."""
        if len(self.shape) == 2:
            return (self.shape[0], self.shape[1], 1)
        first, middle, last = self.shape
        if self._channels_first():
            return (middle, last, first)
        return (first, middle, last)

    def _channels_first(self) -> bool:
        first, last = (self.shape[place] in (1, 3, 4) for place in (0, 2))
        if first != last:
            return first  # whatever the names say: they are often those of another order
        if isinstance(self.names, (list, tuple)) and len(self.names) == 3:
            return str(self.names[0]).startswith("channel")
        return False

    @property
    def depth_code(self) -> DepthCode | None:
        """How a depth camera codes its depths; None for other features."""
        return DepthCode.from_info(self.info) if self.is_depth else None


def flat_names(names: Any, depth: int = 0) -> list[str]:
    """Return the names of dimensions in one list, in whatever form a recorder wrote them.

    A list, a list of lists, an object of lists (``{"motors": ["x", "y"]}``), or an object of
    numbers (``{"x": 0, "y": 1}``).
    """
    if names is None or depth > 4:
        return []
    if isinstance(names, dict):
        nested = [value for value in names.values() if isinstance(value, dict | list | tuple)]
        names = nested or [str(key) for key in names]
    if isinstance(names, list | tuple):
        return [text for name in names for text in flat_names(name, depth + 1)]
    return [str(names)]


def quoted(value: object) -> str:
    """Return a value as an error shows it: an untrusted one may be megabytes long."""
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "..."


def is_text(text: str) -> bool:
    """Whether a text can be written; JSON can hold halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number_type(name: str) -> bool:
    if len(name) > _LONGEST_DTYPE:
        return False
    try:
        return np.dtype(name).kind in "biuf"
    except (TypeError, ValueError, SyntaxError):
        return False


def _check_key(key: str, where: str) -> None:
    """Refuse a name that no column and no folder can have."""
    if not key or len(key) > _LONGEST_KEY or min(key) < " " or not is_text(key):
        raise MetadataError(
            f"A feature is called {quoted(key)}; a name of 1 to {_LONGEST_KEY} characters without "
            "control characters was expected.",
            file=where,
        )


def _checked_shape(key: str, shape: object, where: str) -> tuple[int, ...]:
    if (
        not isinstance(shape, (list, tuple))
        or len(shape) > _MOST_DIMENSIONS
        or not all(
            isinstance(size, int) and not isinstance(size, bool) and 0 < size < 1 << 62
            for size in shape
        )
    ):
        raise MetadataError(
            f"Feature {key!r} has the shape {quoted(shape)}; a list of at most {_MOST_DIMENSIONS} "
            "positive integers was expected.",
            file=where,
        )
    return tuple(shape)

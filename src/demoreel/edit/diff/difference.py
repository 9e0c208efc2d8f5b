"""The result of ``demoreel.diff``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Part = Literal["info", "features", "tasks", "episodes"]


@dataclass(frozen=True, slots=True)
class Said:
    """Something that the metadata say differently.

    Attributes:
        part: Which part of them.
        what: What it is about: ``fps``, a feature, ``length``.
        a: What the first dataset says; None if it has nothing.
        b: What the second says.
        count: In how many episodes; ``a`` and ``b`` are from the first of them.
    """

    part: Part
    what: str
    a: Any
    b: Any
    count: int = 1


@dataclass(frozen=True, slots=True)
class DifferencePlace:
    """A frame in both datasets.

    Attributes:
        episode_a: Its ``episode_index`` in the first.
        episode_b: Its ``episode_index`` in the second.
        frame: Its number in the episode.
    """

    episode_a: int
    episode_b: int
    frame: int


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """A column whose values differ.

    Attributes:
        key: Its name; ``task`` stands for the tasks of frames, compared by their texts.
        frames: Frames that differ.
        episodes: Episodes with such frames.
        first: The first of them.
        largest: The largest difference between two numbers; None for text.
    """

    key: str
    frames: int
    episodes: int
    first: DifferencePlace
    largest: float | None


@dataclass(frozen=True, slots=True)
class StatisticDifference:
    """A statistic that differs.

    Attributes:
        key: The feature.
        kind: ``mean``, ``q01`` and the like; ``*`` where one dataset has none of the feature.
        only_in: ``a`` or ``b`` where the other lacks it.
        largest: The largest difference, where both have it in the same shape.
    """

    key: str
    kind: str
    only_in: Literal["a", "b"] | None
    largest: float | None


@dataclass(frozen=True, slots=True)
class ImageDifference:
    """A camera whose images differ.

    Attributes:
        camera: The camera.
        frames: Frames whose pixels differ, among those that were decoded.
        decoded: Frames that were decoded, because their bytes differ.
        episodes: Episodes with frames that differ.
        first: The first of them.
        largest: The largest difference: levels of 255, or millimetres of depth. None where sizes
            differ.
        mean: The mean difference of all that were decoded, likewise.
        psnr: That of the worst image, in dB; None for depth.
    """

    camera: str
    frames: int
    decoded: int
    episodes: int
    first: DifferencePlace
    largest: float | None
    mean: float | None
    psnr: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two datasets differ.

    Attributes:
        a: The first dataset's folder.
        b: The second's.
        said: Metadata that differ.
        only_in_a: Episodes of the first that the second has not.
        only_in_b: Episodes of the second that the first has not.
        moved: Episodes that stand elsewhere: (number in the first, number in the second).
        columns: Columns that differ.
        statistics: Statistics that differ.
        images: Cameras whose images differ.
        episodes: Pairs of episodes that were compared.
        frames: Pairs of frames whose rows were compared.
        decoded: Pairs of images that had to be decoded; all others have the same bytes.
        pixels: How images were compared: ``none``, ``sample`` or ``all``.
    """

    a: str
    b: str
    said: tuple[Said, ...]
    only_in_a: tuple[int, ...]
    only_in_b: tuple[int, ...]
    moved: tuple[tuple[int, int], ...]
    columns: tuple[ColumnDifference, ...]
    statistics: tuple[StatisticDifference, ...]
    pictures: tuple[ImageDifference, ...]
    episodes: int
    frames: int
    decoded: int
    pixels: str

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, as far as it was compared."""
        found = (self.said, self.only_in_a, self.only_in_b, self.moved)
        return not any((*found, self.columns, self.statistics, self.pictures))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, with ``is_equal``."""
        raw = {
            field.name: [_plain_dict(one) for one in value]
            if field.name in ("said", "columns", "statistics", "pictures")
            else _plain(value)
            for field in fields(self)
            for value in [getattr(self, field.name)]
        }
        return {"is_equal": self.is_equal, **raw}


def _plain_dict(value: Any) -> Any:
    return _plain(asdict(value))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value

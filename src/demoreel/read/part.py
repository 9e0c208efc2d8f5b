"""One part of a mixture: a dataset, which of its frames, and how they fit those of others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from demoreel.errors import ArgumentError, DemoreelError, UnknownKeyError, nearest
from demoreel.media.settings import exact_rate
from demoreel.model import Feature
from demoreel.model.depth import DepthUnit
from demoreel.model.feature import flat_names
from demoreel.read.batch import Batch, Begun
from demoreel.read.cameras import Allocate, Size
from demoreel.read.dataset import Dataset
from demoreel.storage.external import AllowExternal

if TYPE_CHECKING:
    from demoreel.read.packets import PacketDecoder

_SUCCESS = {"next.success", "next_success", '"next.success"'}
_WORDS = re.compile(r"'(?:[^']|'')*'|\"[^\"]+\"|[^\W\d]\w*(?:\.\w+)*")
_SQL_WORDS = {"and", "or", "not", "is", "null", "true", "false"}


@dataclass(frozen=True, slots=True)
class Part:
    """A dataset of a mixture.

    Attributes:
        source: The dataset's folder or URI, of any layout.
        name: What tables, errors and statistics call it; None takes the folder's name.
        probability: How likely a sample is of this part; those of all parts add up to 1.
        repeat: How often an epoch of the mixture holds each of its frames, e.g. 2 or 0.5.
        samples: How many samples an epoch of the mixture holds of it.
        where: Which frames: an SQL condition over the columns, as ``filter=`` of ``demoreel.open``
            takes it. A condition on ``next.success`` alone keeps whole episodes, for success is
            that of an episode.
        whole_episodes: Whether ``where`` keeps the episodes with such a frame, or the frames alone;
            None decides as said there.
        episodes: Only these episodes.
        exclude_episodes: Not these, of ``episodes`` or of all.
        fps: The rate at which windows are read, where it is not the dataset's own. Every frame of
            the dataset stays a sample.
        resample: How windows are read at another rate: the frame that is nearest in time (halves
            are rounded up), or for floats the straight line between the two nearest.
        rename: Other names for features: the dataset's own -> that of the mixture.
        dims: Of a feature (by its name in the mixture), which dimensions, in which order: numbers
            or names.
        task: A template for the task's text; ``{task}`` stands for the dataset's own.
        normalize_as: The normalisation key of its samples; parts that share one are normalised
            together. None is the part's name.
        version: A version of a Lance dataset.
        tag: A tag of a Lance dataset.
        storage_options: Of a remote dataset; see ``demoreel.open``.
        allow_external: What Lance tables may name outside the dataset; see ``demoreel.open``.
        cache_dir: Where fetched data are kept; see ``demoreel.open``.
        cache_size: How much of it; see ``demoreel.open``.
    """

    source: str | os.PathLike[str]
    _: KW_ONLY
    name: str | None = None
    probability: float | None = None
    repeat: float | None = None
    samples: int | None = None
    where: str | None = None
    whole_episodes: bool | None = None
    episodes: Iterable[int] | None = None
    exclude_episodes: Iterable[int] | None = None
    fps: float | None = None
    resample: Literal["nearest", "linear"] = "nearest"
    rename: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    task: str | None = None
    normalize_as: str | None = None
    version: int | None = None
    tag: str | None = None
    storage_options: Mapping[str, Any] | None = None
    allow_external: AllowExternal | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_size: int | str | None = None


def without_episodes(
    episodes: Iterable[int] | None, excluded: Iterable[int] | None, total: int
) -> list[int] | None:
    """Return the episodes of a list, or of all, that are not excluded; None if that is all.

    As lerobot's ``exclude_episodes``: the order stays, and what is not there is not missed.
    """
    gone = set(excluded or ())
    if not gone:
        return None if episodes is None else list(episodes)
    return [
        number for number in (range(total) if episodes is None else episodes) if number not in gone
    ]


class OpenPart:
    """A part that is open: what it has, and how its samples are read."""

    def __init__(
        self,
        part: Part,
        number: int,
        *,
        image_size: Size | None = None,
        depth_unit: DepthUnit = "mm",
        decode_threads: int | None = None,
    ) -> None:
        self.part = part
        self.number = number
        self.source = os.fspath(part.source)
        self.name = part.name or Path(self.source.rstrip("/")).name.partition("@")[0]
        if part.resample not in ("nearest", "linear"):
            self._refuse(f"resample must be 'nearest' or 'linear', not {part.resample!r}.")
        whole = part.whole_episodes
        if part.where is not None and whole is None:
            whole = _is_about_success(part.where)
        dataset = self._opened(
            part.episodes,
            filter=part.where if whole else None,
            image_size=image_size,
            depth_unit=depth_unit,
            decode_threads=decode_threads,
        )
        if part.exclude_episodes is not None:
            chosen = dataset.episodes.episode_index.tolist()
            kept = without_episodes(chosen, part.exclude_episodes, len(chosen))
            if not kept:
                self._refuse("exclude_episodes= leaves no episode.")
            dataset = dataset.changed(episodes=kept, filter=None, known=None)
        self.dataset = dataset
        self.rows: np.ndarray | None = None
        if part.where is not None and not whole:
            from demoreel.read.sql import frames_where

            place = dataset.reader.episodes.position_of
            positions = np.array([place(n) for n in dataset.episodes.episode_index.tolist()])
            self.rows = frames_where(dataset.reader, positions, part.where)
        self.fps = float(dataset.fps if part.fps is None else part.fps)
        if not self.fps > 0:
            self._refuse(f"fps must be positive, not {part.fps}.")
        self._choose_features()
        self._linear: dict[str, np.ndarray] = {}
        self._windows: dict[str, int] = {}

    def _opened(self, episodes: Iterable[int] | None, **more: Any) -> Dataset:
        part = self.part
        return Dataset(
            part.source,
            episodes=episodes,
            version=part.version,
            tag=part.tag,
            storage_options=part.storage_options,
            allow_external=part.allow_external,
            cache_dir=part.cache_dir,
            cache_size=part.cache_size,
            **more,
        )

    def _refuse(self, what: str, hint: str | None = None) -> None:
        raise ArgumentError(
            f"Part {self.number} ({self.name}): {what}", hint=hint, dataset=self.source
        )

    def _choose_features(self) -> None:
        """Find out the features under the names, and with the dimensions, that the mixture sees."""
        known = self.dataset.features
        for key in self.part.rename:
            if key not in known:
                raise UnknownKeyError(
                    f"Part {self.number} ({self.name}) has no feature {key!r} to rename.",
                    hint=nearest(key, known),
                    dataset=self.source,
                )
        self.source_of: dict[str, str] = {}
        for key in known:
            name = self.part.rename.get(key, key)
            if name in self.source_of:
                self._refuse(
                    f"{key!r} and {self.source_of[name]!r} would both be called {name!r}.",
                    "rename both, or neither",
                )
            self.source_of[name] = key
        self.dims: dict[str, np.ndarray] = {}
        self.features: dict[str, Feature] = {}
        for name, key in self.source_of.items():
            feature = replace(known[key], key=name)
            if name in self.part.dims:
                feature = self._with_dims(feature, self.part.dims[name])
            self.features[name] = feature
        for name in self.part.dims:
            if name not in self.features:
                raise UnknownKeyError(
                    f"Part {self.number} ({self.name}) has no feature {name!r} to take dims of.",
                    hint=nearest(name, self.features),
                    dataset=self.source,
                )

    def _with_dims(self, feature: Feature, wanted: Sequence[int | str]) -> Feature:
        if not feature.is_numeric or len(feature.shape) != 1:
            self._refuse(f"dims= is for features of one dimension, which {feature.key!r} is not.")
        names = flat_names(feature.names)
        named = len(names) == feature.shape[0]
        chosen = []
        for one in wanted:
            if isinstance(one, str):
                if not named or one not in names:
                    self._refuse(
                        f"{feature.key!r} has no dimension {one!r}.",
                        nearest(one, names) if named else "its dimensions have no names",
                    )
                chosen.append(names.index(one))
            elif not 0 <= int(one) < feature.shape[0]:
                self._refuse(f"{feature.key!r} has {feature.shape[0]} dimensions, and no {one}.")
            else:
                chosen.append(int(one))
        if not chosen:
            self._refuse(f"dims= of {feature.key!r} is empty.")
        self.dims[feature.key] = np.array(chosen)
        return replace(
            feature,
            shape=(len(chosen),),
            names=[names[place] for place in chosen] if named else None,
        )

    @property
    def size(self) -> int:
        """Samples of an epoch of this part."""
        return len(self.dataset) if self.rows is None else len(self.rows)

    @property
    def is_resampled(self) -> bool:
        """Whether its windows are read at another rate than its own."""
        return exact_rate(self.fps) != exact_rate(self.dataset.fps)

    @property
    def normalization_key(self) -> str:
        """The key of what its samples are normalised with."""
        return self.part.normalize_as or self.name

    def frames(self, samples: np.ndarray) -> np.ndarray:
        """Return the dataset's frames that are these samples."""
        return samples if self.rows is None else self.rows[samples]

    def choose(self, cameras: Iterable[str], offsets: Mapping[str, np.ndarray]) -> None:
        """Read these cameras, and these windows, from now on.

        Args:
            cameras: By their names in the mixture; those that it lacks are passed over.
            offsets: Windows in frames at the part's ``fps``.
        """
        windows: dict[str, list[int]] = {}
        ratio = exact_rate(self.dataset.fps) / exact_rate(self.fps)
        for key, steps in offsets.items():
            if key not in self.features:
                continue
            exact = [int(step) * ratio for step in steps]
            closest = [_rounded(one) for one in exact]
            windows[self.source_of[key]] = closest
            self._windows[key] = len(closest)
            feature = self.features[key]
            if (
                self.part.resample == "linear"
                and self.is_resampled
                and feature.is_numeric
                and feature.numpy_dtype.kind == "f"
            ):
                below = [one.numerator // one.denominator for one in exact]
                share = [float(one - low) for one, low in zip(exact, below, strict=True)]
                self._linear[key] = np.array(share)
                windows[self.source_of[key]] = [
                    *below,
                    *(low + 1 for low in below),
                    *closest,
                ]
        wanted = [self.source_of[key] for key in cameras if key in self.features]
        self.dataset = self.dataset.changed(cameras=wanted, windows=windows)

    def begin(
        self, samples: np.ndarray, allocate: Allocate, decoder: PacketDecoder | None = None
    ) -> Begun:
        """Plan a batch, within ``dataset.following``. ``finished`` makes the mixture's of it."""
        rows = self.dataset.rows_of(self.frames(samples))
        return self.dataset.batch_reader.begin(rows, allocate=allocate, decoder=decoder)

    def finished(self, batch: Batch) -> Batch:
        """Return a batch by the mixture's names, with the chosen dimensions, at its rate."""
        found: Batch = {}
        for name, key in self.source_of.items():
            if key not in batch:
                continue
            column, pad = batch[key], batch.get(f"{key}_is_pad")
            if name in self._linear:
                column, pad = self._on_the_line(name, column, pad)
            if name in self.dims:
                column = column[..., self.dims[name]]
            found[name] = column
            if pad is not None:
                found[f"{name}_is_pad"] = pad
        template = self.part.task
        texts = batch.get("task", [])
        found["task"] = (
            texts if template is None else [template.replace("{task}", t) for t in texts]
        )
        return found

    def _on_the_line(self, key: str, column: np.ndarray, pad: Any) -> tuple[np.ndarray, Any]:
        steps = self._windows[key]
        share = self._linear[key].reshape(1, steps, *[1] * (column.ndim - 2))
        below, above = column[:, :steps], column[:, steps : 2 * steps]
        between = below + (above - below) * share
        return between.astype(column.dtype, copy=False), pad[:, 2 * steps :]

    def located(self, error: DemoreelError, sample: int) -> DemoreelError:
        """Return an error with the dataset, the episode and the frame added."""
        frame = int(self.frames(np.array([sample]))[0])
        episodes = self.dataset.episodes
        position = int(episodes.positions_of_rows(np.array([frame]))[0])
        where = {
            **error.where,
            "dataset": self.source,
            "episode": int(episodes.episode_index[position]),
            "frame": frame - int(episodes.start[position]),
            "code": error.code,
        }
        return type(error)(error.what, hint=error.hint, **where)


def _rounded(value: Fraction) -> int:
    """Return the nearest whole number; halves are rounded up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def _is_about_success(condition: str) -> bool:
    words = {word for word in _WORDS.findall(condition) if not word.startswith("'")}
    names = {word for word in words if word.lower() not in _SQL_WORDS}
    return bool(names) and names <= _SUCCESS

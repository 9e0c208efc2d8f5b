"""The features of a result: those of each source after its changes, reconciled."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import numpy as np

from demoreel.edit.clips import Added, Source, Together
from demoreel.edit.sources import added_values
from demoreel.errors import ArgumentError, UnknownKeyError, count, nearest
from demoreel.layouts.base import Reader
from demoreel.layouts.columns import arrow_type
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.model.clocks import clock_columns
from demoreel.model.feature import MASK, flat_names
from demoreel.model.numbers import check_numbers
from demoreel.storage.scratch import no_room_for_scratch, process_folder


def feature_of(mask: str, features: Iterable[str]) -> str | None:
    """Return the feature that a mask refers to; None if it is no mask."""
    return next((key for key in features if MASK.format(key) == mask), None)


@dataclass(frozen=True)
class View:
    """A source's features as the result sees them.

    Attributes:
        features: By their new names, without the default ones.
        origin: The name in the source of each; None for those that are added.
        added: The values of those that are added.
    """

    features: Mapping[str, Feature]
    origin: Mapping[str, str | None]
    added: Mapping[str, str]


def view_of(reader: Reader, source: Source) -> View:
    """Return a source's features with its changes applied."""
    features = reader.info.features
    _check_changes(source, features)
    kept: dict[str, Feature] = {}
    origin: dict[str, str | None] = {}
    for key, feature in features.items():
        if key in DEFAULT_FEATURES or key in source.remove:
            continue
        new = source.rename.get(key, key)
        if new in kept or new in DEFAULT_FEATURES:
            raise ArgumentError(f"Two features would be called {new!r}.", dataset=source.path)
        kept[new] = replace(_as_it_lies(reader, feature), key=new)
        origin[new] = key
    for key, added in source.add.items():
        if key in kept or key in DEFAULT_FEATURES:
            raise ArgumentError(
                f"There is a feature {key!r} already.",
                hint="remove it in the same cut, or choose another name",
                dataset=source.path,
            )
        kept[key] = _added_feature(key, added, reader)
        origin[key] = None
    return View(kept, origin, {key: added.values for key, added in source.add.items()})


def _check_changes(source: Source, features: Mapping[str, Feature]) -> None:
    for key in (*source.remove, *source.rename):
        if key not in features:
            raise UnknownKeyError(
                f"There is no feature {key!r}.", hint=nearest(key, features), dataset=source.path
            )
        if key in DEFAULT_FEATURES:
            raise ArgumentError(
                f"Every dataset has {key!r}; it cannot be removed or renamed.", dataset=source.path
            )


def _as_it_lies(reader: Reader, feature: Feature) -> Feature:
    """Return a camera as what it is on disk: what was a video once may be images now."""
    if not feature.is_video or not reader.in_tables(feature.key):
        return feature
    if feature.is_depth:
        raise ArgumentError(
            f"The depth camera {feature.key!r} is in the tables as the codes of a video.",
            hint="cut the dataset that this one was made from, or remove the camera",
            dataset=reader.root,
        )
    extra = {name: value for name, value in feature.extra.items() if name != "video_info"}
    return replace(feature, dtype="image", info={}, extra=extra)


def _added_feature(key: str, added: Added, reader: Reader) -> Feature:
    raw = {"dtype": added.dtype, "shape": list(added.shape), "names": added.names}
    feature = Feature.from_json(key, raw, where=added.values)
    if not feature.is_numeric:
        raise ArgumentError(f"Only numbers can be added; {key!r} is {feature.dtype}.")
    values = added_values(added.values)
    arrow_type(feature)
    rows = reader.episodes.total_frames
    if len(values) != rows:
        raise ArgumentError(
            f"The feature {key!r} has {count(len(values), 'row')}; the dataset has "
            f"{count(rows, 'frame')}.",
            file=added.values,
        )
    if values.shape[1:] not in (feature.item_shape, feature.shape):
        raise ArgumentError(
            f"The feature {key!r} has rows of shape {values.shape[1:]}, not {feature.shape}.",
            file=added.values,
        )
    check_numbers(values, feature, rows=True, file=added.values)
    return feature


def together(
    views: Sequence[View], paths: Sequence[str], how: Together
) -> tuple[dict[str, Feature], dict[str, Feature]]:
    """Return the result's features, and those of them that some source lacks, masks included.

    Order, and names that only some sources give, do not matter. What means something else does:
    numbers of another shape or order, images of another size. Columns of capture times that only
    some sources have are left out: these times are beside the data.
    """
    every = list(dict.fromkeys(key for view in views for key in view.features))
    every = [key for key in every if key not in times_beside(views)]
    masks = {mask for key in every if (mask := MASK.format(key)) in every}
    partial = [key for key in every if any(key not in view.features for view in views)]
    clashing = [key for key in every if not _agree([v.features.get(key) for v in views])]
    if how == "common":
        left_out = {*partial, *clashing}
        # A mask stays with what it refers to: without it, what was filled would look like data.
        left_out -= {MASK.format(key) for key in every if key not in left_out} & masks
        chosen = [key for key in every if key not in left_out]
        missing = [key for key in chosen if key in partial]
        return {key: _joined(key, views) for key in chosen}, {k: _joined(k, views) for k in missing}
    refused = [*clashing, *(key for key in partial if how == "strict" and key not in clashing)]
    if refused:
        raise _differ(refused, views, paths, how)
    features = {key: _joined(key, views) for key in every}
    lacking = {key: features[key] for key in partial}
    for key in partial:
        mask = MASK.format(key)
        if key not in masks and mask not in masks:
            features[mask] = lacking[mask] = Feature(mask, "bool", (1,))
        elif mask in masks and (features[mask].dtype, features[mask].shape) != ("bool", (1,)):
            raise ArgumentError(f"The mask of {key!r} needs the name {mask!r}, which is taken.")
    return features, lacking


def times_beside(views: Sequence[View]) -> list[str]:
    """Return the columns of capture times that only some sources have."""
    found = dict.fromkeys(key for view in views for key in clock_columns(view.features).values())
    return [key for key in found if any(key not in view.features for view in views)]


def _joined(key: str, views: Sequence[View]) -> Feature:
    """Return the first source's word on a feature, with names from any source that has them."""
    found = [view.features[key] for view in views if key in view.features]
    named = next((f.names for f in found if f.names is not None), None)
    return replace(found[0], names=named)


def _agree(found: Sequence[Feature | None]) -> bool:
    present = [feature for feature in found if feature is not None]
    names = {tuple(flat_names(f.names)) for f in present if f.names is not None and not f.is_camera}
    return len({_meaning(f) for f in present}) == 1 and len(names) <= 1


def _meaning(feature: Feature) -> tuple[Any, ...]:
    if feature.is_camera:
        return (feature.dtype, feature.image_shape, feature.depth_code)
    return (feature.dtype, feature.shape)


def _differ(
    keys: Sequence[str], views: Sequence[View], paths: Sequence[str], how: Together
) -> ArgumentError:
    heads = [f"[{number}]" for number in range(len(views))]
    rows = {f"feature {key}": [_said(view.features.get(key)) for view in views] for key in keys}
    widths = [max(map(len, cells)) for cells in zip(heads, *rows.values(), strict=True)]
    first = max(map(len, rows))
    table = {" " * (first - 7) + "dataset": heads, **rows}
    lines = {
        name: " " * (first - len(name))
        + "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for name, cells in table.items()
    }
    hint = "take what all have (features='common') or fill what is missing ('union')"
    if how == "union":
        hint = (
            "what means something else cannot be joined: remove it, or take what all have (common)"
        )
    named = dict(zip(heads, paths, strict=True))
    return ArgumentError("The datasets differ in their features.", hint=hint, **lines, **named)


def _said(feature: Feature | None) -> str:
    if feature is None:
        return "-"
    said = f"{feature.dtype} {list(feature.shape)}"
    names = [] if feature.names is None or feature.is_camera else flat_names(feature.names)
    return f"{said} {','.join(names)[:30]}" if names else said


def without(source: Source, features: tuple[str, ...]) -> Source:
    """Leave features out by their names now: renamed and added ones too."""
    old = {new: key for key, new in source.rename.items()}
    add = {key: added for key, added in source.add.items() if key not in features}
    gone = [old.get(key, key) for key in features if key not in source.add]
    rename = {key: new for key, new in source.rename.items() if key not in gone}
    return replace(source, remove=(*source.remove, *gone), rename=rename, add=add)


def renamed(source: Source, features: Mapping[str, str]) -> Source:
    """Give features other names: those of the source, those it has by now, and added ones."""
    old = {new: key for key, new in source.rename.items()}
    add = {features.get(key, key): added for key, added in source.add.items()}
    own = {old.get(key, key): new for key, new in features.items() if key not in source.add}
    return replace(source, rename={**source.rename, **own}, add=add)


@lru_cache(maxsize=1)
def _keeping() -> Path:
    """Return the folder for arrays that were given in memory; it goes with the process."""
    return process_folder()


def kept(values: object) -> str:
    """Write an array that was given in memory to a file, and return its path."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise ArgumentError(f"A feature is added as an array of numbers, not {array.dtype}.")
    with no_room_for_scratch():
        handle, name = tempfile.mkstemp(suffix=".npy", dir=_keeping())
        try:
            with os.fdopen(handle, "wb") as file:
                # Of a file object, NumPy says only how much of the array was written.
                np.save(cast("IO[bytes]", SimpleNamespace(write=file.write)), array)
        except BaseException:
            os.unlink(name)
            raise
    return name


def is_kept(path: str) -> bool:
    """Whether a file is one that ``kept`` has written, and will be gone with this process."""
    return _keeping.cache_info().currsize > 0 and Path(path).parent == _keeping()

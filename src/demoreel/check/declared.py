"""Checks of what ``info.json`` declares: features, splits, and where files lie."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from demoreel.check import look_info
from demoreel.check.look import Look
from demoreel.errors import MetadataError, UnsafePathError
from demoreel.layouts.lance_rows import column_names
from demoreel.model import Feature, PathTemplate

_SPLIT = re.compile(r"\s*(\d{1,18})\s*:\s*(\d{1,18})\s*")
_SHOWN = 5


def check_features(look: Look) -> None:
    """Check names, shapes and cameras' details as far as the declarations go."""
    assert look.info is not None
    for feature in look.info.features.values():
        if feature.is_camera:
            _check_camera(look, feature)
        elif feature.is_numeric:
            _check_names(look, feature)
    try:
        column_names(look.info)
    except MetadataError as error:
        look.found("feature-clash", error.what, file=look_info.FILE)
    for key in look.info.features:
        if "/" in key:
            look.found(
                "feature-clash",
                f"{key[:60]!r} holds a slash, which lerobot refuses.",
                feature=key,
                file=look_info.FILE,
            )


def _check_names(look: Look, feature: Feature) -> None:
    """Names come as a list, as a list of lists, as an object of lists, or as numbered objects."""
    names = list(_leaves(feature.names))
    if not names or len(feature.shape) > 1:
        return  # of several dimensions, names say what each one is, or every cell: both are used
    if len(names) != math.prod(feature.shape):
        look.found(
            "feature-names-count",
            f"{len(names)} names for {math.prod(feature.shape)} dimensions.",
            feature=feature.key,
            file=look_info.FILE,
        )
    twice = sorted({name for name in names if names.count(name) > 1}) if len(names) < 4096 else []
    if twice:
        look.found(
            "feature-names-twice",
            f"{twice[0][:60]!r} is the name of {names.count(twice[0])} dimensions.",
            feature=feature.key,
            file=look_info.FILE,
        )


def _leaves(names: Any, depth: int = 0) -> Iterator[str]:
    if names is None or depth > 4:
        return
    if isinstance(names, dict):
        nested = [value for value in names.values() if isinstance(value, dict | list | tuple)]
        if not nested:
            yield from (str(key) for key in names)  # {"x": 0, "y": 1}
            return
        for value in nested:
            yield from _leaves(value, depth + 1)
    elif isinstance(names, list | tuple):
        for value in names:
            yield from _leaves(value, depth + 1)
    else:
        yield str(names)


def _check_camera(look: Look, feature: Feature) -> None:
    height, width, channels = feature.picture_shape
    said = {"video.height": height, "video.width": width, "video.channels": channels}
    for name, declared in said.items():
        value = feature.info.get(name)
        if isinstance(value, int) and value != declared:
            look.found(
                "camera-declared-twice",
                f"The shape says {declared}, {name} says {value}.",
                camera=feature.key,
                file=look_info.FILE,
            )


def check_splits(look: Look) -> None:
    """Check that splits are ranges of episodes that exist, and share none."""
    assert look.raw is not None
    splits = look.raw.get("splits")
    if not isinstance(splits, dict) or look.episodes is None or not look.episodes.is_whole:
        return
    count = len(look.episodes)
    ranges: list[tuple[int, int, str]] = []
    for name, text in splits.items():
        match = _SPLIT.fullmatch(text) if isinstance(text, str) else None
        if match is None or int(match[1]) > int(match[2]):
            look.found(
                "split-unreadable",
                f"The split {name[:40]!r} is {str(text)[:40]!r}; first:stop was expected.",
                file=look_info.FILE,
            )
            continue
        first, stop = int(match[1]), int(match[2])
        ranges.append((first, stop, name[:40]))
        if stop > count:
            look.found(
                "split-past-end",
                f"The split {name[:40]!r} is {first}:{stop}; there are {count} episodes.",
                file=look_info.FILE,
            )
    _check_disjoint(look, sorted(ranges), count)


def _check_disjoint(look: Look, ranges: Sequence[tuple[int, int, str]], count: int) -> None:
    covered, owner, missing = 0, "", 0
    for first, stop, name in ranges:
        if first < min(covered, stop):
            look.found(
                "split-overlap",
                f"The splits {owner!r} and {name!r} share {min(covered, stop) - first} episodes.",
                episode=first,
                file=look_info.FILE,
            )
        missing += max(0, min(first, count) - covered)
        if stop > covered:
            covered, owner = stop, name
    missing += max(0, count - covered)
    if ranges and missing:
        look.found(
            "split-left-out",
            f"{missing} of {count} episodes are in no split.",
            file=look_info.FILE,
        )


def check_folders(look: Look) -> None:
    """Check that tables and videos lie where the templates say, and what else lies around."""
    info = look.info
    if info is None or look.is_lance:
        return
    if info.data_path is not None:
        _check_template(look, info.data_path, ".parquet", look.table_files(), None)
    for camera in look.filmed:
        if info.video_path is not None:
            _check_template(look, info.video_path, ".mp4", look.video_files(camera), camera)
    strange = [
        name
        for name in look.files
        if name.endswith((".tmp", ".part", ".lock", ".incomplete"))
        or (name.startswith("images/") and name.endswith((".png", ".jpg", ".tiff")))
    ]
    if strange:
        look.found(
            "files-left-over",
            f"{', '.join(strange[:_SHOWN])}{' and others' if len(strange) > _SHOWN else ''}",
            count=len(strange),
            file=strange[0],
        )


def _check_template(
    look: Look,
    template: PathTemplate,
    ending: str,
    named: Iterator[tuple[str, Any]],
    camera: str | None,
) -> None:
    """Report files that lie in a folder of another name, where none lies in the right one."""
    wanted = []
    for name, _ in named:
        if name in look.files:
            return
        wanted.append(name)
        if len(wanted) >= 3:
            break
    if not wanted:
        return
    others = [
        name
        for name in look.files
        if name.endswith(ending) and not name.startswith("meta/") and _is_of(name, camera)
    ]
    try:
        known = {path for path, _ in _all_named(look)} if others else set()
    except UnsafePathError:
        return
    others = [name for name in others if name not in known]
    if others:
        look.misplaced.add(camera)
        look.found(
            "template-mismatch",
            f"{template.where} leads to {wanted[0]}, which is not there; "
            f"{len(others)} such files lie elsewhere, like {others[0]}.",
            camera=camera,
            file=others[0],
        )


def _is_of(name: str, camera: str | None) -> bool:
    return camera is None or camera in name.split("/") or camera.rsplit(".", 1)[-1] in name


def _all_named(look: Look) -> Iterator[tuple[str, Any]]:
    yield from look.table_files()
    for camera in look.filmed:
        yield from look.video_files(camera)

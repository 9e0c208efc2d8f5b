"""Reading ``info.json`` as far as it goes: each field that makes no sense is a finding."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.errors import MetadataError, UnsafePathError
from demoreel.model import DEFAULT_FEATURES, READABLE_VERSIONS, Feature, Info, PathTemplate

Found = Callable[..., None]

FILE = "meta/info.json"
_LARGEST_FILE = 64 << 20
_LARGEST_NUMBER = 1e9
_LONGEST_QUOTE = 60
_FIELDS = {"v2": ("episode_chunk", "episode_index"), "v3": ("chunk_index", "file_index")}
_COUNTS = ("total_episodes", "total_frames", "total_tasks", "chunks_size")
_SIZES = ("data_files_size_in_mb", "video_files_size_in_mb")


def read_raw(root: Path, found: Found) -> dict[str, Any] | None:
    """Return the parsed ``info.json``; None where there is none to be parsed."""
    path = root / FILE
    if not path.is_file():
        found("info-missing", "There is no meta/info.json.", file=FILE)
        return None
    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) < len(items):
            names = [name for name, _ in items]
            twice.extend(sorted({name for name in names if names.count(name) > 1}))
        return result

    try:
        if os.path.getsize(path) > _LARGEST_FILE:
            raise ValueError(f"{os.path.getsize(path)} bytes are more than any dataset needs")
        raw = json.loads(path.read_bytes(), object_pairs_hook=pairs)
        if not isinstance(raw, dict):
            raise ValueError(f"it holds {_short(raw)}, not an object")
    except (ValueError, OSError, RecursionError) as error:
        found("info-unreadable", f"info.json cannot be read: {error}.", file=FILE)
        return None
    if twice:
        found(
            "info-key-twice",
            f"{_short(twice[0])} stands twice in one object.",
            count=len(twice),
            file=FILE,
        )
    return raw


def family_by_content(root: Path) -> str | None:
    """Return ``v2`` or ``v3`` by the files of ``meta/``; None where they do not tell."""
    has_lines = (root / "meta" / "episodes.jsonl").exists()
    has_tables = (root / "meta" / "episodes").is_dir()
    if has_lines == has_tables:
        return None
    return "v2" if has_lines else "v3"


def salvaged(root: Path, raw: Mapping[str, Any], found: Found) -> Info | None:
    """Return as much of the info as can be used.

    What makes no sense is a finding, and is left out or replaced by what LeRobot does by default.
    Counts that are not numbers become 0; whoever compares them must look into ``raw``.
    """
    clean: dict[str, Any] = dict(raw)
    family = _version(root, clean, found)
    if not _is_positive(clean.get("fps")):
        _wrong(found, "fps", clean.get("fps"), "a positive number")
        clean["fps"] = 30
    for name in _COUNTS:
        _clean_count(clean, name, found)
    for name in _SIZES:
        if name in clean and not _is_positive(clean[name]):
            _wrong(found, name, clean.pop(name), "a positive number")
    if not isinstance(clean.get("splits") or {}, Mapping):
        _wrong(found, "splits", clean.pop("splits"), "an object")
    _clean_features(clean, found)
    for name in ("data_path", "video_path"):
        _clean_template(clean, name, family, found)
    if not clean["features"]:
        return None
    try:
        return Info.from_json(clean, where=FILE)
    except MetadataError as error:
        found("info-field-wrong", error.what, file=FILE)
        return None


def _version(root: Path, clean: dict[str, Any], found: Found) -> str:
    """Settle on a version that can be read, and return its family."""
    said, lies = clean.get("codebase_version"), family_by_content(root)
    if said in READABLE_VERSIONS:
        family = str(said)[:2]
        if lies is not None and lies != family:
            found(
                "version-mismatch",
                f"info.json says {said}, but the episodes' metadata are those of {lies}.",
                file=FILE,
            )
            clean["codebase_version"] = "v3.0" if lies == "v3" else "v2.1"
            for name in ("data_path", "video_path"):  # templates of the other family
                clean.pop(name, None)
            return lies
        return family
    if said is None:
        _wrong(found, "codebase_version", None, "a version")
    else:
        known = ", ".join(READABLE_VERSIONS)
        found(
            "version-unknown",
            f"codebase_version is {_short(said)}; {known} are readable.",
            file=FILE,
        )
    family = lies or "v3"
    clean["codebase_version"] = "v3.0" if family == "v3" else "v2.1"
    return family


def _clean_count(clean: dict[str, Any], name: str, found: Found) -> None:
    value = clean.get(name)
    lowest = 1 if name == "chunks_size" else 0
    if isinstance(value, int) and not isinstance(value, bool) and value >= lowest:
        return
    needed = name in ("total_episodes", "total_frames")
    if needed or name in clean:
        _wrong(found, name, value, "a count")
        clean.pop(name, None)
    if needed:
        clean[name] = 0


def _clean_features(clean: dict[str, Any], found: Found) -> None:
    raw = clean.get("features")
    if not isinstance(raw, Mapping) or not raw:
        _wrong(found, "features", raw, "an object with features in it")
        clean["features"] = {}
        return
    kept: dict[str, Any] = {}
    for key, entry in raw.items():
        try:
            feature = Feature.from_json(str(key), entry, where=FILE)
        except MetadataError as error:
            found("feature-unreadable", error.what, feature=_short_key(key), file=FILE)
            continue
        kept[str(key)] = entry
        _check_default(feature, found)
    for key in DEFAULT_FEATURES:
        if key not in raw:
            found(
                "feature-default-missing",
                f"info.json does not declare {key}.",
                feature=key,
                file=FILE,
            )
    clean["features"] = kept


def _check_default(feature: Feature, found: Found) -> None:
    wanted = DEFAULT_FEATURES.get(feature.key)
    if wanted is None:
        return
    fits = feature.is_numeric and feature.numpy_dtype.kind in _kinds(wanted)
    if not fits or feature.item_shape != ():
        found(
            "feature-default-type",
            f"{feature.key} is declared as {feature.dtype} of shape {list(feature.shape)}; "
            f"it is {wanted} of shape [1] everywhere.",
            feature=feature.key,
            file=FILE,
        )


def _kinds(dtype: str) -> str:
    return "f" if np.dtype(dtype).kind == "f" else "iu"


def _clean_template(clean: dict[str, Any], name: str, family: str, found: Found) -> None:
    text = clean.get(name)
    if text is None:
        return
    fields = _FIELDS[family] + (("video_key",) if name == "video_path" else ())
    if not isinstance(text, str):
        _wrong(found, name, clean.pop(name), "a path template")
        return
    try:
        PathTemplate(text, fields=fields, where=name)
    except UnsafePathError as error:
        found("template-unsafe", f"{error.what} ({_short(text)})", file=FILE)
        del clean[name]


def _wrong(found: Found, name: str, value: object, wanted: str) -> None:
    found("info-field-wrong", f"{name} is {_short(value)}; {wanted} was expected.", file=FILE)


def _is_positive(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value < _LARGEST_NUMBER


def _short(value: object) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "..."


def _short_key(key: object) -> str:
    return str(key)[:_LONGEST_QUOTE]

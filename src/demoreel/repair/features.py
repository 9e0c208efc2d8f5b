"""What the features are: as ``info.json`` declares them, unless tables and videos know better."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from demoreel.edit.target_info import said_of_audio
from demoreel.errors import DemoreelError, MetadataError
from demoreel.media.audio import tracks_of
from demoreel.media.images import open_image
from demoreel.media.remux import probe
from demoreel.media.video import open_video
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.repair.tables import FoundTable
from demoreel.repair.videos import FoundVideo, RepairVideos
from demoreel.storage.parquet import open_parquet

_CHANNELS = 3


def settled_features(
    declared: Mapping[str, Feature],
    tables: Sequence[FoundTable],
    videos: RepairVideos,
    mended: list[str],
    *,
    doubtful: Collection[str],
) -> dict[str, Feature]:
    """Return the features that there are data for, as the data are.

    Args:
        declared: What ``info.json`` says; may be empty.
        tables: The tables.
        videos: The videos.
        mended: Takes a sentence for each change.
        doubtful: Cameras whose videos are not as declared.
    """
    columns = _columns_of_all(tables)
    features: dict[str, Feature] = {}
    for key, feature in declared.items():
        if key in DEFAULT_FEATURES:
            continue
        if feature.is_video:
            if videos.of.get(key):
                first = next(iter(videos.of[key].values()))
                if key in doubtful:
                    feature = _as_filmed(feature, first, mended)
                    feature = _as_heard(feature, videos.of[key].values(), mended)
                features[key] = feature
            else:
                mended.append(f"info.json: {key} has no video, and was left out")
        elif key in columns:
            features[key] = _as_stored(feature, tables, mended)
        else:
            mended.append(f"info.json: {key} has no column, and was left out")
    for key, kind in columns.items():
        if key not in declared and key not in DEFAULT_FEATURES:
            guessed = _guessed(key, kind, tables)
            if guessed is not None:
                features[key] = guessed
                mended.append(f"info.json: the column {key} was declared")
    for camera, files in videos.of.items():
        if camera not in declared and files:
            features[camera] = _camera(camera, next(iter(files.values())).path)
            mended.append(f"info.json: the camera {camera} was declared")
    return features


def _columns_of_all(tables: Sequence[FoundTable]) -> dict[str, pa.DataType]:
    """Return the columns that every table has."""
    if not tables:
        return {}
    names = set.intersection(*(set(table.schema.names) for table in tables))
    first = tables[0].schema
    return {name: first.field(name).type for name in first.names if name in names}


def _as_stored(feature: Feature, tables: Sequence[FoundTable], mended: list[str]) -> Feature:
    """Return a feature with the dtype and shape that its column has."""
    if not feature.is_numeric:
        return feature
    guessed = _guessed(feature.key, tables[0].schema.field(feature.key).type, tables)
    if guessed is None:
        return feature
    same_shape = guessed.shape == feature.shape or _flat(guessed) == _flat(feature)
    if guessed.dtype == feature.dtype and same_shape:
        return feature
    mended.append(
        f"info.json: {feature.key} is {guessed.dtype} {list(guessed.shape)}, "
        f"not {feature.dtype} {list(feature.shape)}"
    )
    names = feature.names if same_shape else None
    return replace(feature, dtype=guessed.dtype, shape=guessed.shape, names=names)


def _as_filmed(feature: Feature, video: FoundVideo, mended: list[str]) -> Feature:
    """Return a camera with the size, codec and pixel format that its video has."""
    seen, _ = probe(video.path)
    height, width, channels = feature.image_shape
    if (height, width) != (seen.height, seen.width):
        mended.append(
            f"info.json: {feature.key} is {seen.width} x {seen.height}, not {width} x {height}"
        )
        shape = (seen.height, seen.width, channels)
        feature = replace(feature, shape=shape, names=["height", "width", "channels"])
    true: dict[str, Any] = {
        "video.height": seen.height,
        "video.width": seen.width,
        "video.codec": seen.codec,
        "video.pix_fmt": seen.pix_fmt,
    }
    said = feature.info
    wrong = [n for n, value in true.items() if n in said and value and said[n] != value]
    if wrong:
        mended.append(f"info.json: {feature.key}: {', '.join(wrong)} were set right")
        info = {**said, **{name: true[name] for name in wrong}}
        extra = {n: info if n == "video_info" else v for n, v in feature.extra.items()}
        feature = replace(feature, info=info, extra=extra)
    return feature


def _as_heard(feature: Feature, videos: Iterable[FoundVideo], mended: list[str]) -> Feature:
    """Return a camera with what is true of its videos' audio."""
    has_audio = any(tracks_of(open_video(video.path)).has_audio for video in videos)
    if feature.info.get("has_audio", has_audio) == has_audio:
        return feature
    mended.append(f"info.json: {feature.key}: has_audio is {str(has_audio).lower()}")
    stated = {**feature.info, "has_audio": True}  # what it says of audio stays, if there is some
    return said_of_audio(feature, has_audio, [stated])


def _flat(feature: Feature) -> int:
    size = 1
    for length in feature.shape:
        size *= length
    return size


def _guessed(key: str, kind: pa.DataType, tables: Sequence[FoundTable]) -> Feature | None:
    """Return a feature for a column that nothing describes; None if it is of no known kind."""
    shape: list[int] = []
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Feature(key, "string", (1,))
    if pa.types.is_struct(kind) and {field.name for field in kind} >= {"bytes"}:
        try:
            return Feature(key, "image", _image_shape(key, tables))
        except (DemoreelError, OSError, ValueError, SyntaxError, pa.ArrowException):
            return None
    value: Any = _first_value(key, tables)
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        if not isinstance(value, list) or not value:
            return None
        shape.append(len(value))
        kind, value = kind.value_type, value[0]
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    dtype = "bool" if pa.types.is_boolean(kind) else kind.to_pandas_dtype().__name__
    raw = {"dtype": dtype, "shape": shape or [1], "names": None}
    try:
        return Feature.from_json(key, raw, where="a column")
    except MetadataError:
        return None


def _first_value(key: str, tables: Sequence[FoundTable]) -> Any:
    for table in tables:
        if table.rows:
            with open_parquet(table.path) as parquet:
                for block in parquet.blocks([key], rows=1):
                    return block.column(0)[0].as_py()
    return None


def _image_shape(key: str, tables: Sequence[FoundTable]) -> tuple[int, ...]:
    value = _first_value(key, tables) or {}
    with open_image(value.get("bytes") or b"") as image:
        return (image.height, image.width, len(image.getbands()))


def _camera(key: str, path: Path) -> Feature:
    codec = open_video(path).index.codec
    names = ["height", "width", "channels"]
    return Feature(key, "video", (codec.height, codec.width, _CHANNELS), names)

"""What the features are: as ``info.json`` declares them, unless tables and videos differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from demoreel.check.videos import declared_format, is_codec, stored_format
from demoreel.edit.target_info import said_of_audio
from demoreel.errors import (
    DemoreelError,
    MetadataError,
    TableError,
    VideoError,
    count,
    refuse_shortage,
)
from demoreel.layouts.columns import read_images
from demoreel.media.audio import tracks_of
from demoreel.media.images import open_image
from demoreel.media.remux import probe
from demoreel.media.video import open_video
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.repair.report import OF_INFO, Changes, examples
from demoreel.repair.tables import FoundTable
from demoreel.repair.values import holds_images, holds_texts, is_as_written, numbers_of
from demoreel.repair.videos import FoundVideo, RepairVideos
from demoreel.storage.parquet import open_parquet

_CHANNELS = 3
_SAME_RATE = 0.01
_OF_PANDAS = "__index_level_"
_UNFIT = (TableError, pa.ArrowException, ValueError)


@dataclass
class Settled:
    """What the features are.

    Attributes:
        features: Those that there are data for, as the data are.
        absent: Declared cameras of which there are no frames, or not of all tables, and why.
        dropped: Columns with data that are left out, and why.
    """

    features: dict[str, Feature] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)


def settled_features(
    declared: Mapping[str, Feature],
    tables: Sequence[FoundTable],
    videos: RepairVideos,
    changes: Changes,
    *,
    fps: float,
    left_out: Collection[str],
    is_v2: bool,
) -> Settled:
    """Return the features that there are data for, as the data are.

    Args:
        declared: What ``info.json`` says; may be empty.
        tables: The tables.
        videos: The videos.
        changes: Takes what is changed.
        fps: Frames per second.
        left_out: Cameras that the user leaves out.
        is_v2: Whether a video holds its episode's frames and no others.
    """
    tables = [table for table in tables if table.rows] or list(tables)
    columns = _columns_of_all(tables)
    names = dict.fromkeys(name for table in tables for name in table.schema.names)
    done = Settled()
    for key, feature in declared.items():
        if key in DEFAULT_FEATURES or key in left_out:
            continue
        feature = _as_it_lies(feature, columns, videos, changes)
        if feature.is_video:
            if not videos.of.get(key):
                done.absent[key] = ""
                continue
            filmed = list(videos.of[key].values())
            feature = _as_filmed(feature, filmed, changes, fps=fps, is_v2=is_v2)
            done.features[key] = _as_heard(feature, filmed, changes)
        elif key in columns:
            done.features[key] = _as_stored(feature, tables, changes)
        elif feature.is_camera:
            done.absent[key] = _lacking(key, tables) if key in names else ""
        elif key not in names:
            changes.add("declared in info.json, and without a column: removed", key)
    for key in columns:
        if key in declared or key in DEFAULT_FEATURES or key in left_out:
            continue
        if key.startswith(_OF_PANDAS):
            changes.add("an index of pandas, stored as a column: removed", key)
            continue
        guessed = _guessed(key, tables)
        if guessed is None:
            done.dropped[key] = "no feature can hold it"
        else:
            done.features[key] = guessed
            if declared:
                changes.add("declared in info.json now", key)
    for camera, files in videos.of.items():
        if camera not in declared and camera not in left_out and files:
            done.features[camera] = _camera(camera, next(iter(files.values())))
    known = {*columns, *DEFAULT_FEATURES, *left_out, *done.absent}
    for key in (name for name in names if name not in known):
        done.dropped[key] = _lacking(key, tables)
    return done


def _lacking(key: str, tables: Sequence[FoundTable]) -> str:
    """Say which tables do not have a column that others have."""
    lacking = [table.name for table in tables if key not in table.schema.names]
    verb = "does" if len(lacking) == 1 else "do"
    shown = examples(lacking)
    return f"{len(lacking)} of {count(len(tables), 'table')} {verb} not have it ({shown})"


def _info(key: str) -> str:
    return f"{OF_INFO}{key}"


def _columns_of_all(tables: Sequence[FoundTable]) -> list[str]:
    """Return the columns that every table has."""
    if not tables:
        return []
    names = set.intersection(*(set(table.schema.names) for table in tables))
    return [name for name in tables[0].schema.names if name in names]


def _as_it_lies(
    feature: Feature, columns: Collection[str], videos: RepairVideos, changes: Changes
) -> Feature:
    """Return a camera as video or as images, whichever there is."""
    key, has_videos = feature.key, bool(videos.of.get(feature.key))
    lies = feature.dtype
    if feature.is_video and not has_videos and key in columns:
        lies = "image"
    elif feature.is_image and has_videos and key not in columns:
        lies = "video"
    if lies == feature.dtype:
        return feature
    changes.add(f"its dtype is {lies}, not {feature.dtype}", _info(key))
    extra = {name: value for name, value in feature.extra.items() if name != "video_info"}
    return replace(feature, dtype=lies, info={}, extra=extra)


def _as_stored(feature: Feature, tables: Sequence[FoundTable], changes: Changes) -> Feature:
    """Return a feature as declared where its column can be that, else as its column is."""
    if not feature.is_numeric or _fits(feature, tables):
        return feature
    guessed = _guessed(feature.key, tables)
    if guessed is None or guessed.is_camera:
        return feature  # what is wrong with it is said of its episodes
    same_shape = math.prod(guessed.shape) == math.prod(feature.shape)
    shape = feature.shape if same_shape else guessed.shape
    changes.add(
        f"it is {guessed.dtype} {list(shape)}, not {feature.dtype} {list(feature.shape)}",
        _info(feature.key),
    )
    names = feature.names if same_shape else None
    return replace(feature, dtype=guessed.dtype, shape=shape, names=names)


def _fits(feature: Feature, tables: Sequence[FoundTable]) -> bool:
    """Whether a column can be read as declared, but for values that are missing."""
    other = [
        table
        for table in tables
        if feature.item_shape or not is_as_written(table.schema.field(feature.key).type, feature)
    ]
    return all(_lacks_values(column) for column in _unfit(feature, other))


def _unfit(feature: Feature, tables: Sequence[FoundTable]) -> Iterator[pa.ChunkedArray]:
    """Yield the parts of a column that do not hold the feature's values."""
    for table in tables:
        with open_parquet(table.path) as parquet:
            for block in parquet.blocks([feature.key]):
                try:
                    numbers_of(block.column(0), feature, where=table.name)
                except _UNFIT as error:
                    refuse_shortage(error)
                    yield block.column(0)


def _lacks_values(column: pa.ChunkedArray) -> bool:
    array = column.combine_chunks()
    while not array.null_count and pa.types.is_nested(array.type):
        if pa.types.is_struct(array.type):
            return False
        array = array.flatten()
    return bool(array.null_count)


def _as_filmed(
    feature: Feature, videos: Sequence[FoundVideo], changes: Changes, *, fps: float, is_v2: bool
) -> Feature:
    """Return a camera with the size, codec, pixel format and rate that its videos have."""
    kinds = Counter((one.codec.name, one.codec.height, one.codec.width) for one in _indices(videos))
    usual = kinds.most_common(1)[0][0]
    first = next(
        video
        for video, one in zip(videos, _indices(videos), strict=True)
        if (one.codec.name, one.codec.height, one.codec.width) == usual
    )
    codec = open_video(first.path).index.codec
    height, width, channels = feature.image_shape
    if (height, width) != (codec.height, codec.width):
        changes.add(
            f"it is {codec.width} x {codec.height}, not {width} x {height}", _info(feature.key)
        )
        shape = (codec.height, codec.width, channels)
        feature = replace(feature, shape=shape, names=["height", "width", "channels"])
    said = feature.info
    true: dict[str, Any] = {
        "video.height": codec.height,
        "video.width": codec.width,
        "video.channels": channels,
        "video.fps": _rate_of(videos, fps, is_v2),
    }
    wrong = {n: v for n, v in true.items() if n in said and not _same(n, said[n], v)}
    name = said.get("video.codec")
    if isinstance(name, str) and not is_codec(name, codec.name):
        wrong["video.codec"] = probe(first.path)[0].codec
    pix_fmt = said.get("video.pix_fmt")
    meant = declared_format(pix_fmt) if isinstance(pix_fmt, str) else None
    stored = stored_format(codec)
    if meant is not None and stored is not None and meant != stored:
        wrong["video.pix_fmt"] = probe(first.path)[0].pix_fmt
    wrong = {name: value for name, value in wrong.items() if value}
    if not wrong:
        return feature
    for name, value in wrong.items():
        changes.add(f"{name} is {value}, not {said[name]}", _info(feature.key))
    info = {**said, **wrong}
    extra = {n: info if n == "video_info" else v for n, v in feature.extra.items()}
    return replace(feature, info=info, extra=extra)


def _indices(videos: Sequence[FoundVideo]) -> list[Any]:
    return [open_video(video.path).index for video in videos]


def _same(name: str, said: object, value: float) -> bool:
    if isinstance(said, bool) or not isinstance(said, int | float):
        return True
    return abs(said - value) <= (_SAME_RATE * value if name == "video.fps" else 0)


def _rate_of(videos: Sequence[FoundVideo], fps: float, is_v2: bool) -> float:
    """Return the rate that a camera's videos have, or get: a multiple of the dataset's, of v3."""
    rates = [video.rate for video in videos if video.rate is not None]
    times = max(1, round(rates[0] / fps)) if rates and not is_v2 else 1
    if any(abs(rate / (times * fps) - 1) > _SAME_RATE for rate in rates):
        times = 1
    rate = times * fps
    return int(rate) if rate == int(rate) else rate


def _as_heard(feature: Feature, videos: Iterable[FoundVideo], changes: Changes) -> Feature:
    """Return a camera with what is true of its videos' audio."""
    if not isinstance(feature.info.get("has_audio"), bool):
        return feature
    try:
        has_audio = any(tracks_of(open_video(video.path)).has_audio for video in videos)
    except VideoError:
        return feature
    if feature.info["has_audio"] == has_audio:
        return feature
    changes.add(f"has_audio is {str(has_audio).lower()}", _info(feature.key))
    stated = {**feature.info, "has_audio": True}  # what it says of audio stays, if there is some
    return said_of_audio(feature, has_audio, [stated])


def _guessed(key: str, tables: Sequence[FoundTable]) -> Feature | None:
    """Return a feature for a column that nothing describes; None if it is of no known kind."""
    kind = tables[0].schema.field(key).type
    if holds_texts(kind):
        return Feature(key, "string", (1,))
    if holds_images(kind):
        try:
            return Feature(key, "image", _image_shape(key, tables))
        except (DemoreelError, OSError, ValueError, SyntaxError, pa.ArrowException) as error:
            refuse_shortage(error)
            return None
    shape: list[int] = []
    value: Any = _first_value(key, tables)
    while isinstance(value, list):
        if not value or not hasattr(kind, "value_type"):
            return None
        shape.append(len(value))
        kind, value = kind.value_type, value[0]
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    dtype = "bool" if pa.types.is_boolean(kind) else kind.to_pandas_dtype().__name__
    raw = {"dtype": dtype, "shape": shape or [1], "names": None}
    try:
        feature = Feature.from_json(key, raw, where="a column")
        return None if any(True for _ in _unfit(feature, tables)) else feature
    except MetadataError:
        return None


def _first_value(key: str, tables: Sequence[FoundTable]) -> Any:
    for table in tables:
        if table.rows:
            with open_parquet(table.path) as parquet:
                for block in parquet.blocks([key], rows=1):
                    column = block.column(0).combine_chunks()
                    is_other = isinstance(column, pa.ExtensionArray)
                    return (column.storage if is_other else column)[0].as_py()
    return None


def _image_shape(key: str, tables: Sequence[FoundTable]) -> tuple[int, ...]:
    for table in tables:
        with open_parquet(table.path) as parquet:
            for block in parquet.blocks([key], rows=1):
                encoded = read_images(block.column(0).combine_chunks(), key=key, where=key)
                with open_image(encoded[0].as_py() or b"") as image:
                    return (image.height, image.width, len(image.getbands()))
    raise TableError(f"There are no images of {key!r}.")


def _camera(key: str, video: FoundVideo) -> Feature:
    codec = open_video(video.path).index.codec
    names = ["height", "width", "channels"]
    return Feature(key, "video", (codec.height, codec.width, _CHANNELS), names)

"""The features that a user declares for a recording, checked before the first frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from demoreel.errors import ArgumentError, MetadataError
from demoreel.media.settings import LOSSLESS_DEPTH, VideoSettings
from demoreel.model import DEFAULT_FEATURES, DepthCode, Feature, Info
from demoreel.model.clocks import ROWS, capture_key
from demoreel.model.depth import DepthUnit, depth_table

RecordLayout = Literal["v3.0", "lance-video", "lance-native"]
LAYOUTS: tuple[RecordLayout, ...] = ("v3.0", "lance-video", "lance-native")

WhereTimes = Literal["beside", "column", "none"]
"""Where capture times are kept: in files beside the data, in columns, or nowhere."""

FeatureSpec = Mapping[str, Any]
"""A feature as LeRobot users declare it: ``dtype``, ``shape``, ``names``."""


def where_times(asked: WhereTimes | bool) -> WhereTimes:
    """Return where capture times are to be kept, as it was asked for."""
    if isinstance(asked, bool):
        return "beside" if asked else "none"
    if asked not in get_args(WhereTimes):
        raise ArgumentError(
            f"capture_times is {', '.join(map(repr, get_args(WhereTimes)))}, not {asked!r}."
        )
    return asked


def describe(
    features: Mapping[str, FeatureSpec],
    *,
    fps: float,
    robot_type: str | None = None,
    layout: RecordLayout = "v3.0",
    capture_times: WhereTimes | bool = "beside",
    cameras_with_clocks: Sequence[str] = (),
    chunks_size: int = 1000,
    data_files_size_in_mb: float = 100,
    video_files_size_in_mb: float = 200,
) -> Info:
    """Return the info of a dataset that is about to be recorded.

    Args:
        features: The features, as LeRobot users declare them. The default columns need not be
            among them. A camera with ``{"info": {"is_depth_map": True}}`` is a depth camera.
        fps: Frames per second.
        robot_type: What is recorded.
        layout: How the dataset is stored.
        capture_times: Where the times are kept at which rows were captured.
        cameras_with_clocks: Cameras whose own capture times have a column, too, if rows' have.
        chunks_size: Files in a folder.
        data_files_size_in_mb: Size up to which tables are merged.
        video_files_size_in_mb: Size up to which videos are merged.
    """
    if layout not in LAYOUTS:
        raise ArgumentError(
            f"Recording writes {', '.join(LAYOUTS)}, not {layout!r}.",
            hint="record one of these; demoreel convert makes the others of it",
        )
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not fps > 0:
        raise ArgumentError(f"fps must be positive, not {fps!r}.")
    declared = {key: _feature(key, spec) for key, spec in features.items()}
    declared = {key: f for key, f in declared.items() if key not in DEFAULT_FEATURES}
    if not declared:
        raise ArgumentError("A dataset needs at least one feature of its own.")
    if where_times(capture_times) == "column":
        for key in map(capture_key, (ROWS, *cameras_with_clocks)):
            declared.setdefault(key, Feature(key, "int64", (1,)))
    for camera in cameras_with_clocks:
        if camera not in declared or not declared[camera].is_camera:
            raise ArgumentError(f"cameras_with_clocks names {camera!r}, which is no camera here.")
    extra = {"storage_format": "lance"} if layout == "lance-native" else {}
    return Info.new(
        version="v3.0",
        fps=fps,
        features=declared,
        robot_type=robot_type,
        chunks_size=chunks_size,
        data_files_size_in_mb=data_files_size_in_mb,
        video_files_size_in_mb=video_files_size_in_mb,
        extra=extra,
    )


def _feature(key: str, spec: FeatureSpec) -> Feature:
    if "/" in key:
        raise ArgumentError(f"Feature {key!r} has a '/' in its name, which no layout can store.")
    shape = spec.get("shape")
    raw = {**spec, "shape": list(shape)} if isinstance(shape, tuple) else dict(spec)
    try:
        feature = Feature.from_json(key, raw, where="features")
    except MetadataError as error:
        raise ArgumentError(error.what, hint=error.hint) from error
    if feature.is_camera:
        height, width, channels = feature.image_shape
        wanted = 1 if feature.is_depth else 3
        if channels != wanted:
            raise ArgumentError(
                f"Camera {key!r} has {channels} channels; {wanted} can be recorded.",
                hint='a depth camera has {"info": {"is_depth_map": True}}',
            )
        if feature.depth_code is not None and feature.is_video:
            depth_table(feature.depth_code)  # refuses a range that cannot be
        if not feature.names:
            names = ["height", "width", "channels"]
            if feature.shape != (height, width, channels)[: len(feature.shape)]:
                names = [names[2], *names[:2]]
            feature = replace(feature, names=names[: len(feature.shape)])
    return feature


def with_encoding(info: Info, settings: Mapping[str, VideoSettings]) -> Info:
    """Return ``info`` with what LeRobot notes of each video camera's encoding."""
    features = dict(info.features)
    for key, chosen in settings.items():
        feature = features[key]
        height, width, _ = feature.image_shape
        noted = chosen.feature_info(fps=info.fps, height=height, width=width)
        if feature.is_depth:
            code = feature.depth_code or DepthCode()
            noted |= code.to_info()
            if "depth_unit" not in feature.info:
                del noted["depth_unit"]  # the first frame's dtype says it
        features[key] = replace(feature, info={**noted, **_kept(feature)})
    return replace(info, features=features)


def _kept(feature: Feature) -> dict[str, Any]:
    """Return what the user said of a camera that encoding does not decide."""
    decided = ("video.", "has_audio")
    return {k: v for k, v in feature.info.items() if not k.startswith(decided)}


def settings_of(
    feature: Feature, *, default: VideoSettings, depth: VideoSettings | None = None
) -> VideoSettings:
    """Return how a camera's video is to be encoded: depth losslessly unless asked otherwise."""
    return (depth or LOSSLESS_DEPTH) if feature.is_depth else default


def with_units(
    features: Mapping[str, Feature], units: Mapping[str, DepthUnit]
) -> dict[str, Feature]:
    """Return features with the units of depth cameras that they do not state."""
    stated = dict(features)
    for key, unit in units.items():
        said = features[key].info
        if said.get("depth_unit") is None:
            stated[key] = replace(features[key], info={**said, "depth_unit": unit})
    return stated

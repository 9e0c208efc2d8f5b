"""``meta/info.json``: what a dataset says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from demoreel.errors import MetadataError, UnsupportedVersionError
from demoreel.model.feature import DEFAULT_FEATURES, Feature
from demoreel.model.template import PathTemplate

READABLE_VERSIONS = ("v2.0", "v2.1", "v3.0")
"""The ``codebase_version`` values that demoreel reads."""

DATA_PATHS = {
    "v2": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "v3": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
VIDEO_PATHS = {
    "v2": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    "v3": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}
_FIELDS = {
    "v2": ("episode_chunk", "episode_index"),
    "v3": ("chunk_index", "file_index"),
}

_LARGEST = 1e9  # of a rate or a size; more is a mistake
_LONGEST_QUOTE = 60


@dataclass(frozen=True, slots=True)
class Info:
    """A checked ``info.json``.

    Attributes:
        version: ``v2.0``, ``v2.1`` or ``v3.0``.
        fps: Frames per second of the dataset's clock.
        features: Every feature by key, in the file's order.
        data_path: Template of the table files.
        video_path: Template of the video files; None where no camera is a video.
        robot_type: What was recorded, as the recorder named it.
        total_episodes: As stored; the episodes' own metadata is the authority.
        total_frames: As stored.
        total_tasks: As stored.
        chunks_size: Files (v3) or episodes (v2) per chunk folder.
        data_files_size_in_mb: Size at which a new table file is begun.
        video_files_size_in_mb: Size at which a new video file is begun.
        splits: Named episode ranges, as stored.
        extra: Fields that demoreel does not use, kept so that writing gives them back.
    """

    version: str
    fps: float
    features: Mapping[str, Feature]
    data_path: PathTemplate
    video_path: PathTemplate | None
    robot_type: str | None = None
    total_episodes: int = 0
    total_frames: int = 0
    total_tasks: int = 0
    chunks_size: int = 1000
    data_files_size_in_mb: float = 100
    video_files_size_in_mb: float = 200
    splits: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def new(
        cls, *, version: str, fps: float, features: Mapping[str, Feature], **fields: Any
    ) -> Info:
        """Describe a dataset that is about to be written; the default columns are added."""
        family = version[:2]
        every = dict(features)
        for key, dtype in DEFAULT_FEATURES.items():
            every.setdefault(key, Feature(key, dtype, (1,)))
        has_video = any(feature.is_video for feature in every.values())
        return cls(
            version=version,
            fps=fps,
            features=every,
            data_path=_template(family, "data_path", DATA_PATHS[family]),
            video_path=_template(family, "video_path", VIDEO_PATHS[family]) if has_video else None,
            **fields,
        )

    @classmethod
    def from_json(cls, raw: object, *, where: str) -> Info:
        """Check and read a parsed ``info.json``.

        Args:
            raw: The parsed JSON.
            where: The file's path, for errors.

        Raises:
            MetadataError: A field is missing or makes no sense.
            UnsupportedVersionError: The version is unknown or newer.
            UnsafePathError: A path template would leave the dataset's folder.
        """
        if not isinstance(raw, Mapping):
            raise MetadataError("info.json does not hold an object.", file=where)
        version = _readable_version(raw, where)
        family = version[:2]
        features_raw = raw.get("features")
        if not isinstance(features_raw, Mapping) or not features_raw:
            raise MetadataError("info.json has no features.", file=where)
        features = {
            str(key): Feature.from_json(str(key), value, where=where)
            for key, value in features_raw.items()
        }
        has_video = any(feature.is_video for feature in features.values())
        data_path = _text(raw, "data_path", where, default=DATA_PATHS[family])
        video_path = _text(raw, "video_path", where, default=VIDEO_PATHS[family])
        used = {name for name in cls.__slots__ if name != "extra"} | {"codebase_version"}
        return cls(
            version=version,
            fps=_positive(raw, "fps", where),
            features=features,
            data_path=_template(family, "data_path", data_path, where),
            video_path=_template(family, "video_path", video_path, where) if has_video else None,
            robot_type=raw.get("robot_type"),
            total_episodes=_count(raw, "total_episodes", where, default=None),
            total_frames=_count(raw, "total_frames", where, default=None),
            total_tasks=_count(raw, "total_tasks", where, default=0),
            chunks_size=max(1, _count(raw, "chunks_size", where, default=1000)),
            data_files_size_in_mb=_positive(raw, "data_files_size_in_mb", where, default=100),
            video_files_size_in_mb=_positive(raw, "video_files_size_in_mb", where, default=200),
            splits=_splits(raw, where),
            extra={name: value for name, value in raw.items() if name not in used},
        )

    def to_json(self) -> dict[str, Any]:
        """Return what to write to ``info.json``."""
        raw: dict[str, Any] = {
            "codebase_version": self.version,
            "robot_type": self.robot_type,
            "fps": self.fps,
            "total_episodes": self.total_episodes,
            "total_frames": self.total_frames,
            "total_tasks": self.total_tasks,
            "chunks_size": self.chunks_size,
            "splits": dict(self.splits),
            "data_path": self.data_path.text,
            "video_path": self.video_path.text if self.video_path else None,
            "features": {key: feature.to_json() for key, feature in self.features.items()},
        }
        if self.version.startswith("v3"):
            raw["data_files_size_in_mb"] = self.data_files_size_in_mb
            raw["video_files_size_in_mb"] = self.video_files_size_in_mb
        raw.update(self.extra)
        return raw

    @property
    def cameras(self) -> tuple[str, ...]:
        """Keys of all cameras, in the file's order."""
        return tuple(key for key, feature in self.features.items() if feature.is_camera)

    @property
    def video_keys(self) -> tuple[str, ...]:
        """Keys of the cameras stored as video."""
        return tuple(key for key, feature in self.features.items() if feature.is_video)

    @property
    def image_keys(self) -> tuple[str, ...]:
        """Keys of the cameras stored as encoded pictures."""
        return tuple(key for key, feature in self.features.items() if feature.is_image)

    @property
    def depth_keys(self) -> tuple[str, ...]:
        """Keys of the depth cameras."""
        return tuple(key for key, feature in self.features.items() if feature.is_depth)


def _readable_version(raw: Mapping[str, Any], where: str) -> str:
    version = raw.get("codebase_version")
    if version is None:
        raise MetadataError("info.json has no codebase_version.", file=where)
    if version not in READABLE_VERSIONS:
        raise UnsupportedVersionError(
            f"This dataset's codebase_version is {_short(version)}; "
            f"demoreel reads {', '.join(READABLE_VERSIONS)}.",
            hint="a newer version needs a newer demoreel; v1 datasets must be converted by "
            "the lerobot release that wrote them",
            file=where,
        )
    return str(version)


def _positive(
    raw: Mapping[str, Any], name: str, where: str, *, default: float | None = None
) -> float:
    value = raw.get(name, default)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _LARGEST:
        return value
    raise MetadataError(
        f"info.json has {name} {_short(value)}; a positive number was expected.", file=where
    )


def _splits(raw: Mapping[str, Any], where: str) -> Mapping[str, str]:
    splits = raw.get("splits") or {}
    if not isinstance(splits, Mapping):
        raise MetadataError(
            f"info.json has splits {_short(splits)}; an object was expected.", file=where
        )
    return splits


def _text(raw: Mapping[str, Any], name: str, where: str, *, default: str) -> str:
    text = default if raw.get(name) is None else raw[name]
    if not isinstance(text, str):
        raise MetadataError(
            f"info.json has {name} {_short(text)}; a path template was expected.", file=where
        )
    return text


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "..."


def _count(raw: Mapping[str, Any], name: str, where: str, *, default: int | None) -> int:
    value = raw.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise MetadataError(
            f"info.json has {name} {_short(value)}; a count was expected.", file=where
        )
    return value


def _template(family: str, name: str, text: str, file: str | None = None) -> PathTemplate:
    fields = _FIELDS[family] + (("video_key",) if name == "video_path" else ())
    return PathTemplate(text, fields=fields, where=name, file=file)

"""``meta/info.json``: version, frame rate, features and paths of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from demoreel.errors import MetadataError, UnsupportedVersionError
from demoreel.model.feature import DEFAULT_FEATURES, Feature, is_text, quoted
from demoreel.model.limits import refuse_above
from demoreel.model.problems import Note, Problem, refuse
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

_LARGEST = 1e9  # of a size; more is a mistake
RATES = (1e-4, 1e6)  # frames a second: outside of these, times and frame numbers lose all sense
LARGEST_COUNT = 1 << 53  # sums of more are no longer exact
_LONGEST_NAME = 4096
_DEEPEST = 64  # levels of brackets


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
        """Read a parsed ``info.json`` that must be sound.

        Args:
            raw: The parsed JSON.
            where: The file's path, for errors.

        Raises:
            MetadataError: A field is missing or makes no sense.
            UnsupportedVersionError: The version is unknown or newer.
            UnsafePathError: A path template would leave the dataset's folder.
        """
        info = parse_info(raw, where=where)
        assert info is not None  # all that leaves none is fatal
        return info

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
        """Keys of the cameras stored as encoded images."""
        return tuple(key for key, feature in self.features.items() if feature.is_image)

    @property
    def depth_keys(self) -> tuple[str, ...]:
        """Keys of the depth cameras."""
        return tuple(key for key, feature in self.features.items() if feature.is_depth)


def parse_info(
    raw: object, *, where: str, note: Note = refuse, family: str | None = None
) -> Info | None:
    """Read a parsed ``info.json`` as far as it makes sense.

    A field that makes none is noted and replaced by LeRobot's default, a count by 0; a feature
    that makes none is noted and left out.

    Args:
        raw: The parsed JSON.
        where: The file's path, for errors.
        note: Takes the problems.
        family: ``v2`` or ``v3`` where the files of ``meta/`` show which; they prevail.

    Returns:
        The info; None where no feature is left.
    """
    if not isinstance(raw, Mapping):
        error = MetadataError("info.json does not hold an object.", file=where)
        note(Problem("info-unreadable", error))
        return None
    if _is_deep(raw):
        what = f"info.json nests deeper than {_DEEPEST} levels."
        error = MetadataError(what, hint="restore the file from a copy", file=where)
        note(Problem("info-field-wrong", error))
        return None
    return _Fields(raw, where, note).info(family)


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of an ``info.json``: what each one says, or what replaces it."""

    raw: Mapping[str, Any]
    where: str
    note: Note

    def info(self, lies: str | None) -> Info | None:
        version = self._version()
        if lies is not None and version is not None and lies != version[:2]:
            what = f"info.json says {version}, but the episodes' metadata are those of {lies}."
            self.note(Problem("version-mismatch", MetadataError(what, file=self.where)))
            raw = {name: self.raw[name] for name in self.raw if name not in _TEMPLATES}
            return _Fields(raw, self.where, self.note)._info(_NEWEST[lies])
        return self._info(version or _NEWEST[lies or "v3"])

    def _info(self, version: str) -> Info | None:
        features = self._features()
        has_video = any(feature.is_video for feature in features.values())
        data_path, video_path = (
            self._template(version[:2], name, is_used=has_video or name == "data_path")
            for name in _TEMPLATES
        )
        used = {name for name in Info.__slots__ if name != "extra"} | {"codebase_version"}
        info = Info(
            version=version,
            fps=self._positive("fps", 30, between=RATES, is_needed=True),
            features=features,
            data_path=data_path,
            video_path=video_path if has_video else None,
            robot_type=self._robot_type(),
            total_episodes=self._total("total_episodes"),
            total_frames=self._total("total_frames"),
            total_tasks=self._total("total_tasks"),
            chunks_size=self._count("chunks_size", 1000) or self._no_chunks(),
            data_files_size_in_mb=self._positive("data_files_size_in_mb", 100),
            video_files_size_in_mb=self._positive("video_files_size_in_mb", 200),
            splits=self._splits(),
            extra={name: value for name, value in self.raw.items() if name not in used},
        )
        return info if features else None

    def _wrong(self, name: str, wanted: str, *, is_fatal: bool = True) -> None:
        said = f"{name} {quoted(self.raw[name])}" if name in self.raw else f"no {name}"
        error = MetadataError(f"info.json has {said}; {wanted} was expected.", file=self.where)
        self.note(Problem("info-field-wrong", error, is_fatal))

    def _version(self) -> str | None:
        version = self.raw.get("codebase_version")
        if isinstance(version, str) and version in READABLE_VERSIONS:
            return version
        known = ", ".join(READABLE_VERSIONS)
        if version is None:
            self._wrong("codebase_version", f"one of {known}")
            return None
        error = UnsupportedVersionError(
            f"This dataset's codebase_version is {quoted(version)}; demoreel reads {known}.",
            hint="a newer version needs a newer demoreel; v1 datasets must be converted by "
            "the lerobot release that wrote them",
            file=self.where,
        )
        self.note(Problem("version-unknown", error))
        return None

    def _features(self) -> dict[str, Feature]:
        raw = self.raw.get("features")
        if not isinstance(raw, Mapping) or not raw:
            self._wrong("features", "an object with features in it")
            return {}
        features: dict[str, Feature] = {}
        try:
            refuse_above("FEATURES", len(raw), "info.json has features:", file=self.where)
        except MetadataError as error:
            self.note(Problem("limit-exceeded", error))
            return {}
        for key, entry in ((str(key), entry) for key, entry in raw.items()):
            try:
                features[key] = Feature.from_json(key, entry, where=self.where)
            except MetadataError as error:
                self.note(Problem("feature-unreadable", error, where={"feature": key}))
        for key, dtype in DEFAULT_FEATURES.items():
            place = {"feature": key}
            if key not in raw:
                wrong = MetadataError(f"info.json does not declare {key}.", file=self.where)
                self.note(Problem("feature-default-missing", wrong, is_fatal=False, where=place))
            elif key in features and not _is_default(features[key], dtype):
                feature = features[key]
                wrong = MetadataError(
                    f"{key} is declared as {feature.dtype} of shape {list(feature.shape)}; "
                    f"it is {dtype} of shape [1] everywhere.",
                    file=self.where,
                )
                self.note(Problem("feature-default-type", wrong, is_fatal=False, where=place))
        return features

    def _template(self, family: str, name: str, *, is_used: bool) -> PathTemplate:
        default = _TEMPLATES[name][family]
        text = self.raw.get(name)
        if isinstance(text, str):
            try:
                return _template(family, name, text, self.where)
            except MetadataError as error:
                code = error.code or "template-unsafe"
                self.note(Problem(code, error, is_fatal=is_used))
        elif text is not None:
            self._wrong(name, "a path template")
        return _template(family, name, default, self.where)

    def _positive(
        self,
        name: str,
        default: float,
        *,
        between: tuple[float, float] = (1e-9, _LARGEST),
        is_needed: bool = False,
    ) -> float:
        value = self.raw.get(name, None if is_needed else default)
        low, high = between
        if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
            return value
        self._wrong(name, f"a positive number from {low:g} to {high:g}")
        return default

    def _total(self, name: str) -> int:
        """Return a total, which no reader needs: the episodes' metadata say more."""
        if self.raw.get(name) is not None:
            return self._count(name, 0)
        error = MetadataError(f"info.json has no {name}.", file=self.where)
        self.note(Problem("total-missing", error, is_fatal=False))
        return 0

    def _count(self, name: str, default: int) -> int:
        value = self.raw.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_COUNT:
            return value
        self._wrong(name, "a count")
        return default

    def _no_chunks(self) -> int:
        self._wrong("chunks_size", "a count above 0", is_fatal=False)
        return 1

    def _robot_type(self) -> str | None:
        value = self.raw.get("robot_type")
        if isinstance(value, str) and len(value) <= _LONGEST_NAME and is_text(value):
            return value
        if value is not None:
            self._wrong("robot_type", "a text or null")
        return None

    def _splits(self) -> Mapping[str, str]:
        splits = self.raw.get("splits") or {}
        if isinstance(splits, Mapping):
            return splits
        self._wrong("splits", "an object")
        return {}


_TEMPLATES = {"data_path": DATA_PATHS, "video_path": VIDEO_PATHS}
_NEWEST = {"v2": "v2.1", "v3": "v3.0"}


def _is_deep(raw: Mapping[str, Any]) -> bool:
    """Whether it nests deeper than any tool writes: what walks through it later recurses."""
    level: list[Any] = [raw]
    for _ in range(_DEEPEST):
        parts = [each.values() if isinstance(each, Mapping) else each for each in level]
        level = [e for part in parts for e in part if isinstance(e, (Mapping, list, tuple))]
        if not level:
            return False
    return True


def _is_default(feature: Feature, dtype: str) -> bool:
    """Whether a default column is declared as it is everywhere."""
    kinds = "f" if dtype.startswith("float") else "iu"
    is_kind = feature.is_numeric and feature.numpy_dtype.kind in kinds
    return is_kind and feature.item_shape == ()


def _template(family: str, name: str, text: str, file: str | None = None) -> PathTemplate:
    fields = _FIELDS[family] + (("video_key",) if name == "video_path" else ())
    return PathTemplate(text, fields=fields, where=name, file=file)

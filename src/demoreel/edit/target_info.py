"""What a result's ``info.json`` will say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from demoreel.edit.clips import CutList
from demoreel.edit.stated import merged_keys, merged_splits
from demoreel.errors import ArgumentError
from demoreel.layouts.base import Reader
from demoreel.media.images import CodecName, ImageCodec, Subsampling
from demoreel.model import DEFAULT_FEATURES, Feature, Info

Layout = Literal["v3.0", "v2.1", "lance-video", "lance-native", "lance-frames"]
Images = Literal["keep", "video"]
"""What becomes of cameras whose images lie in the tables."""

LAYOUTS: tuple[Layout, ...] = get_args(Layout)

ENCODER_KEYS = tuple(
    f"video.{name}"
    for name in ("g", "crf", "preset", "fast_decode", "video_backend", "extra_options")
)
"""What ``info.json`` says of the settings that a camera's videos were encoded with."""

_FASTEST = 10_000
_V2_ONLY = ("total_videos", "total_chunks")
_NOT_INHERITED = (*_V2_ONLY, "storage_format")
_HAS_AUDIO, _AUDIO = "has_audio", "audio."
_OLD_INFO = "video_info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a result is to lie on disk.

    Attributes:
        layout: ``v3.0``; ``v2.1``: a table and a video per camera for each episode; or one of the
            Lance layouts.
        data_files_size_in_mb: Size at which a new table is begun (v3.0); None takes the first
            source's, as below.
        video_files_size_in_mb: Size at which a new video is begun (v3.0).
        chunks_size: Files (v3.0) or episodes (v2.1) in a chunk folder.
        exact: Whether a clip carries no packets of frames that are not its own. Its frames before
            the first keyframe are encoded for that, and what else needs it.
        fps: Another frame rate; None keeps the sources'.
        vcodec: A codec (``h264``) or an encoder (``libx264``) to encode cameras with.
        crf: Its constant quality; None is ``media.settings.VideoSettings``' default, as below.
        gop: Frames from keyframe to keyframe.
        preset: The encoder's own speed.
        pix_fmt: The pixel format.
        cameras: The cameras to encode; None is all but depth.
        images: ``video`` makes videos of cameras whose images lie in the tables.
        recompute_stats: Decode the result's images where no source has counted their levels, so
            that all statistics are exact.
        drop_audio: Leave the audio of videos out. It is copied otherwise, and what cannot be is
            refused.
        join_tables: Whether rows of several source tables may share one; else each begins another.
        join_videos: Likewise of videos.
        verbatim: Whether all episodes of the only source stay as they are: videos byte for byte,
            numbers and metadata unchanged.
        link: Of verbatim Lance layouts: leave the videos where they are, and point at them.
        table: Of lance-video and lance-frames: the table's name; None is the target folder's.
        image_codec: Of verbatim lance-frames: how images are encoded; None keeps their bytes.
        jpeg_quality: Its quality, where it is ``jpeg``.
        jpeg_subsampling: Its subsampling.
    """

    layout: Layout = "v3.0"
    data_files_size_in_mb: float | None = None
    video_files_size_in_mb: float | None = None
    chunks_size: int | None = None
    exact: bool = False
    fps: float | None = None
    vcodec: str | None = None
    crf: int | None = None
    gop: int | None = None
    preset: int | str | None = None
    pix_fmt: str | None = None
    cameras: Sequence[str] | None = None
    images: Images = "keep"
    recompute_stats: bool = False
    drop_audio: bool = False
    join_tables: bool = True
    join_videos: bool = True
    verbatim: bool = False
    link: bool = False
    table: str | None = None
    image_codec: CodecName | None = None
    jpeg_quality: int = 95
    jpeg_subsampling: Subsampling = 2

    def __post_init__(self) -> None:
        """Refuse what makes no sense, before anything is looked at."""
        if self.fps is not None and not 0 < self.fps <= _FASTEST:
            raise ArgumentError(f"fps must be positive, not {self.fps}.")
        if self.images not in ("keep", "video"):
            raise ArgumentError(f"images must be 'keep' or 'video', not {self.images!r}.")
        if self.cameras is not None and self.vcodec is None and self.images == "keep":
            raise ArgumentError(
                "There is no codec to encode the cameras with.",
                hint="ask for one: vcodec='h264' (--vcodec h264)",
            )

    @property
    def images_as(self) -> ImageCodec:
        """How images in rows are encoded."""
        name = self.image_codec or "source"
        return ImageCodec(name, self.jpeg_quality, self.jpeg_subsampling)


class FormOptions(TypedDict, total=False):
    """What ``Form`` takes, as keywords of ``Cut.render`` and ``Cut.plan``."""

    layout: Layout
    data_files_size_in_mb: float | None
    video_files_size_in_mb: float | None
    chunks_size: int | None
    exact: bool
    fps: float | None
    vcodec: str | None
    crf: int | None
    gop: int | None
    preset: int | str | None
    pix_fmt: str | None
    cameras: Sequence[str] | None
    images: Images
    recompute_stats: bool
    drop_audio: bool
    join_tables: bool
    join_videos: bool


def target_info(
    readers: Sequence[Reader],
    features: Mapping[str, Feature],
    cutlist: CutList,
    positions: np.ndarray,
    form: Form,
    *,
    frames: int,
    unchanged: bool,
    dropped: list[str],
) -> Info:
    """Return the result's info; its number of tasks is not known yet.

    Args:
        readers: The sources.
        features: The result's features, without the default ones.
        cutlist: The cut list.
        positions: Where each clip's episode stands in its source.
        form: How the result is to lie on disk.
        frames: How many it will have.
        unchanged: Whether its episodes are those of its only source.
        dropped: Takes a sentence for what sources state and the result will not.
    """
    if form.layout not in LAYOUTS:
        raise ArgumentError(
            f"A cut is not written as {form.layout!r}.", hint=f"one of {', '.join(LAYOUTS)}"
        )
    _refuse_impossible(form.layout, features)
    first = readers[0].info
    defaults = {key: first.features[key] for key in DEFAULT_FEATURES if key in first.features}
    every = {**features, **defaults}
    is_v3, to_v3 = first.version.startswith("v3"), form.layout != "v2.1"
    fps = first.fps if form.fps is None else _plain(form.fps)
    if (to_v3 and not is_v3) or fps != first.fps:
        every = {key: _with_rate(f, fps, to_v3) for key, f in every.items()}
    if not to_v3:
        every = {key: _without_rate(f) for key, f in every.items()}
    if not is_v3:
        every = {key: _as_written_today(f) for key, f in every.items()}
    total = len(cutlist.clips)
    bounds = {
        "chunks_size": form.chunks_size or (first.chunks_size if is_v3 == to_v3 else 1000),
        "data_files_size_in_mb": form.data_files_size_in_mb
        or (first.data_files_size_in_mb if is_v3 else 100),
        "video_files_size_in_mb": form.video_files_size_in_mb
        or (first.video_files_size_in_mb if is_v3 else 200),
    }
    for name, value in bounds.items():
        if not value > 0:
            raise ArgumentError(f"{name} must be positive, not {value}.")
    return Info.new(
        version="v3.0" if to_v3 else form.layout,
        fps=fps,
        features=every,
        robot_type=_one_robot(readers),
        total_episodes=total,
        total_frames=frames,
        splits=merged_splits(
            [reader.info.splits for reader in readers],
            np.array([clip.source for clip in cutlist.clips]),
            positions,
            unchanged=unchanged,
            dropped=dropped,
        ),
        extra=_extra(readers, form, dropped),
        **bounds,
    )


def _extra(readers: Sequence[Reader], form: Form, dropped: list[str]) -> dict[str, Any]:
    kept = merged_keys(readers, _NOT_INHERITED, dropped)
    return {**kept, "storage_format": "lance"} if form.layout == "lance-native" else kept


def _refuse_impossible(layout: Layout, features: Mapping[str, Feature]) -> None:
    """Refuse a layout that cannot hold the cameras as they are."""
    filmed = [key for key, feature in features.items() if feature.is_video]
    imaged = [key for key, feature in features.items() if feature.is_image]
    if layout == "lance-frames" and filmed:
        raise ArgumentError(
            f"The images of {filmed[0]!r} lie in videos: lance-frames would need them encoded "
            "one by one.",
            hint="cut into lance-video, or convert the result: demoreel convert --to lance-frames",
        )
    if layout == "lance-video" and imaged and not filmed:
        raise ArgumentError(
            "The images lie in tables; there are no videos for lance-video to keep.",
            hint="cut into lance-frames",
        )


def _plain(fps: float) -> float:
    """Return whole numbers as such: other programs compare them as text."""
    return int(fps) if float(fps).is_integer() else float(fps)


def _with_rate(feature: Feature, fps: float, to_v3: bool) -> Feature:
    """v3.0 says the frame rate of every feature; cameras say it in their ``info``."""
    if feature.is_video or not (to_v3 or "fps" in feature.extra):
        return feature
    return replace(feature, extra={**feature.extra, "fps": fps})


def _without_rate(feature: Feature) -> Feature:
    """v2.1 says the frame rate once."""
    return replace(feature, extra={n: v for n, v in feature.extra.items() if n != "fps"})


def _as_written_today(feature: Feature) -> Feature:
    """Return a v2.x feature as later programs expect it: ``info``, and cameras with names.

    Older ones wrote ``video_info``, and some left the names of a camera's dimensions out, which
    lerobot does not forgive.
    """
    if not feature.is_camera:
        return feature
    extra = {name: value for name, value in feature.extra.items() if name != _OLD_INFO}
    old = feature.extra.get(_OLD_INFO)
    info = {**old, **feature.info} if isinstance(old, Mapping) else feature.info
    return replace(feature, extra=extra, info=info, names=feature.names or _dimensions(feature))


def _dimensions(feature: Feature) -> list[str] | None:
    if len(feature.shape) != 3:
        return None
    order = ["height", "width", "channels"]
    return order if feature.shape == feature.image_shape else [order[2], *order[:2]]


def with_common_encoding(
    features: Mapping[str, Feature],
    sources: Sequence[Mapping[str, Feature]],
    encoded: Collection[str],
    dropped: list[str],
) -> dict[str, Feature]:
    """Return features whose videos say of their encoding only what all sources say alike.

    The rest is null, as lerobot has it in a merged dataset: frames of one video may be encoded in
    several ways.

    Args:
        features: The result's, without the default ones.
        sources: The sources' features, by the result's names.
        encoded: Cameras that are encoded anew, of which one thing is true.
        dropped: Takes a sentence for what is null.
    """
    found = dict(features)
    for key, feature in features.items():
        stated = [one[key].info for one in sources if key in one]
        if not feature.is_video or key in encoded or len(stated) < 2:
            continue
        names = [n for n in ENCODER_KEYS if any(info.get(n) != stated[0].get(n) for info in stated)]
        if names:
            nothing: dict[str, Any] = dict.fromkeys(names)
            if "video.extra_options" in nothing:
                nothing["video.extra_options"] = {}
            found[key] = replace(feature, info={**feature.info, **nothing})
            dropped.append(
                f"{key}: {', '.join(names)}, which are heterogeneous or incomplete in the datasets"
            )
    return found


def _one_robot(readers: Sequence[Reader]) -> str | None:
    robots = {reader.info.robot_type for reader in readers}
    return robots.pop() if len(robots) == 1 else None


def with_audio(
    info: Info,
    heard: Mapping[str, bool],
    sources: Sequence[Mapping[str, Feature]],
    dropped: list[str],
) -> Info:
    """Return the info with what is true of the audio of its cameras' videos.

    Args:
        info: What the result will be.
        heard: For each camera, whether its videos will have audio.
        sources: The sources' features, by the result's names.
        dropped: Takes a sentence for what is stated and is not true of the result.
    """
    features = dict(info.features)
    for key, has_audio in heard.items():
        stated = [one[key].info for one in sources if key in one]
        features[key] = said_of_audio(features[key], has_audio, stated, dropped)
    return replace(info, features=features)


def said_of_audio(
    feature: Feature,
    has_audio: bool,
    stated: Sequence[Mapping[str, Any]] = (),
    dropped: list[str] | None = None,
) -> Feature:
    """Return a camera with ``has_audio`` and ``audio.*`` as they are true of its videos.

    Args:
        feature: The camera.
        has_audio: Whether its videos have audio.
        stated: What the sources say of the camera.
        dropped: Takes a sentence for what they say and is not true any more.
    """
    said = [info for info in stated or [feature.info] if info.get("has_audio")]
    details: dict[str, Any] = {}
    for name in dict.fromkeys(n for info in said for n in info if n.startswith(_AUDIO)):
        values = [info.get(name) for info in said]
        if has_audio and all(value == values[0] for value in values):
            details[name] = values[0]
        elif has_audio and dropped is not None:
            dropped.append(f"{feature.key}: {name}, which the sources say differently")
    if said and not has_audio and dropped is not None:
        dropped.append(f"{feature.key}: has_audio is false now, and audio.* is gone from info.json")
    if not has_audio and not any(n == _HAS_AUDIO or n.startswith(_AUDIO) for n in feature.info):
        return feature  # nothing is said of audio, and there is none

    def corrected(info: Mapping[str, Any]) -> dict[str, Any]:
        kept = {n: v for n, v in info.items() if not n.startswith(_AUDIO)}
        return {**kept, _HAS_AUDIO: has_audio, **details}

    extra = dict(feature.extra)
    if isinstance(extra.get(_OLD_INFO), Mapping):
        extra[_OLD_INFO] = corrected(extra[_OLD_INFO])
    return replace(feature, info=corrected(feature.info), extra=extra)


def refuse_other_rates(readers: Sequence[Reader]) -> None:
    """Refuse sources of different frame rates, where none is asked for."""
    rates = [reader.info.fps for reader in readers]
    if len(set(rates)) > 1:
        raise ArgumentError(
            "The datasets have different frame rates.",
            hint="say which rate the result is to have: fps=30 (--fps 30)",
            **{str(reader.root): f"{reader.info.fps:g} fps" for reader in readers},
        )

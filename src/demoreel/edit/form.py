"""How a result is stored: the layout, and how each camera is copied or encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, get_args

from demoreel.errors import ArgumentError, UnknownKeyError, nearest
from demoreel.media.images import CodecName, ImageCodec, Subsampling
from demoreel.media.settings import (
    LOSSLESS_DEPTH,
    VideoSettings,
    codec_named,
    with_known_chroma,
)
from demoreel.model import Feature

Layout = Literal["v3.0", "v2.1", "lance-video", "lance-native", "lance-frames"]

Images = Literal["keep", "video"]
"""What becomes of cameras whose images are in the tables."""

LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_FASTEST = 10_000
_DEPTH_FORMATS = (LOSSLESS_DEPTH.pix_fmt, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a result is stored.

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
        b_frames: Most B-frames in a row.
        encoder_options: More options of the encoder, from the list that ``VideoSettings`` has.
        image_size: Height and width that encoded cameras are scaled to; None keeps theirs.
        cameras: The cameras to encode; None is all but depth.
        images: ``video`` makes videos of cameras whose images are in the tables.
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
    b_frames: int | None = None
    encoder_options: Mapping[str, str] | None = None
    image_size: tuple[int, int] | None = None
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
        if self.image_size is not None:
            if len(self.image_size) != 2 or not all(
                isinstance(side, int) and side > 0 and side % 2 == 0 for side in self.image_size
            ):
                raise ArgumentError(
                    "image_size is height and width, even numbers of pixels, not "
                    f"{self.image_size!r}."
                )
            if self.vcodec is None and self.images == "keep":
                raise ArgumentError(
                    "There is no codec to encode the scaled cameras with.",
                    hint="ask for one: vcodec='h264' (--vcodec h264)",
                )
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
    b_frames: int | None
    encoder_options: Mapping[str, str] | None
    image_size: tuple[int, int] | None
    cameras: Sequence[str] | None
    images: Images
    recompute_stats: bool
    drop_audio: bool
    join_tables: bool
    join_videos: bool


@dataclass(frozen=True, slots=True)
class EncodePolicy:
    """How a camera gets into a result.

    Attributes:
        settings: How all its images are encoded; None copies packets.
        exact: Whether clips carry no packets but their own, and some frames are encoded for that.
        size: Height and width that encoded images are scaled to; None keeps theirs.
    """

    settings: VideoSettings | None = None
    exact: bool = False
    size: tuple[int, int] | None = None


def settings_of(form: Form) -> VideoSettings | None:
    """Return the codec that a form asks for; None if it asks for none."""
    details: dict[str, Any] = {
        "crf": form.crf,
        "gop": form.gop,
        "preset": form.preset,
        "pix_fmt": form.pix_fmt,
        "b_frames": form.b_frames,
        "options": form.encoder_options,
    }
    given = {name: value for name, value in details.items() if value is not None}
    if form.vcodec is None:
        if form.images == "video":
            return with_known_chroma(VideoSettings(**given))
        if given:
            raise ArgumentError(
                f"{', '.join(given)}: there is no codec to say that of.",
                hint="ask for one: vcodec='h264' (--vcodec h264)",
            )
        return None
    codec, encoder = codec_named(form.vcodec)
    return with_known_chroma(VideoSettings(codec=codec, encoder=encoder, **given))


def policies_of(features: Mapping[str, Feature], form: Form) -> dict[str, EncodePolicy]:
    """Return how each camera that is to be a video gets there.

    Depth cameras that are videos are copied, or encoded without loss where the frame rate changes.

    Args:
        features: The result's features, cameras as the sources have them.
        form: How the result is to be.
    """
    settings = settings_of(form)
    cameras = {key: feature for key, feature in features.items() if feature.is_camera}
    _check_names(cameras, form)
    policies = {}
    for key, camera in cameras.items():
        named = form.cameras is None or key in form.cameras
        if camera.is_image:
            if form.images == "video" and named and not camera.is_depth:
                policies[key] = EncodePolicy(settings, size=form.image_size)
        elif camera.is_depth:
            lossless = form.vcodec is not None and form.fps is not None and named
            policies[key] = EncodePolicy(_lossless(camera) if lossless else None, form.exact)
        else:
            anew = form.vcodec is not None and named
            policies[key] = EncodePolicy(
                settings if anew else None, form.exact, form.image_size if anew else None
            )
    return policies


def _check_names(cameras: Mapping[str, Feature], form: Form) -> None:
    for key in form.cameras or ():
        if key not in cameras:
            raise UnknownKeyError(f"There is no camera {key!r}.", hint=nearest(key, cameras))
        if cameras[key].is_depth and (form.fps is None or cameras[key].is_image):
            raise ArgumentError(
                f"The depth camera {key!r} is kept as it is: a codec for colours would spoil it.",
                hint="leave it out of cameras=",
            )
        if cameras[key].is_image and form.images != "video":
            raise ArgumentError(
                f"The images of {key!r} are in the tables.",
                hint="make a video of them: images='video' (--images video)",
            )


def _lossless(camera: Feature) -> VideoSettings:
    if camera.info.get("video.pix_fmt") not in _DEPTH_FORMATS:
        raise ArgumentError(
            f"The depth camera {camera.key!r} is {camera.info['video.pix_fmt']}; only "
            f"{LOSSLESS_DEPTH.pix_fmt} can be encoded without loss.",
            hint="remove the camera, or keep the frame rate",
        )
    return LOSSLESS_DEPTH


def as_encoded(feature: Feature, policy: EncodePolicy | None, fps: float) -> Feature:
    """Return a camera as ``info.json`` will describe it."""
    if policy is None or policy.settings is None:
        return feature
    height, width, channels = feature.image_shape
    if policy.size is not None:
        height, width = policy.size
        names = ["height", "width", "channels"]
        feature = replace(feature, shape=(height, width, channels), names=names)
    said = policy.settings.feature_info(fps=fps, height=height, width=width)
    if feature.is_depth:
        said |= {name: value for name, value in feature.info.items() if name not in said}
        said["is_depth_map"] = True
    extra = {name: value for name, value in feature.extra.items() if name != "video_info"}
    return replace(feature, dtype="video", info=said, extra=extra)

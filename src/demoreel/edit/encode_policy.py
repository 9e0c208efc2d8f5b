"""How each camera gets into a result: copied, copied but for some frames, or encoded anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from demoreel.edit.target_info import Form
from demoreel.errors import ArgumentError, UnknownKeyError, nearest
from demoreel.media.settings import (
    LOSSLESS_DEPTH,
    VideoSettings,
    codec_named,
    with_known_chroma,
)
from demoreel.model import Feature

_DEPTH_FORMATS = (LOSSLESS_DEPTH.pix_fmt, None)


@dataclass(frozen=True, slots=True)
class EncodePolicy:
    """How a camera gets into a result.

    Attributes:
        settings: How all its images are encoded; None copies packets.
        exact: Whether clips carry no packets but their own, and some frames are encoded for that.
    """

    settings: VideoSettings | None = None
    exact: bool = False


def settings_of(form: Form) -> VideoSettings | None:
    """Return the codec that a form asks for; None if it asks for none."""
    details: dict[str, Any] = {
        "crf": form.crf,
        "gop": form.gop,
        "preset": form.preset,
        "pix_fmt": form.pix_fmt,
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
                policies[key] = EncodePolicy(settings)
        elif camera.is_depth:
            lossless = form.vcodec is not None and form.fps is not None and named
            policies[key] = EncodePolicy(_lossless(camera) if lossless else None, form.exact)
        else:
            policies[key] = EncodePolicy(
                settings if form.vcodec is not None and named else None, form.exact
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
                f"The images of {key!r} lie in the tables.",
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
    height, width, _ = feature.image_shape
    said = policy.settings.feature_info(fps=fps, height=height, width=width)
    if feature.is_depth:
        said |= {name: value for name, value in feature.info.items() if name not in said}
        said["is_depth_map"] = True
    extra = {name: value for name, value in feature.extra.items() if name != "video_info"}
    return replace(feature, dtype="video", info=said, extra=extra)

"""Trying an encoder out, before anything is planned on it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from demoreel.edit.encode.headers import hevc_header
from demoreel.edit.encode.hevc import PLAIN, Renumbering
from demoreel.errors import VideoError
from demoreel.media.encode import VideoEncoder
from demoreel.media.mp4 import Description, read_description
from demoreel.media.settings import VideoSettings
from demoreel.media.video import Video
from demoreel.storage.local import open_file


def settings_beside(
    settings: VideoSettings, description: Description, video: Video, fps: float
) -> VideoSettings:
    """Return settings such that frames can stand beside a video's packets.

    Cost: for HEVC, encodes one black picture or two, once.

    Raises:
        VideoError: There are none.
    """
    if settings.codec != "hevc":
        return settings
    own = hevc_header(description)
    codec = video.index.codec
    if set(hevc_header(_described(_Key(settings), codec.width, codec.height, fps)).sets) <= set(
        own.sets
    ):
        return settings
    number = own.free_number()
    if number is None or not own.lengths_have_four_bytes:
        raise VideoError(
            "Frames cannot be encoded to stand beside this video's: its header has no room.",
            hint="encode the camera anew (vcodec)",
            file=video.name,
        )
    said = settings.options.get("x265-params")
    options = {**settings.options, "x265-params": f"{said}:{PLAIN}" if said else PLAIN}
    plain = replace(settings, gop=1, options=options)
    Renumbering(hevc_header(_described(_Key(plain), codec.width, codec.height, fps)), number)
    return plain


class _Key:
    """Settings as the key of a cache: their options are a dict."""

    def __init__(self, settings: VideoSettings) -> None:
        self.settings = settings
        plain = (settings.codec, settings.pix_fmt, settings.gop, settings.crf, settings.preset)
        self._said = (*plain, tuple(sorted(settings.options.items())))

    def __hash__(self) -> int:
        return hash(self._said)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._said == other._said


@lru_cache(maxsize=16)
def _described(key: _Key, width: int, height: int, fps: float) -> Description:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.mp4"
        with VideoEncoder(path, fps=fps, width=width, height=height, settings=key.settings) as out:
            out.add(black(key.settings, (height, width)))
        found = read_description(open_file(str(path)), name=str(path))
    if found is None:
        raise VideoError(f"What {key.settings.encoder_name} writes cannot be read again.")
    return found


def black(settings: VideoSettings, size: tuple[int, int]) -> np.ndarray:
    """Return a black picture as ``VideoEncoder.add`` takes it; of depth, zeros."""
    if not settings.pix_fmt.startswith("gray"):
        return np.zeros((*size, 3), np.uint8)
    return np.zeros(size, np.uint8 if settings.pix_fmt == "gray" else np.uint16)

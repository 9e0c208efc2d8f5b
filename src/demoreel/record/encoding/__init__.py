"""Encoding while recording: frames go in at once, videos come out whole.

The control loop copies a frame into shared memory and goes on. Each camera has an encoder in a
process of its own, at a lower priority, so that neither its work nor its death reaches the loop.
A frame's memory is used again only when its packet lies in a file; whatever ends an encoder,
another goes on from there. Where encoders fall behind, frames wait on disk.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demoreel.record.encoding.cameras import CameraEncoders
    from demoreel.record.encoding.choose import DOCUMENTED_ORDER, choose_codec
    from demoreel.record.encoding.persist import (
        PendingVideos,
        clear_unsaved,
        finish_videos,
        forget,
    )
    from demoreel.record.encoding.plan import Backlog, CameraPlan, FinishedVideo

# Loaded when they are asked for: an encoder's process imports this package and needs none of them.
_HOMES = {
    "DOCUMENTED_ORDER": "choose",
    "Backlog": "plan",
    "CameraEncoders": "cameras",
    "CameraPlan": "plan",
    "FinishedVideo": "plan",
    "PendingVideos": "persist",
    "choose_codec": "choose",
    "clear_unsaved": "persist",
    "finish_videos": "persist",
    "forget": "persist",
}

__all__ = [
    "DOCUMENTED_ORDER",
    "Backlog",
    "CameraEncoders",
    "CameraPlan",
    "FinishedVideo",
    "PendingVideos",
    "choose_codec",
    "clear_unsaved",
    "finish_videos",
    "forget",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

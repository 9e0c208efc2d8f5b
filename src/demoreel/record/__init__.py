"""Recording: from a control loop to committed episodes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demoreel.record.clock import EpisodeReport, Gap
    from demoreel.record.loop import LoopReport, features_of, record_episodes, run_loop
    from demoreel.record.recorder import Recorder
    from demoreel.record.start import create, resume

# Loaded when they are asked for: an encoder's process imports this package and needs none of them.
_HOMES = {
    "EpisodeReport": "clock",
    "Gap": "clock",
    "LoopReport": "loop",
    "Recorder": "recorder",
    "create": "start",
    "features_of": "loop",
    "record_episodes": "loop",
    "resume": "start",
    "run_loop": "loop",
}

__all__ = [
    "EpisodeReport",
    "Gap",
    "LoopReport",
    "Recorder",
    "create",
    "features_of",
    "record_episodes",
    "resume",
    "run_loop",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

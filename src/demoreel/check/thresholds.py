"""The numbers that checks decide by: all in one place, all settable, all shown in the report."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from demoreel.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that a check decides by.

    Attributes:
        default: Its value unless it is set.
        meaning: What it is, one sentence.
    """

    default: float
    meaning: str


THRESHOLDS: Mapping[str, Threshold] = {
    "timestamp_slack_s": Threshold(
        1e-4,
        "How far a timestamp may be from frame_index / fps, in seconds (timestamp-off-grid); "
        "lerobot's tolerance.",
    ),
    "drift_s": Threshold(
        1e-4,
        "How far from_timestamp may be from its frame in the video, in seconds (clip-drift); "
        "lerobot's tolerance.",
    ),
    "fps_slack": Threshold(
        0.01, "How far a video's frame rate may be from the declared one, as a share (video-fps)."
    ),
    "clock_slack": Threshold(
        0.5, "How far frames of a video may be from even spacing, in frames (video-uneven-clock)."
    ),
    "audio_short_s": Threshold(
        1.0, "How long before the video its audio may end, in seconds (audio-short)."
    ),
    "range_slack": Threshold(
        0.01,
        "How far values may be outside the recorded minimum and maximum, as a share of that "
        "range (outside-range).",
    ),
    "mean_slack": Threshold(
        0.02, "How far a recorded mean may be off, in standard deviations (stats-differ)."
    ),
    "std_slack": Threshold(
        0.02, "How far a recorded standard deviation may be off, as a share (stats-differ)."
    ),
    "quantile_slack": Threshold(
        0.1,
        "How far a recorded quantile may be off, as a share of the range of values "
        "(stats-quantiles).",
    ),
    "keyframe_frames": Threshold(60.0, "How many frames apart keyframes may be (keyframes-far)."),
    "jump_times": Threshold(
        5.0, "How many times the usual step an action must change to be reported (action-jump)."
    ),
    "state_lag": Threshold(
        0.5, "How late the state may follow the action, in seconds (state-lag)."
    ),
    "state_offset": Threshold(
        0.25,
        "How far a joint may be offset from its action, as a share of its movement (state-offset).",
    ),
    "idle_seconds": Threshold(
        3.0,
        "How long the robot may rest at the beginning or end of an episode, in seconds (idle-head, "
        "idle-tail).",
    ),
    "idle_reach": Threshold(
        0.02, "What counts as rest, as a share of the range of movement (idle-*, episode-idle)."
    ),
    "short_times": Threshold(
        5.0, "How many times shorter than usual an episode may be (episode-short)."
    ),
    "long_times": Threshold(
        5.0, "How many times longer than usual an episode may be (episode-long)."
    ),
    "capture_gap": Threshold(
        3.0, "How many frame times after the row before a row may have been captured (capture-gap)."
    ),
    "dropout_seconds": Threshold(
        1.0, "How long an action may not change within an episode, in seconds (teleop-dropout)."
    ),
    "near_share": Threshold(
        0.5,
        "The share of an episode that must be in another one (episode-near-duplicate, leak-near).",
    ),
    "alike_levels": Threshold(
        3.0, "How far frames of copies may differ, in levels of 255 (pictures-alike)."
    ),
    "black_level": Threshold(
        20.0, "The level of 255 up to which a frame is black (picture-black)."
    ),
    "black_seconds": Threshold(0.5, "How long frames may be black, in seconds (picture-black)."),
    "same_levels": Threshold(
        6.0,
        "How far any pixel of a frame may be from the one before, in levels of 255, for the two "
        "to be the same (picture-frozen, picture-repeated).",
    ),
    "frozen_seconds": Threshold(
        1.0, "How long the image may not change while the robot moves, in seconds (picture-frozen)."
    ),
    "repeated_share": Threshold(
        0.4, "The share of frames in motion that may repeat the one before (picture-repeated)."
    ),
    "camera_jump_times": Threshold(
        6.0, "How many times the usual change the image must change at once (picture-jump)."
    ),
    "camera_jump_levels": Threshold(
        20.0, "By how many levels of 255, on average, it must change (picture-jump)."
    ),
}
"""By name. Families add theirs here."""


def chosen(given: Mapping[str, float] | None) -> dict[str, float]:
    """Return every threshold: the default, or what the user says."""
    values = {name: threshold.default for name, threshold in THRESHOLDS.items()}
    for name, value in (given or {}).items():
        if name not in values:
            close = difflib.get_close_matches(name, values, n=3) or sorted(values)
            raise ArgumentError(
                f"There is no threshold {name!r}.", hint=f"there are: {', '.join(close)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ArgumentError(f"The threshold {name} must be a number from 0 up, not {value!r}.")
        values[name] = float(value)
    return values

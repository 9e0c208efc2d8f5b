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
        default: Its value where nobody says otherwise.
        meaning: What it is, one sentence.
    """

    default: float
    meaning: str


THRESHOLDS: Mapping[str, Threshold] = {
    "timestamp_slack_s": Threshold(
        1e-4,
        "How far a timestamp may lie from frame_index / fps, in seconds (timestamp-off-grid); "
        "lerobot stops at this much.",
    ),
    "drift_s": Threshold(
        1e-4,
        "How far from_timestamp may lie from its frame in the video, in seconds (clip-drift); "
        "lerobot stops at this much.",
    ),
    "fps_slack": Threshold(
        0.01, "How far a video's frame rate may be from the declared one, as a share (video-fps)."
    ),
    "clock_slack": Threshold(
        0.5, "How far frames of a video may be from even spacing, in frames (video-uneven-clock)."
    ),
    "range_slack": Threshold(
        0.001,
        "How far values may lie outside the recorded minimum and maximum, as a share of that "
        "range (outside-range).",
    ),
    "mean_slack": Threshold(
        0.02, "How far a recorded mean may be off, in standard deviations (stats-differ)."
    ),
    "std_slack": Threshold(
        0.02, "How far a recorded standard deviation may be off, as a share (stats-differ)."
    ),
    "jump_times": Threshold(
        5.0, "How many times the usual step an action must leap to be reported (action-jump)."
    ),
    "state_lag": Threshold(
        0.5, "How late the state may follow the action, in seconds (state-lag)."
    ),
    "state_offset": Threshold(
        0.25,
        "How far a joint may stay off its action, as a share of how far it moves (state-offset).",
    ),
    "idle_seconds": Threshold(
        3.0, "How long an episode may rest at an end, in seconds (idle-head, idle-tail)."
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
        3.0, "How far apart rows may have been captured, in frames (capture-gap)."
    ),
    "dropout_seconds": Threshold(
        1.0, "How long an action may be the very same in mid-episode, in seconds (teleop-dropout)."
    ),
    "near_share": Threshold(
        0.5,
        "Which share of an episode must be in another one (episode-near-duplicate, leak-near).",
    ),
    "alike_levels": Threshold(
        3.0, "How far pictures of copies may differ, in levels of 255 (pictures-alike)."
    ),
    "black_level": Threshold(20.0, "Up to which level of 255 a picture is black (picture-black)."),
    "black_seconds": Threshold(0.5, "How long pictures may be black, in seconds (picture-black)."),
    "same_levels": Threshold(
        6.0,
        "How far any pixel of a picture may be from the one before, in levels of 255, for the two "
        "to be the same (picture-frozen, picture-repeated).",
    ),
    "frozen_seconds": Threshold(
        1.0, "How long a picture may stay the same while the robot moves (picture-frozen)."
    ),
    "repeated_share": Threshold(
        0.4, "Which share of moving frames may repeat the one before (picture-repeated)."
    ),
    "camera_jump_times": Threshold(
        6.0, "How many times the usual change a picture must change at once (picture-jump)."
    ),
    "camera_jump_levels": Threshold(
        20.0, "By how many levels of 255, on average, it must change (picture-jump)."
    ),
}
"""By name. Families add theirs here."""


def chosen(given: Mapping[str, float] | None) -> dict[str, float]:
    """Return every threshold: the default, or what the user says.

    Raises:
        ArgumentError: There is no such threshold, or a value is not a number from 0 up.
    """
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

"""Codes of movements, and of episodes that occur twice."""

from __future__ import annotations

from demoreel.check.codes import DELETE, error, hint, warning

_TRIM = "demoreel cut trim {dataset} {dataset}-trimmed --idle"

MOTION = (
    hint(
        "action-jump",
        "An action changes much more in one frame than is usual in this dataset",
        "A policy that predicts action chunks learns the jump.",
    ),
    hint(
        "state-lag",
        "The state follows the action late, or is ahead of it",
        "A policy learns to act on observations of another time.",
    ),
    hint(
        "state-offset",
        "A joint's state differs from its action by a constant offset",
        "Often a lost calibration: a policy reproduces the offset on the robot.",
    ),
    hint(
        "idle-head",
        "Nothing moves for some time at the beginning of an episode",
        "A policy learns to wait, and may never begin.",
        _TRIM,
    ),
    hint(
        "idle-tail",
        "Nothing moves for some time at the end of an episode",
        "Samples are spent on a robot at rest.",
        _TRIM,
    ),
    hint(
        "episode-idle",
        "Nothing moves in a whole episode",
        "A policy learns to do nothing when it sees this scene.",
        DELETE,
    ),
    hint(
        "episode-short",
        "An episode is much shorter than the others",
        "Often an aborted recording: it ends before the task is done.",
        DELETE,
    ),
    hint(
        "episode-long",
        "An episode is much longer than the others",
        "Often a recorder that was not stopped: most of it is not the task.",
    ),
    hint(
        "capture-gap",
        "Rows were captured several frame times after the row before, or out of order",
        "Movements are faster in the data than they were: timestamps are nominal.",
    ),
    hint(
        "teleop-dropout",
        "The action does not change while the robot moves on, or jumps afterwards",
        "The teleoperation signal was lost: states are paired with stale actions.",
    ),
)
"""Codes of movements; all hints."""

DUPLICATE = (
    warning(
        "episode-duplicate",
        "An episode has exactly the rows of another",
        "It counts twice in training; a split by episodes may put it into training and validation.",
        DELETE,
    ),
    hint(
        "episode-near-duplicate",
        "Much of an episode is also in another one",
        "Its movements count more in training; a split by episodes may leak them into validation.",
        DELETE,
    ),
    warning(
        "pictures-duplicate",
        "Two episodes with different rows have exactly the same video",
        "The rows of one of them get the frames of the other.",
    ),
    hint(
        "pictures-alike",
        "Two episodes with different rows look the same throughout",
        "One may be a copy that was encoded again, or have the other's frames.",
    ),
    error(
        "leak-episode",
        "The same episode is in two datasets",
        "Validation uses training data.",
        DELETE,
    ),
    hint(
        "leak-near",
        "Much of an episode is in an episode of another dataset",
        "Validation uses, in part, training data.",
        DELETE,
    ),
    warning(
        "leak-unknown",
        "Two datasets share no column that can be compared",
        "Shared episodes cannot be found.",
    ),
)
"""Codes of episodes that occur twice, in one dataset or in two."""

"""Codes of what the movements themselves show; all hints."""

from __future__ import annotations

from demoreel.check.codes import DELETE, Code

_TRIM = "demoreel cut trim {dataset} {dataset}-trimmed --idle"


def _hint(name: str, title: str, effect: str, mend: str | None = None) -> Code:
    return Code(name, "motion", "hint", title, effect, mend)


CODES: tuple[Code, ...] = (
    _hint(
        "action-jump",
        "An action leaps much further than actions of this dataset do",
        "A policy that predicts several actions at once learns to tear the arm along.",
    ),
    _hint(
        "state-lag",
        "The state follows the action late, or runs ahead of it",
        "A policy learns to act on what it will see later, or on what is long gone.",
    ),
    _hint(
        "state-offset",
        "A joint's state stays off its action by the same amount",
        "Often a calibration that was lost: a policy carries the offset to the robot.",
    ),
    _hint(
        "idle-head",
        "Nothing moves for a while at the beginning of an episode",
        "A policy learns to wait, and may never begin.",
        _TRIM,
    ),
    _hint(
        "idle-tail",
        "Nothing moves for a while at the end of an episode",
        "Samples are spent on standing still.",
        _TRIM,
    ),
    _hint(
        "episode-idle",
        "Nothing moves in a whole episode",
        "A policy learns to do nothing when it sees this scene.",
        DELETE,
    ),
    _hint(
        "episode-short",
        "An episode is much shorter than the others",
        "Often a take that was broken off: it ends before the task is done.",
        DELETE,
    ),
    _hint(
        "episode-long",
        "An episode is much longer than the others",
        "Often a recorder that was not stopped: most of it is not the task.",
    ),
    _hint(
        "capture-gap",
        "Rows that follow one another were captured far apart, or out of order",
        "Movements are faster in the data than they were: timestamps are nominal.",
    ),
    _hint(
        "teleop-dropout",
        "The action stands still while the robot moves on, or leaps afterwards",
        "The teleoperator's signal was lost: states are paired with actions nobody gave.",
    ),
)

"""Codes of what only shows when every picture is decoded."""

from __future__ import annotations

from demoreel.check.codes import REPAIR, Code, Severity


def _code(name: str, severity: Severity, title: str, effect: str, mend: str | None = None) -> Code:
    return Code(name, "video", severity, title, effect, mend)


CODES: tuple[Code, ...] = (
    _code(
        "picture-undecodable",
        "error",
        "Pictures do not decode",
        "Training stops when one of them is drawn, maybe hours after the start.",
        REPAIR,
    ),
    _code(
        "video-decodes-short",
        "error",
        "A video's packets decode to fewer pictures than there are packets",
        "Training stops when a missing one is drawn; other tools show a neighbour's picture.",
        REPAIR,
    ),
    _code(
        "picture-size",
        "error",
        "A picture has another size than the camera's others",
        "Batches cannot be stacked: training stops when it is drawn.",
    ),
    _code(
        "picture-kind",
        "error",
        "A camera is declared as depth, and its pictures are none",
        "Reading them is an error: training stops at the first one.",
    ),
    _code(
        "picture-black",
        "warning",
        "Pictures are black for a while",
        "A policy is taught to act without seeing: a camera was covered, or off.",
    ),
    _code(
        "picture-frozen",
        "hint",
        "A camera shows the same picture for a while, although the robot moves",
        "Pictures are of another moment than the rows: a camera hung, or sees nothing of it.",
    ),
    _code(
        "picture-repeated",
        "hint",
        "Many pictures are the same as the one before, although the robot moves",
        "The camera is slower than the dataset: pictures are up to a frame older than rows.",
    ),
    _code(
        "picture-jump",
        "hint",
        "The whole picture changes at once",
        "A camera was moved, or frames are missing: what is learnt of the scene does not hold.",
    ),
)

"""What a kind of finding is; ``catalogue/`` has all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from demoreel.errors import DemoreelError
from demoreel.model.limits import exceeds_limit

Severity = Literal["error", "warning", "hint"]

SEVERITIES: tuple[Severity, ...] = ("hint", "warning", "error")
"""From the mildest to the worst."""

REPAIR = "demoreel repair {dataset} {dataset}-repaired"
"""The command that repairs most of what can be repaired."""

DELETE = "demoreel cut delete {dataset} {dataset}-without --episodes {episode}"
"""The command for an episode that is better left out."""


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of finding.

    Attributes:
        severity: ``error``: training stops, or learns from wrong data. ``warning``: some tools
            stop, or something is lost. ``hint``: worth a look, may well be as it should be.
        name: The code itself, e.g. ``video-short``.
        title: What is wrong, in a few words.
        effect: What it does to training.
        mend: The command that repairs it, with ``{dataset}`` and ``{episode}`` to be filled in;
            None where no command can.
    """

    severity: Severity
    name: str
    title: str
    effect: str
    mend: str | None = None


error, warning, hint = partial(Code, "error"), partial(Code, "warning"), partial(Code, "hint")
"""Make a code of this severity."""


def code_for(error: BaseException, otherwise: str) -> str:
    """Return the code of an error: ``limit-exceeded`` where it is about a limit, else its own."""
    if exceeds_limit(error):
        return "limit-exceeded"
    return (error.code if isinstance(error, DemoreelError) else None) or otherwise


def rank(severity: Severity) -> int:
    """Return 0 for a hint, 1 for a warning, 2 for an error."""
    return SEVERITIES.index(severity)

"""What a kind of finding is; ``catalogue/`` has all of them."""

from __future__ import annotations

import re
import shlex
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

FETCH = "demoreel pull OWNER/NAME {dataset}-fetched"
"""The command for what was not downloaded, where nothing says whence."""

DELETE = "demoreel cut delete {dataset} {dataset}-without --episodes {episode}"
"""The command for an episode that is better left out."""


_ENDING = re.compile(r"\{dataset\}(-[a-z]+)")


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of finding.

    Attributes:
        severity: ``error``: training stops, or learns from wrong data. ``warning``: some tools
            stop, or something is lost. ``hint``: worth a look, may well be as it should be.
        name: The code itself, e.g. ``video-short``.
        title: What is wrong, in a few words.
        effect: What it does to training.
        command: The command that repairs it, with ``{dataset}`` and ``{episode}`` to be filled in;
            None where no command can.
        is_cosmetic: Whether training is as good with it as without. Such findings come last.
    """

    severity: Severity
    name: str
    title: str
    effect: str
    command: str | None = None
    is_cosmetic: bool = False

    @property
    def urgency(self) -> int:
        """Where it comes in a report: errors, what training suffers from, the rest."""
        return 0 if self.severity == "error" else 2 if self.is_cosmetic else 1


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


def filled(command: str, dataset: str, episode: int | str | None) -> str:
    """Return a code's command for a dataset and an episode, to be pasted.

    The result of a command on ``x-repaired`` is ``x-repaired-2``, and not ``x-repaired-repaired``.
    """
    plain = dataset.rstrip("/") or dataset
    for ending in _ENDING.findall(command):
        match = re.fullmatch(rf"(.*{re.escape(ending)})(?:-(\d{{1,4}}))?", plain, re.DOTALL)
        new = f"{match[1]}-{int(match[2] or 1) + 1}" if match else f"{plain}{ending}"
        command = command.replace(f"{{dataset}}{ending}", shlex.quote(new))
    # A folder may be called anything.
    return command.replace("{dataset}", shlex.quote(plain)).replace("{episode}", str(episode))

"""Every kind of finding there is, by its code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Severity = Literal["error", "warning", "hint"]
Family = Literal["metadata", "table", "video", "motion", "lance", "duplicate", "check"]

SEVERITIES: tuple[Severity, ...] = ("hint", "warning", "error")
"""From the mildest to the worst."""

REPAIR = "demoreel repair {dataset} {dataset}-mended"
"""The command that mends most of what can be mended."""

DELETE = "demoreel cut delete {dataset} {dataset}-without --episodes {episode}"
"""The command for an episode that is better left out."""


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of finding.

    Attributes:
        name: The code itself, e.g. ``video-short``.
        family: Which checks find it.
        severity: ``error``: training stops, or learns from wrong data. ``warning``: some tools
            stop, or something is lost. ``hint``: worth a look, may well be as it should be.
        title: What is wrong, in a few words.
        effect: What it does to training.
        mend: The command that mends it, with ``{dataset}`` and ``{episode}`` to be filled in; None
            where no command can.
    """

    name: str
    family: Family
    severity: Severity
    title: str
    effect: str
    mend: str | None = None


class Makes(Protocol):
    """Makes a code of one family and severity."""

    def __call__(self, name: str, title: str, effect: str, mend: str | None = None) -> Code:
        """Return the code; see ``Code``."""
        ...


def makers(family: Family) -> tuple[Makes, Makes, Makes]:
    """Return what makes a family's errors, warnings and hints."""

    def of(severity: Severity) -> Makes:
        def make(name: str, title: str, effect: str, mend: str | None = None) -> Code:
            return Code(name, family, severity, title, effect, mend)

        return make

    return of("error"), of("warning"), of("hint")


def rank(severity: Severity) -> int:
    """Return 0 for a hint, 1 for a warning, 2 for an error."""
    return SEVERITIES.index(severity)


def _collected() -> Mapping[str, Code]:
    from demoreel.check.catalogue import EVERY

    codes = {code.name: code for code in EVERY}
    assert len(codes) == len(EVERY), "two codes share a name"
    return codes


class _Codes(Mapping[str, Code]):
    """The codes by name; collected when first asked for, as the catalogues import this module."""

    _codes: Mapping[str, Code] | None = None

    def _all(self) -> Mapping[str, Code]:
        if self._codes is None:
            self._codes = _collected()
        return self._codes

    def __getitem__(self, name: str) -> Code:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


CODES: Mapping[str, Code] = _Codes()

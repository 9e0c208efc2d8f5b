"""What a check found: one thing that is wrong, where, and what it means."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, fields
from typing import Any

from demoreel.check.codes import CODES, Code, Severity

_KEPT_OF_A_CODE = 200


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a finding; what does not apply is None.

    Attributes:
        dataset: The dataset's folder.
        episode: An ``episode_index``.
        camera: A camera's key.
        feature: A feature's key.
        file: A path below the dataset's folder.
        frame: A frame of the episode, or of the video.
    """

    dataset: str
    episode: int | None = None
    camera: str | None = None
    feature: str | None = None
    file: str | None = None
    frame: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that apply."""
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in pairs if value is not None}

    def __str__(self) -> str:
        said = self.to_json()
        del said["dataset"]
        return ", ".join(f"{name} {value}" for name, value in said.items())


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        code: Which kind of thing; its section in docs/checks.md explains it.
        what: What was found, one sentence, with the numbers.
        where: Where.
        severity: How bad it is.
        effect: What it does to training.
        mend: The command that mends it; None where no command can.
        count: How many places it stands for, where a check names only the first of many.
    """

    code: str
    what: str
    where: Where
    severity: Severity
    effect: str
    mend: str | None = None
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return {
            "code": self.code,
            "severity": self.severity,
            "what": self.what,
            "where": self.where.to_json(),
            "effect": self.effect,
            "mend": self.mend,
            "count": self.count,
        }


class Findings:
    """Collects the findings of one dataset; any thread may add.

    A defect may be everywhere. Of each code the first 200 findings are kept, the rest are counted.

    Args:
        dataset: The dataset's folder.
    """

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self.kept: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, code: str, what: str, *, count: int = 1, **where: Any) -> None:
        """Note a finding.

        Args:
            code: A name in ``CODES``.
            what: What was found, one sentence.
            count: How many places it stands for.
            **where: Fields of ``Where``; numpy's integers will do.

        Raises:
            KeyError: There is no such code.
        """
        kind = CODES[code]
        with self._lock:
            self.counts[code] += count
            if self._kept[code] >= _KEPT_OF_A_CODE:
                return
            self._kept[code] += 1
            said = {name: _plain(value) for name, value in where.items()}
            place = Where(**{"dataset": self.dataset, **said})
            self.kept.append(
                Finding(code, what, place, kind.severity, kind.effect, _filled(kind, place), count)
            )


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _filled(code: Code, where: Where) -> str | None:
    """Return the command that mends it, for this place; None where it needs a place we lack."""
    if code.mend is None or ("{episode}" in code.mend and where.episode is None):
        return None
    dataset = where.dataset.rstrip("/") or where.dataset
    return code.mend.replace("{dataset}", dataset).replace("{episode}", str(where.episode))

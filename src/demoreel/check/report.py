"""What a check found: one thing that is wrong, where, and what it means."""

from __future__ import annotations

import shlex
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from demoreel.check.catalogue import CODES
from demoreel.check.codes import SEVERITIES, Code, Severity, rank

_KEPT_OF_A_CODE = 200

FailOn = Literal["error", "warning", "hint"]

_PLACES_SHOWN = 3


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
        mend: The command that repairs it; None where no command can.
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

    def keep(self, told_by: Callable[[Finding], object], wanted: Collection[object]) -> None:
        """Drop all other findings; those that were only counted go as well."""
        self.kept = [finding for finding in self.kept if told_by(finding) in wanted]
        self.counts = Counter()
        for finding in self.kept:
            self.counts[finding.code] += finding.count


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _filled(code: Code, where: Where) -> str | None:
    """Return the command that repairs it, for this place; None where it needs a place we lack."""
    if code.mend is None or ("{episode}" in code.mend and where.episode is None):
        return None
    # A folder may be called anything, and the command is there to be pasted.
    dataset = shlex.quote(where.dataset.rstrip("/") or where.dataset)
    return code.mend.replace("{dataset}", dataset).replace("{episode}", str(where.episode))


@dataclass(frozen=True, slots=True)
class Group:
    """All findings of one code.

    Attributes:
        code: The code.
        count: How many places there are.
        findings: The first of them.
    """

    code: Code
    count: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Report:
    """What was found, and in what.

    Attributes:
        datasets: The folders that were looked at, or their URIs.
        findings: What was found, the worst first; of each code at most the first 200.
        counts: Places by code, all of them.
        looked_at: How much was looked at: episodes, frames, rows, videos, bytes, seconds; by
            dataset.
        thresholds: The numbers that were decided by.
        deep: Whether frames were decoded.
    """

    datasets: tuple[str, ...]
    findings: tuple[Finding, ...]
    counts: Mapping[str, int]
    looked_at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    deep: bool = False

    @property
    def worst(self) -> Severity | None:
        """The worst severity of any finding; None where there is none."""
        return max((CODES[name].severity for name in self.counts), key=rank, default=None)

    @property
    def is_sound(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return self.worst in (None, "hint")

    def of(self, code: str) -> tuple[Finding, ...]:
        """Return the findings of one code."""
        return tuple(finding for finding in self.findings if finding.code == code)

    def by_severity(self) -> dict[Severity, int]:
        """Return how many places there are of each severity, the worst first."""
        found: dict[Severity, int] = dict.fromkeys(reversed(SEVERITIES), 0)
        for name, count in self.counts.items():
            found[CODES[name].severity] += count
        return found

    def groups(self) -> list[Group]:
        """Return the findings by code, the worst first, then in the order of the catalogue."""
        order = {name: place for place, name in enumerate(CODES)}
        names = sorted(self.counts, key=lambda n: (-rank(CODES[n].severity), order[n]))
        return [Group(CODES[name], self.counts[name], self.of(name)) for name in names]

    def called(self, names: Mapping[str, str]) -> Report:
        """Return the same report with other names for the datasets: URIs, of copies.

        Args:
            names: New names of folders.
        """

        def renamed(text: str) -> str:
            for folder, name in names.items():
                # In commands, a folder's name is quoted where it must be; a URI needs no quotes.
                text = text.replace(shlex.quote(folder), shlex.quote(name)).replace(folder, name)
            return text

        findings = (
            replace(
                finding,
                what=renamed(finding.what),
                where=replace(finding.where, dataset=renamed(finding.where.dataset)),
                mend=None if finding.mend is None else renamed(finding.mend),
            )
            for finding in self.findings
        )
        return replace(
            self,
            datasets=tuple(map(renamed, self.datasets)),
            findings=tuple(findings),
            looked_at={renamed(name): facts for name, facts in self.looked_at.items()},
        )

    def exit_code(self, fail_on: FailOn = "warning") -> int:
        """Return what a command should end with: 0 sound, 1 warnings, 2 errors.

        Args:
            fail_on: The mildest severity that counts. With ``hint``, hints end with 1, too.
        """
        worst = self.worst
        if worst is None or rank(worst) < rank(fail_on):
            return 0
        return 2 if worst == "error" else 1

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "datasets": list(self.datasets),
            "worst": self.worst,
            "by_severity": self.by_severity(),
            "counts": {group.code.name: group.count for group in self.groups()},
            "findings": [finding.to_json() for finding in self.findings],
            "looked_at": {name: dict(facts) for name, facts in self.looked_at.items()},
            "thresholds": dict(self.thresholds),
            "deep": self.deep,
        }

    def lines(self) -> Iterator[str]:
        """Yield the report as text: a block a code, with the first places."""
        for group in self.groups():
            yield from _block(group, several=len(self.datasets) > 1)
            yield ""
        yield self.summary()

    def summary(self) -> str:
        """Return one line: how many of what."""
        parts = [
            f"{count:,} {severity}{'' if count == 1 else 's'}"
            for severity, count in self.by_severity().items()
            if count
        ]
        return ", ".join(parts) if parts else "nothing found"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _block(group: Group, *, several: bool) -> Iterator[str]:
    times = f" ({group.count:,} places)" if group.count > 1 else ""
    yield f"{group.code.severity:<8} {group.code.name}: {group.code.title}{times}"
    shown = group.findings[:_PLACES_SHOWN]
    for finding in shown:
        place = str(finding.where)
        place = f"{finding.where.dataset}: {place}" if several else place
        yield f"         - {finding.what}" + (f" [{place}]" if place else "")
    left = group.count - sum(finding.count for finding in shown)
    if left > 0:
        yield f"         - and {left:,} more"
    yield f"         effect: {group.code.effect}"
    mends = dict.fromkeys(finding.mend for finding in shown if finding.mend)
    for mend in mends:
        yield f"         repair: {mend}"

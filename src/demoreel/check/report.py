"""What a check found: one thing that is wrong, where, and what it means."""

from __future__ import annotations

import shlex
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from demoreel.check.catalogue import CODES
from demoreel.check.codes import SEVERITIES, Code, Severity, filled, rank
from demoreel.errors import count

_KEPT_OF_A_CODE = 200

FailOn = Literal["error", "warning", "hint"]

_RANGES_SHOWN = 6


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
        command: The command that repairs it; None where no command can.
        count: How many places it stands for, where a check names only the first of many.
    """

    code: str
    what: str
    where: Where
    severity: Severity
    effect: str
    command: str | None = None
    count: int = 1

    @property
    def mend(self) -> str | None:
        """The name of ``command`` until release 0.1; goes with the next one."""
        return self.command

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return {
            "code": self.code,
            "severity": self.severity,
            "what": self.what,
            "where": self.where.to_json(),
            "effect": self.effect,
            "command": self.command,
            "mend": self.command,  # its name until 0.1; goes with the next release
            "count": self.count,
        }


class Findings:
    """Collects the findings of one dataset; any thread may add.

    A defect may be everywhere. Of each code the first 200 findings are kept, the rest are counted.
    """

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self.kept: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(
        self, code: str, what: str, *, count: int = 1, command: str | None = None, **where: Any
    ) -> None:
        """Note a finding.

        Args:
            code: A name in ``CODES``.
            what: What was found, one sentence.
            count: How many places it stands for: episodes, files or features, not frames.
            command: A command that repairs it better than the code's own.
            **where: Fields of ``Where``; numpy's integers will do.
        """
        kind = CODES[code]
        with self._lock:
            self.counts[code] += count
            if self._kept[code] >= _KEPT_OF_A_CODE:
                return
            self._kept[code] += 1
            said = {name: _plain(value) for name, value in where.items()}
            place = Where(**{"dataset": self.dataset, **said})
            filled_in = _filled(command or kind.command, place.dataset, place.episode)
            found = Finding(code, what, place, kind.severity, kind.effect, filled_in, count)
            self.kept.append(found)

    def drop(self, findings: Collection[Finding]) -> None:
        """Drop some of the findings that were kept."""
        for finding in findings:
            self.kept.remove(finding)
            self.counts[finding.code] -= finding.count
        self.counts = +self.counts

    def keep(self, told_by: Callable[[Finding], object], wanted: Collection[object]) -> None:
        """Drop all other findings; those that were only counted go as well."""
        self.kept = [finding for finding in self.kept if told_by(finding) in wanted]
        self.counts = Counter()
        for finding in self.kept:
            self.counts[finding.code] += finding.count


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _filled(command: str | None, folder: str, episode: int | str | None) -> str | None:
    """Return the command that repairs it, for this place; None where it needs a place we lack."""
    if command is None or ("{episode}" in command and episode is None):
        return None
    return filled(command, folder, episode)


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
        """Return the findings of one code.

        Args:
            code: The code, such as ``video-short``.
        """
        return tuple(finding for finding in self.findings if finding.code == code)

    def by_severity(self) -> dict[Severity, int]:
        """Return how many places there are of each severity, the worst first."""
        found: dict[Severity, int] = dict.fromkeys(reversed(SEVERITIES), 0)
        for name, number in self.counts.items():
            found[CODES[name].severity] += number
        return found

    def groups(self) -> list[Group]:
        """Return the findings by code: errors, what training suffers from, what is cosmetic."""
        names = sorted(self.counts, key=place_of)
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
                command=None if finding.command is None else renamed(finding.command),
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
        """Yield the report as text: each code once, what matters most first; then what to do."""
        groups = self.groups()
        known = {facts.get("episodes") for facts in self.looked_at.values()}
        episodes = known.pop() if len(self.datasets) == len(known) == 1 else None
        for group in groups:
            yield from _block(group, episodes, several=len(self.datasets) > 1)
        if groups:
            yield ""
        yield self.summary()
        for command, names in self.commands().items():
            yield f"next: {command}  ({', '.join(names)})"

    def commands(self) -> dict[str, list[str]]:
        """Return the commands that repair what was found, each with the codes that it is for."""
        found: dict[str, list[str]] = {}
        for group in self.groups():
            for command in _commands(group):
                found.setdefault(command, []).append(group.code.name)
        return found

    def summary(self) -> str:
        """Return one line: how many kinds of findings there are of each severity."""
        kinds = Counter(CODES[name].severity for name in self.counts)
        parts = [count(kinds[severity], severity) for severity in reversed(SEVERITIES)]
        return ", ".join(part for part in parts if part[0] != "0") or "nothing found"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def place_of(name: str) -> tuple[int, ...]:
    """Return what codes are sorted by in a report."""
    code = CODES[name]
    return code.urgency, -rank(code.severity), _CATALOGUED[name]


_CATALOGUED = {name: place for place, name in enumerate(CODES)}


def _block(group: Group, episodes: int | None, *, several: bool) -> Iterator[str]:
    """Yield what a code's findings are, where, an example, and what training has of it."""
    code, first = group.code, group.findings[0]
    extent = extent_of(group, episodes)
    yield f"{code.severity:<8} {code.name}: {code.title}" + (f" ({extent})" if extent else "")
    said = {n: v for n, v in first.where.to_json().items() if str(v) not in first.what}
    said.pop("dataset", None)
    place = ", ".join(f"{name} {value}" for name, value in said.items())
    place = f"{first.where.dataset}: {place}" if several else place
    example = "e.g. " if len(group.findings) > 1 else ""
    yield f"         {example}{first.what}" + (f" [{place}]" if place else "")
    if not code.is_cosmetic:
        yield f"         {code.effect}"


def extent_of(group: Group, episodes: int | None = None) -> str:
    """Return in a few words how much is affected: ``44 of 91 episodes: 2, 5-47``.

    Args:
        group: The findings of a code.
        episodes: How many episodes there are, if that is known.
    """
    places = [finding.where for finding in group.findings]
    numbers = sorted({place.episode for place in places if place.episode is not None})
    if not numbers or any(place.episode is None for place in places):
        if len(places) == 1:
            return ""  # what was found says how many
        for thing, names in (
            ("feature", {place.feature for place in places}),
            ("camera", {place.camera for place in places}),
            ("file", {place.file for place in places}),
        ):
            if len(names) == group.count and None not in names:
                return count(group.count, thing)
        return count(group.count, "place")
    are_all_named = group.count == len(places)  # then none stands for others
    affected = len(numbers) if are_all_named else group.count
    if affected == 1:
        text = f"episode {numbers[0]}"
    else:
        of = f" of {episodes:,}" if episodes and affected <= episodes else ""
        text = f"{affected:,}{of} episodes: {ranges(numbers, is_whole=are_all_named)}"
    cameras = sorted({place.camera for place in places if place.camera is not None})
    return text + (f"; {count(len(cameras), 'camera')}" if len(cameras) > 1 else "")


def ranges(numbers: Sequence[int], *, is_whole: bool = True) -> str:
    """Return ``0-3, 7, 9-12``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [f"{a}-{b}" if b > a else str(a) for a, b in found[:_RANGES_SHOWN]]
    return ", ".join(shown) + (", ..." if not is_whole or len(found) > _RANGES_SHOWN else "")


def _commands(group: Group) -> list[str]:
    """Return what repairs a code's findings; what names one episode is put together for all."""
    found = dict.fromkeys(each.command for each in group.findings if each.command)
    command = group.code.command
    if command is None or "{episode}" not in command or len(found) < 2:
        return list(found)
    by_dataset: dict[str, list[int]] = {}
    for finding in group.findings:
        if finding.where.episode is not None:
            by_dataset.setdefault(finding.where.dataset, []).append(finding.where.episode)
    listed = {name: ",".join(map(str, sorted({*each}))) for name, each in by_dataset.items()}
    return [each for name in listed if (each := _filled(command, name, listed[name]))]

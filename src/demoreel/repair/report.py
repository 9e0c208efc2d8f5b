"""What a repair changed, what it lost, and what is still wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from demoreel.check.catalogue import CODES
from demoreel.check.codes import REPAIR
from demoreel.check.look import Look
from demoreel.check.report import Report, ranges
from demoreel.layouts.meta import read_raw_info
from demoreel.model import DEFAULT_FEATURES
from demoreel.model.feature import quoted
from demoreel.repair.values import form_of

OF_INFO = "info.json: "
"""How the place of a change begins that is a feature's declaration."""

_SHOWN = 3
_SINGULAR = {
    "{n} rows": "{n} row",
    "{n} texts": "{n} text",
    "{n} frames": "{n} frame",
    " have ": " has ",
    " were ": " was ",
    " are ": " is ",
}
_SAID_ELSEWHERE = ("features", "fps")
_REMOVED_TOO = ("stats-", "files-of-macos")  # by a repair; another command does no more than that
_OF_DATA = (
    *("column-", "index-", "frame-", "picture-", "rows-", "table-"),
    *("timestamp-", "value-", "video-"),
)


@dataclass
class _Kind:
    places: dict[str, None] = field(default_factory=dict)
    amount: int = 0


class Changes:
    """Changes by kind, in the order in which the kinds first occurred."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def add(self, what: str, place: str | int = "", *, amount: int = 0) -> None:
        """Note a change.

        Args:
            what: Its kind in words; ``{n}`` stands for the amount, summed over all places.
            place: Where: a file, a feature, the number of an episode; empty where the words say it.
            amount: How much of it was changed there.
        """
        kind = self._kinds.setdefault(what, _Kind())
        kind.amount += amount
        if place != "":
            kind.places[f"episode {place}" if isinstance(place, int) else place] = None

    def extend(self, others: Changes) -> None:
        """Add all changes that others have noted."""
        for what, kind in others._kinds.items():
            own = self._kinds.setdefault(what, _Kind())
            own.amount += kind.amount
            own.places |= kind.places

    def sentences(self) -> tuple[str, ...]:
        """Return one sentence for each kind, with its places: of many files, the first ones."""
        return tuple(_sentence(what, kind) for what, kind in self._kinds.items())


def _sentence(what: str, kind: _Kind) -> str:
    if kind.amount == 1 and "{n}" in what:
        for many, one in _SINGULAR.items():
            what = what.replace(many, one)
    said = what.replace("{n}", str(kind.amount))
    places = list(kind.places)
    if not places:
        return said
    if all(place.startswith("episode ") for place in places):
        return f"{episodes_in_words([int(place.split()[1]) for place in places])}: {said}"
    if len(places) > 1 and all(place.endswith((".parquet", ".mp4")) for place in places):
        return f"{said}, in {len(places)} files ({examples(places)})"
    of_info = [place.removeprefix(OF_INFO) for place in places]
    if all(place.startswith(OF_INFO) for place in places):
        return f"{OF_INFO}{', '.join(of_info)}: {said}"
    return f"{', '.join(places)}: {said}"


def examples(names: Sequence[str]) -> str:
    """Return the first of some names, and a mark that there are more."""
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def episodes_in_words(episodes: Sequence[int]) -> str:
    """Return which episodes, those that follow one another as a range."""
    return f"{'episode' if len(episodes) == 1 else 'episodes'} {ranges(sorted(episodes))}"


@dataclass(frozen=True, slots=True)
class Lost:
    """An episode that cannot be kept.

    Attributes:
        episode: Its ``episode_index``.
        why: Why not, in words.
    """

    episode: int
    why: str


def reasons(lost: Sequence[Lost]) -> list[str]:
    """Return a sentence for each reason why episodes are lost, with its episodes."""
    by_reason: dict[str, list[int]] = {}
    for one in lost:
        by_reason.setdefault(one.why, []).append(one.episode)
    return [f"{episodes_in_words(own)} ({why})" for why, own in by_reason.items()]


@dataclass(frozen=True)
class Repaired:
    """What became of a dataset.

    Attributes:
        source: The dataset that was repaired: its folder, or its URI.
        target: The repaired one; None after a dry run.
        episodes: How many were kept.
        frames: How many rows they have.
        changes: What was wrong and is not any more, a sentence for each kind of change.
        lost: Episodes that could not be kept, and why.
        unreadable: Files, or parts of them, that could not be read.
        copied: Files that were copied as they were.
        before: What ``check`` said of the source.
        after: What it says of the result; None after a dry run.
        dropped: What the source holds or states, and the result does not, a sentence each.
        absent: Files that the metadata name and that are not there, where that costs an episode or
            a camera.
        cameras_lost: Cameras that were left out as asked, or, of a dry run, have no video.
        columns_lost: Columns of the tables that no feature can hold, or not of all episodes.
        frames_lost: Rows without images, images without rows, and rows behind missing ones, which
            episodes that were kept have lost: a sentence for each kind.
    """

    source: Path | str
    target: Path | str | None
    episodes: int
    frames: int
    changes: tuple[str, ...]
    lost: tuple[Lost, ...]
    unreadable: tuple[str, ...]
    copied: int
    before: Report
    after: Report | None
    dropped: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    cameras_lost: tuple[str, ...] = ()
    columns_lost: tuple[str, ...] = ()
    frames_lost: tuple[str, ...] = ()

    @property
    def mended(self) -> tuple[str, ...]:
        """The name of ``changes`` until release 0.1; goes with the next one."""
        return self.changes

    @property
    def is_whole(self) -> bool:
        """Whether all episodes, cameras, columns and frames of the source are in the result."""
        return not (
            self.lost
            or self.cameras_lost
            or self.columns_lost
            or self.frames_lost
            or self.unreadable
        )

    @property
    def is_clean(self) -> bool:
        """Whether ``check`` finds no error and no warning in the result."""
        return self.after is not None and self.after.worst not in ("error", "warning")

    def called(self, names: Mapping[str, str]) -> Repaired:
        """Return the same report with other names for folders.

        Args:
            names: The new names by the old ones, such as URIs by the paths of their copies.
        """
        return replace(
            self,
            source=names.get(str(self.source), self.source),
            target=None if self.target is None else names.get(str(self.target), self.target),
            before=self.before.called(names),
            after=None if self.after is None else self.after.called(names),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "source": str(self.source),
            "target": None if self.target is None else str(self.target),
            "episodes": self.episodes,
            "frames": self.frames,
            "changes": list(self.changes),
            "mended": list(self.changes),  # their name until 0.1; goes with the next release
            "lost": [{"episode": lost.episode, "why": lost.why} for lost in self.lost],
            "unreadable": list(self.unreadable),
            "copied_files": self.copied,
            "dropped": list(self.dropped),
            "absent": list(self.absent),
            "cameras_lost": list(self.cameras_lost),
            "columns_lost": list(self.columns_lost),
            "frames_lost": list(self.frames_lost),
            "clean": self.is_clean,
            "before": self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
        }


def note_differences(
    look: Look, target: Path, before: Report, after: Report, changes: Changes, *, is_less: bool
) -> None:
    """Note what ``info.json`` says otherwise, and the findings of ``check`` that are no more.

    Args:
        look: The source.
        target: The result.
        before: What ``check`` said of the source.
        after: What it says of the result.
        changes: Takes what differs.
        is_less: Whether episodes or cameras were left out: what was wrong with them is not fixed.
    """
    old, new = look.raw, read_raw_info(target / "meta" / "info.json") or {}
    if old is None:
        changes.add("info.json was written, from what the tables and videos hold")
    else:
        if look.layout == "lance-frames":  # its videos have become images
            old = {**old, "video_path": new.get("video_path")}
        _note_fields(old, new, changes)
        _note_defaults(old.get("features"), new["features"], changes)
    table = "meta/tasks.parquet"
    if table in look.files and form_of(look.root / table) != form_of(target / table):
        changes.add("tasks.parquet was written as lerobot writes it: the texts are its index")
    left = {finding.code for finding in after.findings}
    fixed = [
        group.code.name
        for group in before.groups()
        if group.code.name not in left
        and (CODES[group.code.name].command == REPAIR or group.code.name.startswith(_REMOVED_TOO))
        and not (is_less and group.code.name.startswith(_OF_DATA))
    ]
    if fixed:
        changes.add(f"demoreel check does not find any more: {', '.join(fixed)}")


def _note_fields(old: Mapping[str, Any], new: Mapping[str, Any], changes: Changes) -> None:
    added = []
    for name in {**old, **new}:
        if name in _SAID_ELSEWHERE or repr(old.get(name)) == repr(new.get(name)):  # NaN != NaN
            continue
        if old.get(name) == new.get(name):
            continue
        if name not in new:
            changes.add(f"info.json: {quoted(name)} was removed")
        elif old.get(name) is None:
            added.append(f"{name} is {quoted(new[name])}")
        else:
            changes.add(f"info.json: {name} is {quoted(new[name])}, not {quoted(old[name])}")
    if added:
        changes.add(f"info.json: what was missing was added: {', '.join(added)}")


def _note_defaults(old: object, new: Mapping[str, Any], changes: Changes) -> None:
    """Note the columns of the format's own that were declared otherwise."""
    for key in DEFAULT_FEATURES:
        said = old.get(key) if isinstance(old, Mapping) else None
        if not isinstance(said, Mapping):
            changes.add("declared in info.json now", key)
            continue
        for name in ("dtype", "shape"):
            if said.get(name) != new[key][name]:
                changes.add(f"its {name} is {new[key][name]}, not {quoted(said.get(name))}", key)

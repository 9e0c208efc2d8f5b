"""``check``: look at datasets, family by family, and report."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from demoreel.check.codes import code_for
from demoreel.check.deep import check_deep
from demoreel.check.duplicates import check_duplicates, check_leaks
from demoreel.check.fingerprints import FingerprintRows
from demoreel.check.lance import check_lance
from demoreel.check.look import Look
from demoreel.check.metadata import check_metadata
from demoreel.check.motion import Motion
from demoreel.check.recorded_stats import NOT_FINITE
from demoreel.check.report import Finding, Findings, Report, place_of
from demoreel.check.row_checks import RowValues
from demoreel.check.rows import RowCheck
from demoreel.check.tables import check_tables
from demoreel.check.thresholds import chosen
from demoreel.check.videos import check_videos
from demoreel.errors import (
    ArgumentError,
    DatasetBusyError,
    DatasetNotFoundError,
    MetadataError,
    UnfinishedError,
    first_line,
    refuse_shortage,
)
from demoreel.storage.commit.consistent import consistent_read
from demoreel.storage.commit.replace import wait_for_replacing
from demoreel.storage.external import AllowExternal
from demoreel.storage.external import allow_external as allow
from demoreel.storage.remote.fetch import local_copies, part_of
from demoreel.storage.store import is_uri

log = logging.getLogger(__name__)

_FETCHING = 0.5  # of the work, where a dataset has to be fetched
_LOOKS = 4  # at a dataset that changes meanwhile

FamilyName = Literal["metadata", "table", "video", "lance", "motion", "deep", "duplicate"]


@dataclass(frozen=True, slots=True)
class Family:
    """Checks that run together.

    Attributes:
        name: What they look at.
        run: The function of a ``Look``; of tables, also of the checks of rows.
        deep: Whether they decode frames, so that they run only if asked to.
        needs_episodes: Whether they make no sense where no episode is known.
    """

    name: FamilyName
    run: Callable[..., None]
    deep: bool = False
    needs_episodes: bool = False


FAMILIES: tuple[Family, ...] = (
    Family("metadata", check_metadata),
    Family("lance", check_lance),
    Family("table", check_tables),
    Family("video", check_videos),
    Family("deep", check_deep, deep=True, needs_episodes=True),
    Family("duplicate", check_duplicates, needs_episodes=True),
)
"""In the order in which they run. Motion looks at rows, with the tables: see ``ROW_CHECKS``."""

_EFFORTS: Mapping[FamilyName, float] = {"table": 0.5, "video": 0.5, "deep": 20.0}
"""How long families take, roughly, for the bar of progress; the others take next to nothing."""

ROW_CHECKS: Mapping[FamilyName, Callable[[Look], RowCheck]] = {
    "table": RowValues,
    "motion": Motion,
    "duplicate": FingerprintRows,
}
"""What makes the checks of rows of a family; they share one pass over the rows."""


def check(
    *paths: str | os.PathLike[str],
    deep: bool = False,
    leaks: bool = False,
    only: Collection[FamilyName] | None = None,
    thresholds: Mapping[str, float] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allow_external: AllowExternal | None = None,
    report: Callable[[float], None] | None = None,
) -> Report:
    """Look for everything that is wrong with datasets. Nothing is written.

    Cost: reads the metadata, every number in the tables once (2 million rows a second on two
    cores), and the videos' packet tables; frames are decoded only with ``deep``, on every core.
    Remote datasets are fetched first, into a folder beside the user's cache
    (``DEMOREEL_STAGING``) that is removed again.

    Args:
        *paths: The datasets' folders, or their URIs.
        deep: Also decode every frame of every camera.
        leaks: Also look for episodes that are in several of the datasets.
        only: Run only these families of checks: ``metadata``, ``table``, ``video``, ``lance``,
            ``motion``, ``deep``, ``duplicate``. None runs all of them; ``deep`` still needs
            ``deep=True``.
        thresholds: Values for thresholds, by name, e.g. ``{"idle_seconds": 5}``; names and defaults
            are in docs/checks.md and ``demoreel.check.thresholds.THRESHOLDS``.
        storage_options: Options of the object store, as for ``demoreel.open``.
        allow_external: Folders or URIs outside the dataset that its Lance tables may point into; as
            for ``demoreel.open``.
        report: Called with the share that is done, 0 to 1.

    Returns:
        The report. Broken data are findings, not errors.

    Raises:
        DatasetNotFoundError: There is nothing at a path.
        ArgumentError: There is no path, no such threshold or family, or only one dataset to look
            for leaks in.
        StoreError: A store does not answer.
    """
    values = chosen(thresholds)
    _refuse_nonsense(paths, leaks, only)
    for path in paths:
        allow(path, allow_external)
    fetching = part_of(report, 0.0, _FETCHING)
    with local_copies(paths, storage_options=storage_options, report=fetching) as copies:
        roots = [copies.get(str(path), Path(path)) for path in paths]
        rest = part_of(report, _FETCHING, 1.0) if copies else report
        found = _check(roots, values, deep=deep, leaks=leaks, only=only, report=rest)
        return found.called({str(copy): uri for uri, copy in copies.items()})


def _check(
    roots: list[Path],
    values: Mapping[str, float],
    *,
    deep: bool,
    leaks: bool,
    only: Collection[FamilyName] | None,
    report: Callable[[float], None] | None,
) -> Report:
    looks, collected = [], []
    facts = {}
    for number, root in enumerate(roots):
        of = len(roots)
        progress = _Forward(part_of(report, number / of, (number + 1) / of))
        begin = time.perf_counter()
        look = _looked_at(root, values, deep, only, progress)
        look.facts["seconds"] = round(time.perf_counter() - begin, 3)
        looks.append(look)
        collected.append(look.findings)
        facts[str(root)] = look.facts
    if leaks:
        shared = Findings(str(roots[0]))
        _guarded(shared, "leaks", lambda: check_leaks(looks, shared))
        collected.append(shared)
    return _report(roots, collected, facts, values, deep)


class _Forward:
    """Hands shares on, and none that is less than one before: a second look begins at nothing."""

    def __init__(self, report: Callable[[float], None] | None) -> None:
        self._report = report
        self._most = -1.0

    def __call__(self, share: float) -> None:
        if self._report is not None and share >= self._most:
            self._most = share
            self._report(share)


def _looked_at(
    root: Path,
    values: Mapping[str, float],
    deep: bool,
    only: Collection[FamilyName] | None,
    progress: Callable[[float], None],
) -> Look:
    """Look at a dataset that others may be writing; what changes meanwhile is no finding.

    The metadata are of one state. Where findings came while the dataset changed, it is looked at
    again. If it never stands still, those count that were the same at every look.
    """
    same: set[tuple[object, ...]] | None = None
    for left in reversed(range(_LOOKS)):
        look = _load(root, values, only)
        look.progress = progress
        _run_families(look, deep, only)
        if look.is_current or not look.findings.kept:
            break
        found = {_told_by(each) for each in look.findings.kept}
        same = found if same is None else same & found
        if not left:
            look.findings.keep(_told_by, same)
            look.facts["changing"] = True
    return look


def _told_by(finding: Finding) -> tuple[object, ...]:
    """Return what tells a finding at two looks.

    Merging moves episodes from file to file; that a file is gone is told by its name.
    """
    where = finding.where
    if where.episode is not None and where.file and Path(where.dataset, where.file).exists():
        where = replace(where, file=None)
    return finding.code, finding.what, where


def _load(root: Path, values: Mapping[str, float], only: Collection[FamilyName] | None) -> Look:
    def read() -> Look:
        look = Look(root, values)
        look.load(everything=only is None or "metadata" in only)
        return look

    try:
        return consistent_read(root, read)
    except (UnfinishedError, DatasetBusyError, MetadataError):
        return read()  # as it lies there: half a commit has findings of its own
    except OSError as error:
        refuse_shortage(error)
        raise


def _refuse_nonsense(
    paths: Sequence[str | os.PathLike[str]], leaks: bool, only: Collection[FamilyName] | None
) -> None:
    if not paths:
        raise ArgumentError("There is no dataset to check.", hint="give at least one folder")
    unknown = sorted(set(only or ()) - set(get_args(FamilyName)))
    if unknown:
        known = ", ".join(get_args(FamilyName))
        raise ArgumentError(f"There is no family {unknown[0]!r}.", hint=f"there are: {known}")
    if leaks and len(paths) < 2:
        raise ArgumentError(
            "Leaks are looked for between datasets, and there is one.", hint="give both folders"
        )
    for root in (Path(path) for path in paths if not is_uri(path)):
        if not root.exists():
            wait_for_replacing(root)
        if not root.is_dir():
            what = "There is nothing at this path." if not root.exists() else "This is no folder."
            raise DatasetNotFoundError(what, hint="give a dataset's folder", path=root)


def _run_families(look: Look, deep: bool, only: Collection[FamilyName] | None) -> None:
    whole, begun = look.progress, 0.0
    efforts = [_EFFORTS.get(f.name, 0.02) for f in FAMILIES if deep or not f.deep]
    for family in FAMILIES:
        share = 0.0 if family.deep and not deep else _EFFORTS.get(family.name, 0.02) / sum(efforts)
        look.progress = part_of(whole, begun, begun + share) or whole
        look.progress(0.0)
        begun += share
        runs = only is None or family.name in only
        if family.name == "table" and only is not None:
            runs = bool(set(ROW_CHECKS) & set(only))  # they are seen on the same way
        if not runs or (family.deep and not deep):
            continue
        look.facts.setdefault("families", []).append(family.name)
        _guarded(look.findings, family.name, partial(_run_family, look, family, only))
    _drop_consequences(look.findings)


def _drop_consequences(findings: Findings) -> None:
    """Drop statistics that are not finite because their numbers are not: that is one finding."""
    causes = {f.where.feature for f in findings.kept if f.code in ("not-a-number", "infinite")}
    gone = {
        f
        for f in findings.kept
        if f.code == "stats-impossible" and f.where.feature in causes and NOT_FINITE in f.what
    }
    if gone:
        findings.drop(gone)


def _run_family(look: Look, family: Family, only: Collection[FamilyName] | None) -> None:
    if family.needs_episodes and not look.episodes:
        return
    if family.name == "table":
        family.run(look, _row_checks(look, only))
    else:
        family.run(look)


def _row_checks(look: Look, only: Collection[FamilyName] | None) -> list[RowCheck]:
    """Return the checks that want to see rows; without a known episode, only values can be seen."""
    wanted = [name for name in ROW_CHECKS if only is None or name in only]
    if not look.episodes:
        wanted = [name for name in wanted if name == "table"]
    return [ROW_CHECKS[name](look) for name in wanted]


def _guarded(findings: Findings, name: str, work: Callable[[], None]) -> None:
    """Run checks; what they did not foresee becomes a finding."""
    try:
        work()
    except Exception as error:  # whatever the data did to them, the other families go on
        refuse_shortage(error)
        log.debug("the checks of %s stopped", name, exc_info=True)
        findings.add(
            code_for(error, "check-failed"),
            f"The checks of {name} stopped: {type(error).__name__}: {first_line(error)}.",
        )


def _place_in_report(finding: Finding) -> tuple[object, ...]:
    """What matters most first, by code, then by place: threads find things in any order."""
    where = finding.where
    episode, frame = (-1 if n is None else n for n in (where.episode, where.frame))
    place = (where.dataset, where.file or "", where.camera or "", episode, frame)
    return (*place_of(finding.code), *place)


def _report(
    roots: Iterable[Path],
    collected: list[Findings],
    facts: Mapping[str, Mapping[str, object]],
    thresholds: Mapping[str, float],
    deep: bool,
) -> Report:
    counts: Counter[str] = Counter()
    for findings in collected:
        counts.update(findings.counts)
    kept = [finding for findings in collected for finding in findings.kept]
    kept.sort(key=_place_in_report)
    return Report(tuple(map(str, roots)), tuple(kept), dict(counts), facts, thresholds, deep)
